//! Which CPUs the two measuring threads run on. Unpinned, the kernel may put both on one.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::fs;

/// Up to two CPUs that this process may use: the first one, and another that is no sibling of it. Two siblings share one core's execution
/// units and caches, which would pass for contention.
pub(crate) fn two_cores() -> Vec<usize> {
    let allowed = sched_getaffinity(None).expect("the process can ask for its own affinity");
    let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    let Some(first) = cpus.next() else { return Vec::new() };
    // Where the kernel does not tell, each CPU counts as a core.
    let core = |cpu: usize| {
        fs::read_to_string(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")).unwrap_or_else(|_| cpu.to_string())
    };
    let first_core = core(first);
    [first].into_iter().chain(cpus.find(|&cpu| core(cpu) != first_core)).collect()
}

/// Binds the calling thread to one CPU.
pub(crate) fn pin_to(cpu: usize) {
    let mut only = CpuSet::new();
    only.set(cpu);
    sched_setaffinity(None, &only).expect("an allowed CPU");
}
