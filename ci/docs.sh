#!/usr/bin/env bash
# A broken link in the documentation is a broken promise. The private pages are built too, for the protocols are told there; the public
# ones on their own, because only then may they not link to what a user cannot see.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

export RUSTDOCFLAGS="${RUSTDOCFLAGS:-} --deny warnings"
cargo doc --no-deps --package liveslot --package planted --package rules --all-features --document-private-items
cargo doc --no-deps --package liveslot --all-features
