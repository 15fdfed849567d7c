#!/usr/bin/env bash
# What the compiler cannot see: that no lock slipped into the library, that `src/sync` is the one door to what a checker replaces, and
# that each atomic ordering says why it suffices. Text search, so it first shows on a bad sample that it finds each kind of offence.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# Prints the offences in the library's source below folder $1; returns 1 if there are any.
offences() {
    find "$1" -name '*.rs' -print0 | sort -z | xargs -0 awk '
        function offence(what) { printf "%s:%d: %s: %s\n", FILENAME, FNR, what, trimmed($0); found = 1 }
        function trimmed(text) { sub(/^ +/, "", text); return text }
        function has(text, words) { return text ~ ("(^|[^A-Za-z0-9_])(" words ")([^A-Za-z0-9_]|$)") }

        FNR == 1 { facade = FILENAME ~ /(^|\/)sync(\.rs$|\/)/; tests = FILENAME ~ /\/tests\.rs$/; use = ""; comment = excused = -9; gated = 0 }

        {
            code = $0
            gsub(/"([^"\\]|\\.)*"/, "\"\"", code)
            if (code ~ /(^|[^\/:])\/\/([^\/!]|$)/) comment = FNR
            sub(/\/\/.*/, "", code)
        }

        # A test module runs to the end of its file.
        gated && code ~ /^ *(pub(\([a-z]+\))? )?mod [a-z_]+ *\{/ { tests = 1 }
        { gated = code ~ /#\[cfg\((all\()?test[,)]/ || (gated && code ~ /^ *(#|$)/) }

        # A use declaration is judged whole, when it ends.
        use == "" && code ~ /^ *(pub(\([a-z]+\))? )?use / { use = " " }
        use != "" {
            use = use code
            if (code !~ /;/) next
            code = use; use = ""; imports = 1
        }

        !facade {
            if (has(code, "Mutex|RwLock|Condvar|Barrier|Once|OnceLock|OnceState|LazyLock|ReentrantLock|mpsc|parking_lot|spin|spin_loop"))
                offence("a lock outside src/sync")
            if (has(code, "loom|shuttle|arc_swap|crossbeam_epoch|(std|core|alloc)::(sync|thread)") \
                || (imports && code ~ /(std|core|alloc)::\{/ && has(code, "sync|thread")))
                offence("a name that only src/sync may use")
        }

        # Names of other things than orderings, such as an enum of ours, have a path in front.
        !imports && !tests {
            bare = code
            gsub(/Ordering::/, "", bare)
            gsub(/::(Relaxed|Acquire|Release|AcqRel|SeqCst)/, "", bare)
            if (has(bare, "Relaxed|Acquire|Release|AcqRel|SeqCst")) {
                # One call may spread its orderings over adjacent lines.
                if (FNR - comment <= 4 || FNR - excused <= 1) excused = FNR
                else offence("an ordering without its comment")
            }
        }
        { imports = 0 }

        END { exit found }
    '
}

sample=$(mktemp -d)
trap 'rm -r "$sample"' EXIT
mkdir "$sample/sync"
cat >"$sample/bad.rs" <<'SAMPLE'
use std::{
    fmt,
    sync::Arc,
};
fn a() { std::thread::yield_now(); loom::model(f) }
static LOCK: Mutex<u8> = Mutex::new(0);
use crate::sync::{Once, atomic::Ordering::*};
/// Relaxed: a doc comment is no reason.
fn b() {
    word.load(Ordering::Relaxed);
    // Relaxed: a reason.
    word.compare_exchange(
        0,
        1,
        Relaxed,
        Relaxed, // the line before has its reason
    );



    word.load(SeqCst);
}
// std::thread, a Mutex and Relaxed in a comment, "loom" in a string: nothing to report.
fn c() { say("loom", State::Release, liveslot_loom) }
#[cfg(test)]
mod tests {
    fn d() { word.load(Relaxed) }



    fn e() { word.load(Relaxed); shuttle::check() }
}
SAMPLE
cat >"$sample/sync/good.rs" <<'SAMPLE'
use std::sync::{Mutex, atomic::Ordering::Relaxed};
SAMPLE
lines() { sed -E "s|^$sample/([^:]+:[0-9]+): .*|\1|" | tr '\n' ' '; }
expected="bad.rs:4 bad.rs:5 bad.rs:6 bad.rs:7 bad.rs:10 bad.rs:21 bad.rs:31 "
reported=$( (offences "$sample" || true) | lines)
if [[ "$reported" != "$expected" ]]; then
    echo "locks: the search itself is broken: reported $reported, expected $expected" >&2
    exit 1
fi

offences src
