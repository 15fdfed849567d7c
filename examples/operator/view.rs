//! What is shown: a heading with rates, the registry's table, the latest events.

use crate::{
    feed::{Event, Feed},
    grouped::Grouped,
    load::Shared,
};
use liveslot::{BindingRegistry, MechanismSnapshot};
use serde_json::{Value, json};
use std::time::Duration;

/// Events that are shown where there is room for all.
const EVENTS: usize = 10;

/// Takes samples.
pub(crate) struct Sampler<'a> {
    registry: &'a BindingRegistry,
    shared: &'a Shared,
    feed: &'a Feed,
}

/// Everything that is shown at a moment.
pub(crate) struct Sample {
    pub(crate) at: Duration,
    pub(crate) operations: u64,
    pub(crate) refused: u64,
    /// Per second.
    pub(crate) rate: u64,
    pub(crate) told: u64,
    /// The registry's own.
    pub(crate) table: String,
    pub(crate) mechanisms: Vec<MechanismSnapshot>,
    /// The latest first.
    pub(crate) events: Vec<Event>,
}

impl<'a> Sampler<'a> {
    pub(crate) fn new(registry: &'a BindingRegistry, shared: &'a Shared, feed: &'a Feed) -> Self {
        Self { registry, shared, feed }
    }

    /// Whether there have been so many events, and operations.
    pub(crate) fn has_seen(&self, events: u64) -> bool {
        self.feed.total() >= events && self.shared.totals().0 > 0
    }

    pub(crate) fn picture(&self) -> String {
        self.registry.to_dot()
    }

    /// With the rate since the beginning.
    pub(crate) fn sample(&self) -> Sample {
        self.sample_since(None)
    }

    /// With the rate since `last`.
    pub(crate) fn sample_since(&self, last: Option<&Sample>) -> Sample {
        let (at, (operations, refused)) = (self.feed.elapsed(), self.shared.totals());
        let (since, before) = last.map_or((Duration::ZERO, 0), |last| (last.at, last.operations));
        let rate = (operations - before) as f64 / (at - since).as_secs_f64().max(0.001);
        let mechanisms = self.registry.snapshots().unwrap_or_default();
        let (table, told, events) = (self.registry.to_string(), self.feed.total(), self.feed.latest());
        Sample { at, operations, refused, rate: rate as u64, told, table, mechanisms, events }
    }
}

impl Sample {
    /// As lines, `rows` at most: events first make room for the table.
    pub(crate) fn lines(&self, rows: usize) -> Vec<String> {
        let Self { at, operations, refused, rate, told, .. } = self;
        let [rate, operations, refused] = [*rate, *operations, *refused].map(Grouped);
        let heading = format!("{:.1} s   {rate} operations/s   {operations} operations, {refused} refused", at.as_secs_f64());
        let mut lines = vec![heading, String::new()];
        lines.extend(self.table.lines().map(str::to_owned));
        let room = rows.saturating_sub(lines.len() + 2).min(EVENTS).min(self.events.len());
        if room > 0 {
            lines.push(String::new());
            lines.push(format!("the last {room} of {told} events"));
            lines.extend(self.events[..room].iter().rev().map(Event::to_string));
        }
        lines.truncate(rows);
        lines
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "seconds": self.at.as_secs_f64(),
            "operations": self.operations,
            "operations_per_second": self.rate,
            "refused": self.refused,
            "mechanisms": self.mechanisms,
            "events": self.events.iter().map(Event::json).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::tests::event;
    use liveslot::ChangeCause;

    fn sample(events: u64) -> Sample {
        let events = (1..=events).rev().map(|version| event(version * 100, version, ChangeCause::Retired)).collect::<Vec<_>>();
        let (at, table) = (Duration::from_millis(12_345), "columns\nfirst\nsecond".to_owned());
        let (operations, refused, rate, told) = (1_234_567, 89, 100_000, events.len() as u64);
        Sample { at, operations, refused, rate, told, table, mechanisms: vec![], events }
    }

    #[test]
    fn heading_table_and_events() {
        let lines = sample(2).lines(usize::MAX);
        let expected = [
            "12.3 s   100 000 operations/s   1 234 567 operations, 89 refused",
            "",
            "columns",
            "first",
            "second",
            "",
            "the last 2 of 2 events",
            "    0.100 s  host 0    version 1      nothing is selected, what was is retired",
            "    0.200 s  host 0    version 2      nothing is selected, what was is retired",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn events_make_room() {
        let versions = |rows| {
            let lines = sample(20).lines(rows);
            assert!(lines.len() <= rows);
            lines.iter().filter_map(|line| line.split("version ").nth(1)?.split(' ').next()?.parse().ok()).collect::<Vec<u64>>()
        };
        assert_eq!(versions(100), (11..=20).collect::<Vec<_>>());
        assert_eq!(versions(9), [19, 20]);
        assert_eq!(sample(20).lines(7), sample(0).lines(7));
        assert_eq!(sample(20).lines(3).last().unwrap(), "columns");
    }
}
