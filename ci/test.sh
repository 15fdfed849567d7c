#!/usr/bin/env bash
# The README's test command: unit, integration, documentation, loom, shuttle and gated tests, which plain `cargo test` runs too, and the
# tools' own. Only the models are run otherwise: each execution of a model maps and unmaps a stack per thread, over which the test threads
# of one process wait for each other in the kernel. Processes of one test thread each don't, and take half of the processor time.
# Then the one feature that plain `cargo test` leaves out, because with it bindings cost more: its own tests, and those in which
# bindings end mechanisms and unwind; ci/nightly.sh runs all of them with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tells ci/planted.sh which tree has passed, unless a variable made the checkers do another amount of work.
stamp="${CARGO_TARGET_DIR:-target}/tested"
rm -f "$stamp"
digest=$(ci/digest.sh || true)

cargo test --workspace --exclude loom-tests

messages=$(cargo test --package loom-tests --no-run --message-format json-render-diagnostics)
models=$(sed -n 's/.*"executable":"\([^"]*\)".*/\1/p' <<<"$messages")
[[ -n $models ]]
run_model() {
    local output status=0
    output=$("$1" --test-threads=1 2>&1) || status=$?
    printf '     Running %s\n%s\n' "$1" "$output"
    return "$status"
}
export -f run_model
cd loom-tests
# The largest first, so that none of the long ones is left over at the end.
tr '\n' '\0' <<<"$models" | xargs -0 ls -S | xargs -P "$(getconf _NPROCESSORS_ONLN)" -I{} bash -c 'run_model "$1"' model {}
cd ..

cargo test --package liveslot --features holders --test holders --test removal --test panics

if [[ -n $digest ]] && ! env | grep -qE '^(LIVESLOT|LOOM|SHUTTLE)_'; then
    echo "$digest" >"$stamp"
fi
