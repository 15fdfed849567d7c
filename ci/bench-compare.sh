#!/usr/bin/env bash
# What a change costs: the working tree beside a commit of it, in one run of one program, with all features off on both (the benches of
# the package itself have them on). `ci/bench-compare.sh COMMIT [SECONDS]` is run by hand, on a quiet machine, and takes the time that it
# is given (80 s by default) after building. `--check` compiles it against the last commit and runs nothing.
#
# How to read it. Every line is an operation, in nanoseconds per operation and thread, with two ratios: `tree / base` is what the
# change does to it, `control / base` is what nothing does to it. The control is the same commit, compiled once more; where its
# instructions and its memory happen to lie is as much luck as it is for the tree. Behind each median are the 10th and the 90th
# percentile of 40 rounds, each with registries at other addresses. A line says `apart` where the two ranges have no value in common: look
# there first, and run again. What the read-modify-write pair shows is the machine alone: with a range far from 1.000, or a lost share (chunks
# thrown away because the kernel took the CPU) of more than a few per cent, the machine was not quiet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

check=false
case "${1-}" in
--check)
    check=true
    git rev-parse --verify --quiet HEAD >/dev/null || {
        echo "bench-compare: SKIPPED, no commit here"
        exit 0
    }
    set -- HEAD
    ;;
'' | -*)
    echo "usage: $0 COMMIT [SECONDS] | --check" >&2
    exit 2
    ;;
esac
commit=$(git rev-parse --verify --quiet "$1^{commit}") || {
    echo "bench-compare: no such commit: $1" >&2
    exit 2
}
shift

root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$root/$target
work=$target/bench-compare
trap 'rm -rf "$work"' EXIT
rm -rf "$work"

# Cargo tells packages that come by path apart by name and version alone.
for side in base control; do
    mkdir -p "$work/$side"
    # -m: with the commit's time stamps, cargo would take another commit's build in the same place for this one's.
    git archive "$commit" | tar -x -m -C "$work/$side"
    sed -i.unnamed "/^\[workspace.package\]/,/^\[/s/^version = \"\(.*\)\"/version = \"\1-$side\"/" "$work/$side/Cargo.toml"
done
# Beside the copies: those below it would be members of its workspace.
mkdir "$work/package"
cat >"$work/package/Cargo.toml" <<EOF
[workspace]

[package]
name = "bench-compare"
version = "0.1.0"
edition = "2024"
publish = false

# Into how many units a crate is cut, and where, is luck as well, and decides what is inlined into what.
[profile.release]
codegen-units = 1

[[bin]]
name = "bench-compare"
path = "$root/ci/bench-compare/main.rs"

[dependencies]
liveslot = { path = "$root" }
liveslot_base = { package = "liveslot", path = "../base" }
liveslot_control = { package = "liveslot", path = "../control" }
# As in the benches, whose harness it shares.
crossbeam-utils = "0.8.23"
rustix = { version = "1.1", features = ["thread", "process"] }
EOF
# The versions that the benches run on.
cp Cargo.lock "$work/package/Cargo.lock"

export CARGO_TARGET_DIR=$target
if $check; then
    cargo clippy --no-deps --manifest-path "$work/package/Cargo.toml" -- --deny warnings
else
    cargo run --release --manifest-path "$work/package/Cargo.toml" -- "$@"
fi
