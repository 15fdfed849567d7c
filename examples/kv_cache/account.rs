//! What the cache believes beside what the kernel says, step by step, and how far apart they were at most.

use std::fmt::{self, Display};
use std::io;
use std::ops::Range;

use crate::cache::{Cache, CacheError, Sequence};
use crate::resident::{Mappings, Resident};
use crate::shape::Shape;

/// The kernel's shares are whole KiB, rounded down for each mapping.
const ROUNDING: u64 = 1024;

/// The figures of one step, in bytes.
#[derive(Debug, Default)]
struct Figures {
    sequences: usize,
    reserved: u64,
    /// The sum over the sequences, which counts the prompt once for each.
    committed: u64,
    rss: u64,
    /// What is committed, with the prompt counted once in all.
    paid: u64,
    pss: u64,
}

/// The distance of two figures at its largest, and what it may be.
#[derive(Clone, Copy, Debug, Default)]
struct Distance {
    largest: u64,
    allowed: u64,
    exceeded: bool,
}

impl Distance {
    fn measure(&mut self, believed: u64, said: u64, allowed: u64) {
        let distance = believed.abs_diff(said);
        self.exceeded |= distance > allowed;
        if distance >= self.largest {
            *self = Self { largest: distance, allowed, ..*self };
        }
    }
}

pub(crate) struct Account {
    shape: Shape,
    resident: Distance,
    shared: Distance,
    arithmetic: Distance,
    left_behind: Distance,
    tokens_read: usize,
}

impl Account {
    pub(crate) fn new(shape: Shape) -> Self {
        println!("{:<44}{:>10}{:>14}{:>12}{:>12}{:>12}{:>12}", "KiB", "sequences", "reserved", "committed", "Rss", "paid", "Pss");
        let [resident, shared, arithmetic, left_behind] = [Distance::default(); 4];
        Self { shape, resident, shared, arithmetic, left_behind, tokens_read: 0 }
    }

    /// Reads every sequence, so that each has the prompt's pages mapped, compares, and prints a line.
    pub(crate) fn step(&mut self, name: impl Display, cache: &Cache, sequences: &[Sequence]) -> Result<(), CacheError> {
        for sequence in sequences {
            self.tokens_read += cache.read(sequence)?;
        }
        let mappings = Mappings::read()?;
        let page = self.shape.page_bytes as u64;
        let prompt = self.shape.prompt_bytes as u64;

        let mut prompts = mappings.of(&cache.prompt_addresses());
        let mut figures = Figures { sequences: sequences.len(), paid: prompt, pss: prompts.pss, ..Figures::default() };
        for sequence in sequences {
            let committed = cache.committed_bytes(sequence)? as u64;
            let own = self.shape.own_bytes(sequence.own_tokens()) as u64;
            let addresses = sequence.addresses();
            let Resident { rss, pss } = mappings.of(&addresses);
            self.arithmetic.measure(prompt + own, committed, 0);
            self.resident.measure(committed, rss, page);
            prompts += mappings.of(&(addresses.start..addresses.start + self.shape.prompt_bytes));
            figures.reserved += addresses.len() as u64;
            figures.committed += committed;
            figures.rss += rss;
            figures.paid += committed - prompt;
            figures.pss += pss;
        }
        let rounding = ROUNDING * (1 + sequences.len() as u64);
        self.shared.measure(prompt, prompts.pss, page + rounding);
        self.shared.measure(figures.paid, figures.pss, page + rounding);
        println!("{:<44}{figures}", name.to_string());
        Ok(())
    }

    /// Nothing must be resident any more where something was. To be called before anything else is mapped.
    pub(crate) fn gone(&mut self, ranges: &[Range<usize>]) -> io::Result<()> {
        let mappings = Mappings::read()?;
        for range in ranges {
            self.left_behind.measure(0, mappings.of(range).rss, 0);
        }
        Ok(())
    }

    /// Prints the verdict, and says whether all is right.
    pub(crate) fn verdict(&self) -> bool {
        println!("\n{} tokens read, each as it was written", self.tokens_read);
        println!("largest distance, in KiB:");
        let rows = [
            ("committed bytes from those that the tokens take, per sequence", self.arithmetic),
            ("Rss from committed bytes, per sequence", self.resident),
            ("Pss from what is paid, the prompt being paid once", self.shared),
            ("Rss of what was released from nothing", self.left_behind),
        ];
        for (name, Distance { largest, allowed, exceeded }) in rows {
            let verdict = if exceeded { "BROKEN" } else { "ok" };
            println!("  {name:<64}{:>8}   allowed {:>6}   {verdict}", largest / 1024, allowed / 1024);
        }
        rows.iter().all(|(_, distance)| !distance.exceeded)
    }
}

impl Display for Figures {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequences, reserved, committed, rss, paid, pss } = self;
        let [reserved, committed, rss, paid, pss] = [reserved, committed, rss, paid, pss].map(|bytes| bytes / 1024);
        write!(formatter, "{sequences:>10}{reserved:>14}{committed:>12}{rss:>12}{paid:>12}{pss:>12}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_distance_is_kept_with_its_allowance() {
        let mut distance = Distance::default();
        for (believed, said, allowed) in [(10, 10, 0), (10, 13, 3), (13, 10, 5), (10, 11, 1)] {
            distance.measure(believed, said, allowed);
        }
        assert_eq!((distance.largest, distance.allowed, distance.exceeded), (3, 5, false));
        distance.measure(1, 0, 0);
        assert!(distance.exceeded, "a small one can be too large as well");
        assert_eq!(distance.largest, 3);
    }
}
