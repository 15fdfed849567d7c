#!/usr/bin/env bash
# What takes too long for every change: the loom models at one more preemption bound, many more shuttle schedules, the library's tests with
# the feature that plain `cargo test` leaves out and with ends of processes again and again, every planted mistake, the sanitizer, a longer run
# of the example. Variables that are set already win.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export LIVESLOT_LOOM_BOUND="${LIVESLOT_LOOM_BOUND:-4}"
export LIVESLOT_SHUTTLE_ITERATIONS="${LIVESLOT_SHUTTLE_ITERATIONS:-200000}"
cargo test --release --package loom-tests
cargo test --release --package shuttle-tests
LIVESLOT_EXITS="${LIVESLOT_EXITS:-200}" cargo test --package liveslot --all-features
ci/planted.sh --all
ci/asan.sh
ci/hot_swap.sh --seconds 60 --json
