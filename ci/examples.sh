#!/usr/bin/env bash
# The smaller examples, as a fresh clone runs them: each ends with another code than 0 when what it checks does not hold, and prints what it
# is to print. Built as ci/hot_swap.sh and ci/kv_cache.sh build theirs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

example() { cargo run --quiet --release --package liveslot --example "$@"; }

# Prints what it reads, and fails unless some line of it matches $1.
with() { awk -v pattern="$1" '{ print } $0 ~ pattern { found = 1 } END { if (!found) { print "examples: no line with " pattern; exit 1 } }'; }

example operator -- --once | with '^device +mechanism +selected'
example operator -- --dot | with '" -> "mechanism '
example operator -- --seconds 2 | with ' 0 are left;'
example serve | with '^0 invariants broken'
example serve -- --requests 20000 --json | with '"broken":\[\]'
example deferred_release | with '^0 invariants broken'
