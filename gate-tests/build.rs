//! Chooses the facade in `src/sync.rs` for this package alone: a cfg, not a feature, so that it cannot unify.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cfg=liveslot_gates");
}
