//! What the kernel says that it has given, from `/proc`.
//!
//! `/proc/self/smaps` lists the mappings of this process in the order of their addresses, each with its *Rss*, the memory
//! that is mapped there, and its *Pss*, the same with each page divided by the number of its mappings. Both are whole KiB.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::ops::{AddAssign, Range};

/// In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resident {
    pub(crate) rss: u64,
    pub(crate) pss: u64,
}

impl AddAssign for Resident {
    fn add_assign(&mut self, other: Self) {
        self.rss += other.rss;
        self.pss += other.pss;
    }
}

/// All mappings of this process at one moment.
pub(crate) struct Mappings(Vec<(Range<usize>, Resident)>);

impl Mappings {
    /// Reads line by line: text as a whole would be given an address range of its own, perhaps one that was just released.
    pub(crate) fn read() -> io::Result<Self> {
        Self::parse(BufReader::new(File::open("/proc/self/smaps")?))
    }

    fn parse(smaps: impl BufRead) -> io::Result<Self> {
        let malformed = |line: &str| io::Error::new(io::ErrorKind::InvalidData, format!("smaps has the line {line:?}"));
        let mut mappings: Vec<(Range<usize>, Resident)> = Vec::new();
        for line in smaps.lines() {
            let line = line?;
            let mut words = line.split_ascii_whitespace();
            let (first, second) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
            if let Some((start, end)) = first.split_once('-') {
                let address = |hex| usize::from_str_radix(hex, 16).map_err(|_| malformed(&line));
                mappings.push((address(start)?..address(end)?, Resident::default()));
            } else if let "Rss:" | "Pss:" = first {
                let (_, resident) = mappings.last_mut().ok_or_else(|| malformed(&line))?;
                let bytes = 1024 * second.parse::<u64>().map_err(|_| malformed(&line))?;
                *if first == "Rss:" { &mut resident.rss } else { &mut resident.pss } = bytes;
            }
        }
        Ok(Self(mappings))
    }

    /// The sum over all mappings that the range touches.
    pub(crate) fn of(&self, range: &Range<usize>) -> Resident {
        let Self(mappings) = self;
        let first = mappings.partition_point(|(mapping, _)| mapping.end <= range.start);
        let touched = mappings[first..].iter().take_while(|(mapping, _)| mapping.start < range.end);
        let mut sum = Resident::default();
        touched.for_each(|(_, resident)| sum += *resident);
        sum
    }
}

/// How much memory, in bytes, the machine can give without swapping.
pub(crate) fn available() -> io::Result<u64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let figure = text.lines().find_map(|line| line.strip_prefix("MemAvailable:")?.strip_suffix("kB")?.trim().parse::<u64>().ok());
    Ok(1024 * figure.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "meminfo does not say how much memory is available"))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
1000-3000 rw-p 00000000 00:00 0 \n\
Size:                  8 kB\n\
Rss:                   8 kB\n\
Pss:                   8 kB\n\
Pss_Dirty:             1 kB\n\
3000-4000 ---p 00000000 00:00 0 \n\
Rss:                   0 kB\n\
Pss:                   0 kB\n\
4000-6000 rw-s 00000000 00:01 7 /memfd:liveslot-prefix (deleted)\n\
Rss:                   8 kB\n\
Pss:                   2 kB\n\
VmFlags: rd wr sh mr mw me ms \n";

    #[test]
    fn a_range_has_what_its_mappings_have() {
        let mappings = Mappings::parse(SMAPS.as_bytes()).unwrap();
        let of = |range| {
            let Resident { rss, pss } = mappings.of(&range);
            (rss / 1024, pss / 1024)
        };
        assert_eq!(of(0x1000..0x6000), (16, 10));
        assert_eq!(of(0x1000..0x3000), (8, 8));
        assert_eq!(of(0x3000..0x4000), (0, 0));
        assert_eq!(of(0x5000..0x9000), (8, 2));
        assert_eq!(of(0x6000..0x9000), (0, 0));
        assert_eq!(of(0..0x1000), (0, 0));
    }

    #[test]
    fn other_text_is_an_error() {
        for text in ["Rss: 8 kB\n", "1000-3000 rw-p\nRss: many kB\n", "1000-what rw-p\n"] {
            assert_eq!(Mappings::parse(text.as_bytes()).err().map(|error| error.kind()), Some(io::ErrorKind::InvalidData));
        }
    }
}
