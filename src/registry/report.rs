//! The registry as text: a table of its mechanisms, and a picture of who pins whom.
//!
//! The writer is the user's code. So everything is copied first, under one epoch guard, and written after that guard has gone. A
//! device's mechanisms are copied before its selection is read: whatever is selected then was Active when it was copied, so no row says
//! that a mechanism is selected and not Active.

use super::BindingRegistry;
use crate::{
    contract::{DeviceKey, Holder, MechanismSnapshot},
    mechanism::{Mechanism, Support},
    primitives::table::{Table, Tagged},
    sync::{epoch, gate},
};
use std::{
    collections::BTreeMap,
    fmt::{self, Write},
    iter,
};

/// A mechanism, copied.
pub(super) struct Entry {
    pub(super) snapshot: MechanismSnapshot,
    sequence: u64,
    pub(super) handles: usize,
    holders: Vec<Holder>,
    pub(super) selected: bool,
}

impl Entry {
    fn copy(mechanism: &Mechanism) -> Self {
        let (snapshot, handles, holders) = (mechanism.snapshot(), mechanism.pins.handles(), mechanism.holders());
        Self { snapshot, sequence: mechanism.sequence, handles, holders, selected: false }
    }
}

/// What devices are sorted by.
fn order(device: DeviceKey) -> (usize, u32) {
    (device.tier.index(), device.index)
}

impl BindingRegistry {
    /// Its mechanisms, by device and then in order of registration.
    pub(super) fn entries(&self, guard: &epoch::Guard) -> Vec<Entry> {
        let mut entries = Vec::new();
        for device in self.inner.devices.iter() {
            let first = entries.len();
            entries.extend(device.mechanisms.iter(guard).map(|mechanism| Entry::copy(&mechanism)));
            gate!(Reporting);
            let selected = device.slot.observe().candidate.map(|mechanism| mechanism.names.mechanism);
            for entry in &mut entries[first..] {
                entry.selected = selected == Some(entry.snapshot.identity);
            }
        }
        entries.sort_unstable_by_key(|entry| (order(entry.snapshot.device), entry.sequence));
        entries
    }

    /// A picture of who pins whom, in the DOT language of [Graphviz](https://graphviz.org): `dot -Tsvg` draws it.
    ///
    /// | node | text | edges |
    /// | --- | --- | --- |
    /// | device | its name | to the mechanism that is selected |
    /// | mechanism | number, lifecycle, what it owns | to the context and to the authority that it pins |
    /// | provider context, authority | number, device | |
    /// | handles | how many: bindings, allocations, views, and whatever else keeps the allocator | to their mechanism; absent if there are none |
    /// | binding | as its [`Holder`] reads; with the feature `holders` alone | to its mechanism |
    ///
    /// The numbers are those in the `Debug` text of the identities. Devices come in the order of tier and number, mechanisms by device
    /// and then in order of registration, contexts and authorities by device and then number. Every mechanism that is registered
    /// during the whole call is there. The picture as a whole is not one moment: each mechanism is a
    /// [`snapshot`](Self::snapshot), handles are counted stripe by stripe, and those of a mechanism that is being removed are left out.
    ///
    /// Runs no code of the user's.
    ///
    /// # Progress
    ///
    /// Lock-free: a walk over all that is registered, two loads per stripe.
    ///
    /// ```
    /// use liveslot::{BindingRegistry, DeviceKey, HostAllocator};
    /// use std::sync::Arc;
    ///
    /// let registry = BindingRegistry::new()?;
    /// let context = registry.register_provider_context(DeviceKey::HOST, Arc::new(()))?;
    /// let authority = registry.register_authority(DeviceKey::HOST, Arc::new(()))?;
    /// registry.register_allocator(context, authority, Arc::new(HostAllocator))?;
    /// let dot = registry.to_dot();
    /// assert!(dot.starts_with("digraph registry {\n") && dot.contains(r#""host 0" -> "mechanism"#));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn to_dot(&self) -> String {
        let guard = epoch::pin();
        let entries = self.entries(&guard);
        let mut contexts = supports(&self.inner.contexts, &guard);
        let mut authorities = supports(&self.inner.authorities, &guard);
        drop(guard);
        // Also those of a mechanism that was removed with them since it was copied.
        for MechanismSnapshot { device, provider_context, authority, .. } in entries.iter().map(|entry| entry.snapshot) {
            contexts.insert((order(device), provider_context.number()), device);
            authorities.insert((order(device), authority.number()), device);
        }
        let mut devices: Vec<DeviceKey> = self.inner.devices.iter().map(|device| device.key).collect();
        devices.sort_unstable_by_key(|device| order(*device));

        let mut dot = String::new();
        picture(&mut dot, &devices, &entries, &contexts, &authorities).expect("a string takes everything");
        dot
    }
}

/// By device and number.
type Supports = BTreeMap<((usize, u32), u64), DeviceKey>;

