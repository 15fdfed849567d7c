#!/usr/bin/env bash
# One layout for all of the source, so that a diff shows what changed and nothing else.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo fmt --all --check
# Outside the workspace, hence not in --all.
cargo fmt --check --manifest-path ci/loom-epoch/Cargo.toml
cargo fmt --check --manifest-path ci/drop-in/Cargo.toml
# No package of its own until it is built.
rustfmt --check --edition 2024 ci/bench-compare/main.rs
