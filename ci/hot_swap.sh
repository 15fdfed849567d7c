#!/usr/bin/env bash
# The main job on real memory with real threads: the example ends with another code than 0 when an invariant is broken. Arguments
# replace the short run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

[[ $# -gt 0 ]] || set -- --seconds 5 --json
cargo run --release --package liveslot --example hot_swap -- "$@"
