#!/usr/bin/env bash
# Whether liveslot takes the place of onnx-runtime-memory-api: that crate's published integration tests, and its published client
# onnx-runtime-memory-governor with unit tests, integration tests and bench, compiled unmodified against liveslot under that crate's name,
# and run. Needs the two crates from crates.io once. `--control` puts the replaced crate itself in liveslot's place: what fails there too
# is no fault of liveslot.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Tests that ask for what liveslot changes on purpose: the test's path, and why. Nothing else belongs here.
api_skips=()
governor_skips=()

case "${1-}" in
'') control=false ;;
--control) control=true ;;
*)
    echo "usage: $0 [--control]" >&2
    exit 2
    ;;
esac

root=$PWD
target=${CARGO_TARGET_DIR:-$root/target}
[[ $target == /* ]] || target=$root/$target
subject=liveslot
! $control || subject=control
work=$target/drop-in/$subject
export CARGO_TARGET_DIR=$target/drop-in/build-$subject
mkdir -p "$work"

# Copies a published crate out of cargo's own store to folder $2. A copy, because cargo tests members of a workspace only; made once, because
# its time stamps decide what is built again.
published() {
    local crate=$1 copy=$2 manifest
    manifest=$(grep -o "\"manifest_path\":\"[^\"]*/$crate-[0-9][^\"/]*/Cargo.toml\"" <<<"$metadata" | cut -d'"' -f4)
    if [[ ! -f $copy/.complete || $(<"$copy/.complete") != "$manifest" ]]; then
        rm -rf "$copy"
        cp -r "$(dirname "$manifest")" "$copy"
        echo "$manifest" >"$copy/.complete"
    fi
}

metadata=$(cargo metadata --format-version 1 --locked --manifest-path ci/drop-in/Cargo.toml)
published onnx-runtime-memory-api "$work/api"
published onnx-runtime-memory-governor "$work/governor"

adapter=api
if ! $control; then
    # A package with the name and version that the client asks for, liveslot in it, and the replaced crate's tests beside it.
    adapter=adapter
    mkdir -p "$work/adapter"
    ln -sfn ../api/tests "$work/adapter/tests"
    cat >"$work/adapter/Cargo.toml" <<EOF
[package]
name = "onnx-runtime-memory-api"
version = "0.1.0-dev.6"
edition = "2024"

[lib]
path = "$root/ci/drop-in/adapter.rs"
test = false
doctest = false

[dependencies]
liveslot = { path = "$root" }
EOF
fi
cat >"$work/Cargo.toml" <<EOF
[workspace]
members = ["$adapter", "governor"]
resolver = "3"

[profile.dev]
debug = "line-tables-only"

[patch.crates-io]
onnx-runtime-memory-api = { path = "$adapter" }
EOF
# The versions that were locked for this check; cargo drops from it what the workspace above doesn't use.
cp ci/drop-in/Cargo.lock "$work/Cargo.lock"
cd "$work"
# A patch that doesn't apply is only a warning to cargo, and leaves the client with the replaced crate.
if ! $control && ! cargo tree --package onnx-runtime-memory-governor --prefix none | grep "^liveslot " >/dev/null; then
    echo "drop-in: the client was not given liveslot" >&2
    exit 1
fi

# `suite PACKAGE SKIP...`: runs the package's tests but the skipped ones. Each of those has to exist.
passed=0
skipped=0
suite() {
    local package=$1 log=$work/$1.log skip arguments=() filtered
    shift
    for skip; do
        echo "skipped: $skip"
        arguments+=(--skip "${skip%%|*}")
    done
    cargo test --package "$package" -- --exact ${arguments[@]+"${arguments[@]}"} | tee "$log"
    filtered=$(sum filtered <"$log")
    if [[ $filtered -ne $# ]]; then
        echo "drop-in: $# tests of $package are to be skipped, $filtered were: the list names one that isn't there" >&2
        exit 1
    fi
    passed=$((passed + $(sum passed <"$log")))
    skipped=$((skipped + filtered))
}

# Adds up one of the numbers in libtest's result lines.
sum() {
    sed -n "s/^test result: .* \([0-9]*\) $1.*/\1/p" | awk '{ n += $1 } END { print n + 0 }'
}

suite onnx-runtime-memory-api ${api_skips[@]+"${api_skips[@]}"}
suite onnx-runtime-memory-governor ${governor_skips[@]+"${governor_skips[@]}"}
# Once through each of the bench's loops.
cargo test --package onnx-runtime-memory-governor --bench large_alloc_cache
echo "drop-in: $subject, $passed passed, $skipped skipped"
