#!/usr/bin/env bash
# What the library says is committed, beside what the kernel says is resident: the example ends with another code than 0 when they
# differ. Arguments replace the defaults.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

cargo run --release --package liveslot --example kv_cache -- "$@"
