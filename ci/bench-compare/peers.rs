//! What the bench's own loops, `benches/peers/drop_in.rs`, are written against.

/// A registry as the loops use it. What each item means is said in `benches/peers/mod.rs`.
pub(crate) trait Peer {
    type Device: Copy;
    type Binding;

    const DEVICE: Self::Device;

    fn build() -> Self;
    fn bind(&self, device: Self::Device) -> Self::Binding;
    fn is_bound(binding: &Self::Binding) -> bool;
    fn select(&self, choice: usize);
}
