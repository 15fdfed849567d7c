//! The events: a thread per device waits for its watch, and writes down what it says.
//!
//! Nothing is polled. The threads end when the registry does, which the watches tell.

use crate::{Failure, load::join};
use liveslot::{ChangeCause, DeviceKey, SelectionChange, SelectionWatch};
use serde_json::{Value, json};
use std::{
    collections::VecDeque,
    fmt, io,
    sync::{Arc, Mutex},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Events that are kept.
const KEPT: usize = 64;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Event {
    /// Since the feed began.
    pub(crate) at: Duration,
    pub(crate) device: DeviceKey,
    pub(crate) change: SelectionChange,
}

impl Event {
    pub(crate) fn json(&self) -> Value {
        let SelectionChange { selected, version, .. } = self.change;
        let (seconds, device) = (self.at.as_secs_f64(), self.device.to_string());
        json!({ "seconds": seconds, "device": device, "version": version, "selected": selected, "cause": self.cause() })
    }

    fn cause(&self) -> String {
        match &self.change.cause {
            ChangeCause::Selected => "selected".into(),
            ChangeCause::Withdrawn => "withdrawn".into(),
            ChangeCause::Retired => "retired".into(),
            ChangeCause::DeviceLost { reason } => format!("lost: {reason}"),
            ChangeCause::Removed => "removed".into(),
            // There may be more of them one day.
            other => format!("{other:?}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SelectionChange { selected, version, .. } = self.change;
        write!(formatter, "{:9.3} s  {:<8}  version {version:<5}  ", self.at.as_secs_f64(), self.device.to_string())?;
        match selected {
            Some(mechanism) => write!(formatter, "{mechanism:?} {}", self.cause()),
            None => write!(formatter, "nothing is selected, what was is {}", self.cause()),
        }
    }
}

#[derive(Default)]
struct Told {
    total: u64,
    latest: VecDeque<Event>,
}

impl Told {
    fn tell(&mut self, event: Event) {
        self.total += 1;
        self.latest.truncate(KEPT - 1);
        self.latest.push_front(event);
    }
}

pub(crate) struct Feed {
    begun: Instant,
    told: Arc<Mutex<Told>>,
    threads: Vec<JoinHandle<()>>,
}

impl Feed {
    pub(crate) fn follow(watches: impl IntoIterator<Item = SelectionWatch>) -> io::Result<Self> {
        let (begun, told) = (Instant::now(), Arc::<Mutex<Told>>::default());
        let follow = |watch: SelectionWatch| {
            let told = Arc::clone(&told);
            thread::Builder::new().name(format!("watch of {}", watch.key())).spawn(move || follow(watch, begun, &told))
        };
        let threads = watches.into_iter().map(follow).collect::<io::Result<_>>()?;
        Ok(Self { begun, told, threads })
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// How many events there have been.
    pub(crate) fn total(&self) -> u64 {
        self.told.lock().expect("telling does not panic").total
    }

    /// The latest ones, the latest first.
    pub(crate) fn latest(&self) -> Vec<Event> {
        self.told.lock().expect("telling does not panic").latest.iter().cloned().collect()
    }

    /// To be called when the registry is gone.
    pub(crate) fn end(self, patience: Duration) -> Result<(), Failure> {
        self.threads.into_iter().try_for_each(|thread| join(thread, Instant::now() + patience))
    }
}

fn follow(mut watch: SelectionWatch, begun: Instant, told: &Mutex<Told>) {
    while let Ok(change) = watch.changed_timeout(Duration::MAX) {
        let Some(change) = change else { continue };
        let event = Event { at: begun.elapsed(), device: watch.key(), change };
        told.lock().expect("telling does not panic").tell(event);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn event(milliseconds: u64, version: u64, cause: ChangeCause) -> Event {
        let change = SelectionChange { selected: None, version, cause };
        Event { at: Duration::from_millis(milliseconds), device: DeviceKey::HOST, change }
    }

    #[test]
    fn an_event_as_text() {
        let lost = event(1_234, 17, ChangeCause::DeviceLost { reason: "gone".into() });
        assert_eq!(lost.to_string(), "    1.234 s  host 0    version 17     nothing is selected, what was is lost: gone");
        assert_eq!(lost.json(), json!({ "seconds": 1.234, "device": "host 0", "version": 17, "selected": null, "cause": "lost: gone" }));
    }

    #[test]
    fn the_latest_are_kept() {
        let mut told = Told::default();
        for version in 1..=KEPT as u64 + 9 {
            told.tell(event(0, version, ChangeCause::Retired));
        }
        let versions: Vec<u64> = told.latest.iter().map(|event| event.change.version).collect();
        assert_eq!(versions, (10..=KEPT as u64 + 9).rev().collect::<Vec<_>>());
        assert_eq!(told.total, KEPT as u64 + 9);
    }
}
