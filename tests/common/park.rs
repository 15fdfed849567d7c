//! Stopping a thread at a place of the test's choice.

use std::{
    sync::mpsc::{Receiver, Sender, channel},
    time::Duration,
};

/// A thread that has not come, or has not been let go, by then is a hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the thread stops.
pub struct Stop {
    arrived: Sender<()>,
    opened: Receiver<()>,
}

/// What the test lets it go with.
pub struct Gate {
    arrival: Receiver<()>,
    open: Sender<()>,
}

pub fn gate() -> (Stop, Gate) {
    let (arrived, arrival) = channel();
    let (open, opened) = channel();
    (Stop { arrived, opened }, Gate { arrival, open })
}

impl Stop {
    /// Stops here until the gate is opened.
    pub fn park(self) {
        self.arrived.send(()).expect("the test waits for this thread");
        self.opened.recv_timeout(PATIENCE).expect("the gate is opened");
    }
}

impl Gate {
    /// Waits until the thread has stopped.
    pub fn reached(&self) {
        self.arrival.recv_timeout(PATIENCE).expect("the thread reaches the gate");
    }

    pub fn open(self) {
        self.open.send(()).expect("the thread waits at the gate");
    }
}
