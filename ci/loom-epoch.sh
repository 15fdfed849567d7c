#!/usr/bin/env bash
# The loom models use a stand-in for crossbeam-epoch; this runs one small model on the real crate. A job of its own, with a target folder
# of its own: the cfg that turns crossbeam over to loom holds for a whole build and stops other packages from compiling.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export RUSTFLAGS="--cfg crossbeam_loom"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/loom-epoch"
# Its bound belongs to the model.
unset LOOM_MAX_PREEMPTIONS LOOM_MAX_BRANCHES LOOM_MAX_PERMUTATIONS LOOM_MAX_DURATION
cargo test --manifest-path ci/loom-epoch/Cargo.toml
