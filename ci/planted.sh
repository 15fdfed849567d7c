#!/usr/bin/env bash
# Tests of a concurrent protocol earn trust by failing: plants known mistakes in copies of the tree, one at a time, and demands that the
# test meant for each fails. ci/planted/README.md has the format and the options, which are passed on.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ $# -eq 0 ]]; then
    # The runner judges others, so it is tested first.
    cargo test --quiet --package planted
    # Left by ci/test.sh: the tests have passed on this tree already, and need not with nothing planted.
    tested=$(cat "${CARGO_TARGET_DIR:-target}/tested" 2>/dev/null || true)
    if [[ -n $tested && $tested == "$(ci/digest.sh || true)" ]]; then
        set -- --tested
    fi
fi
cargo run --quiet --package planted -- "$@"
