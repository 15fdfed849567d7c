#!/usr/bin/env bash
# Benches are run by hand, on a quiet machine; this keeps their binaries building until then. In the release profile, whose
# dependencies the example shares.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo bench --package liveslot --bench '*' --no-run --profile release

# Against the last commit: the comparison of two of them compiles still.
ci/bench-compare.sh --check
