#!/usr/bin/env bash
# AddressSanitizer with leak check over the library's own tests: what the model checkers trust unseen (arc-swap, crossbeam-epoch, every
# unsafe block on real memory) is watched here. Needs a nightly toolchain, and skips without one. Arguments go to cargo test.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if ! command -v rustup >/dev/null || ! rustup run nightly rustc --version >/dev/null 2>&1; then
    echo "asan: SKIPPED, no nightly toolchain (rustup toolchain install nightly --profile minimal)"
    exit 0
fi
target=x86_64-unknown-linux-gnu
# crossbeam_sanitize: the epoch collects in smaller batches, hence sooner.
export RUSTFLAGS="-Zsanitizer=address --cfg crossbeam_sanitize"
export ASAN_OPTIONS="detect_leaks=1:${ASAN_OPTIONS:-}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PWD/target}/asan"
[[ $# -gt 0 ]] || set -- --lib --tests
# A target that is named keeps the flags away from build scripts and macros.
rustup run nightly cargo test --package liveslot --target "$target" "$@"
