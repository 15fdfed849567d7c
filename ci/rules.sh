#!/usr/bin/env bash
# A rule of the library's behaviour that no test names is a promise that nobody checks: lists every rule with what RULES.md says of
# it and with the tests and the planted mistakes that name it, and fails if one has neither a test nor an excuse, or not one entry in
# RULES.md. `--open` lists those without a test alone, `--rule R42` one.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# The lister judges others, so it is tested first.
[[ $# -gt 0 ]] || cargo test --quiet --package rules
cargo run --quiet --package rules -- "$@"