fn supports(table: &Table<Support>, guard: &epoch::Guard) -> Supports {
    table.iter(guard).map(|support| ((order(support.device), support.tag()), support.device)).collect()
}

fn picture(dot: &mut String, devices: &[DeviceKey], entries: &[Entry], contexts: &Supports, authorities: &Supports) -> fmt::Result {
    dot.push_str("digraph registry {\n  rankdir=LR;\n");
    for device in devices {
        writeln!(dot, "  \"{device}\" [shape=house];")?;
    }
    for (kind, supports) in [("context", contexts), ("authority", authorities)] {
        for ((_, number), device) in supports {
            writeln!(dot, "  \"{kind} {number}\" [shape=ellipse, label=\"{kind} {number}\\n{device}\"];")?;
        }
    }
    for Entry { snapshot, handles, holders, selected, .. } in entries {
        let MechanismSnapshot { device, lifecycle, active_operations, live_allocations, queued_releases, .. } = snapshot;
        let (mechanism, context) = (snapshot.identity.number(), snapshot.provider_context.number());
        let (authority, quarantined) = (snapshot.authority.number(), snapshot.quarantined_allocations);
        writeln!(
            dot,
            "  \"mechanism {mechanism}\" [shape=box, label=\"mechanism {mechanism}\\n{lifecycle:?}\\n{active_operations} operations, \
             {live_allocations} live, {queued_releases} queued\\n{quarantined} quarantined, {} bytes\"];",
            snapshot.quarantined_bytes,
        )?;
        writeln!(dot, "  \"mechanism {mechanism}\" -> \"context {context}\";")?;
        writeln!(dot, "  \"mechanism {mechanism}\" -> \"authority {authority}\";")?;
        if *selected {
            writeln!(dot, "  \"{device}\" -> \"mechanism {mechanism}\" [label=selected];")?;
        }
        if let handles @ 1.. = handles {
            writeln!(dot, "  \"handles {mechanism}\" [shape=plaintext, label=\"{handles} handles\"];")?;
            writeln!(dot, "  \"handles {mechanism}\" -> \"mechanism {mechanism}\";")?;
        }
        for holder in holders {
            let (binding, text) = (holder.binding.number(), holder.to_string().replace('\\', r"\\").replace('"', r#"\""#));
            writeln!(dot, "  \"binding {binding}\" [shape=plaintext, label=\"{text}\"];")?;
            writeln!(dot, "  \"binding {binding}\" -> \"mechanism {mechanism}\";")?;
        }
    }
    dot.push_str("}\n");
    Ok(())
}

const COLUMNS: [&str; 9] = ["device", "mechanism", "selected", "lifecycle", "operations", "live", "queued", "quarantined", "bytes"];

fn cells(entry: &Entry) -> [String; 9] {
    let snapshot = &entry.snapshot;
    [
        snapshot.device.to_string(),
        snapshot.identity.number().to_string(),
        if entry.selected { "yes" } else { "no" }.to_owned(),
        format!("{:?}", snapshot.lifecycle),
        snapshot.active_operations.to_string(),
        snapshot.live_allocations.to_string(),
        snapshot.queued_releases.to_string(),
        snapshot.quarantined_allocations.to_string(),
        snapshot.quarantined_bytes.to_string(),
    ]
}

/// Columns are two blanks apart; words stand to the left, numbers to the right, so no line ends with a blank. Lines are separated by line
/// feeds, none behind the last.
fn table(entries: &[Entry]) -> String {
    let rows: Vec<_> = iter::once(COLUMNS.map(str::to_owned)).chain(entries.iter().map(cells)).collect();
    let widths: [usize; 9] = std::array::from_fn(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or(0));
    let line = |row: &[String; 9]| {
        let cells = iter::zip(row, widths).zip(COLUMNS).map(|((cell, width), column)| match column {
            "device" | "selected" | "lifecycle" => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        });
        cells.collect::<Vec<_>>().join("  ")
    };
    rows.iter().map(line).collect::<Vec<_>>().join("\n")
}

/// A table with a row for each mechanism, by device and then in order of registration, under a row that names the columns.
///
/// ```text
/// device  mechanism  selected  lifecycle  operations  live  queued  quarantined  bytes
/// host 0          3  no        Retired             2     1       2            0      0
/// host 0          5  yes       Active              0     7       0            1   4096
/// ```
///
/// `mechanism` is the number in the `Debug` text of its identity; the counts are those of its [snapshot](BindingRegistry::snapshot),
/// `bytes` those in quarantine. A mechanism that is said to be selected is said to be Active. The table as a whole is not one moment. There
/// is no line feed behind the last row, and width and precision of the format are ignored.
///
/// Nothing is held while the writer runs, which is called once, and no other code of the user's runs. Lock-free: a walk over all devices,
/// one load per stripe and another one for the handles.
impl fmt::Display for BindingRegistry {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let guard = epoch::pin();
        let entries = self.entries(&guard);
        drop(guard);
        formatter.write_str(&table(&entries))
    }
}
