#!/usr/bin/env bash
# The README's test command: unit, integration, documentation, loom, shuttle and gated tests in one go.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo test
