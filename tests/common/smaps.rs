//! What the kernel says about this process's address space.

use std::ops::Range;

/// One mapping, sizes in bytes.
#[derive(Debug)]
pub struct Mapping {
    pub range: Range<usize>,
    pub accessible: bool,
    /// The memory that is mapped into it.
    pub rss: u64,
    /// The same, each page divided by the number of its mappings.
    pub pss: u64,
}

/// The mappings that `range` touches.
pub fn mappings(range: Range<usize>) -> Vec<Mapping> {
    read("/proc/self/smaps", range)
}

fn read(file: &str, range: Range<usize>) -> Vec<Mapping> {
    let text = std::fs::read_to_string(file).unwrap();
    let mut mappings: Vec<Mapping> = Vec::new();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (first, second) = (words.next().unwrap(), words.next().unwrap_or_default());
        if let Some((start, end)) = first.split_once('-') {
            let number = |text| usize::from_str_radix(text, 16).unwrap();
            mappings.push(Mapping { range: number(start)..number(end), accessible: second.starts_with("rw"), rss: 0, pss: 0 });
        } else if let Some(last) = mappings.last_mut() {
            match first {
                "Rss:" => last.rss = second.parse::<u64>().unwrap() * 1024,
                "Pss:" => last.pss = second.parse::<u64>().unwrap() * 1024,
                _ => {}
            }
        }
    }
    mappings.retain(|mapping| mapping.range.start < range.end && range.start < mapping.range.end);
    mappings
}

/// The mapping at `address`, if there is one.
pub fn mapping_of(address: usize) -> Option<Mapping> {
    mappings(address..address + 1).pop()
}

/// Which of so many pages from `start` on can be read and written.
pub fn is_accessible(start: usize, pages: usize, page: usize) -> Vec<bool> {
    let mut accessible = vec![false; pages];
    let end = start + pages * page;
    // The same mappings without their figures, which take the kernel longer.
    for mapping in read("/proc/self/maps", start..end).into_iter().filter(|mapping| mapping.accessible) {
        let covered = mapping.range.start.max(start)..mapping.range.end.min(end);
        accessible[(covered.start - start) / page..(covered.end - start) / page].fill(true);
    }
    accessible
}
