#!/usr/bin/env bash
# The README's test command: unit, integration, documentation, loom, shuttle and gated tests in one go. Then the one feature that it leaves
# out, because with it bindings cost more: its own tests, and those in which bindings end mechanisms and unwind; ci/nightly.sh runs all of
# them with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo test
cargo test --package liveslot --features holders --test holders --test removal --test panics
