#!/usr/bin/env bash
# Warnings are mistakes: an undocumented unsafe block, an unreachable item, a cfg that nobody declared. All targets, for a bench or an
# example that no test builds rots unseen.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo clippy --workspace --all-targets -- --deny warnings
# What no other target turns on.
cargo clippy --package liveslot --features holders --lib --test holders -- --deny warnings
