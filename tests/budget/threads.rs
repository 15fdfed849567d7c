//! Many cycles, and many threads, on real memory.

use super::{double::residual, figures, tally, watchdog::in_time};
use liveslot::*;
use std::{
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread,
};

/// C126: a million allocations and releases under a limit of ten blocks.
#[test]
fn a_million_cycles_under_a_small_limit() {
    const BLOCK: usize = 64;
    let budget = Arc::new(Budget::new(10 * BLOCK as u64));
    let allocator = BudgetedAllocator::new(HostAllocator, Arc::clone(&budget), MemoryRole::KvCache);
    let mut live: Vec<NonNull<u8>> = (0..9).map(|_| allocator.allocate(BLOCK, 8).unwrap()).collect();
    for cycle in 0..1_000_000 {
        let next = allocator.allocate(BLOCK, 8).expect("there is room for one");
        let oldest = std::mem::replace(&mut live[cycle % 9], next);
        // SAFETY: made by this allocator with these values, and given back once: it is no longer in the list.
        assert!(unsafe { allocator.release(oldest, BLOCK, 8) }.is_complete());
    }
    assert_eq!(allocator.charged(), tally(9 * 64, 9));
    for last in live {
        // SAFETY: as above.
        unsafe { allocator.deallocate(last, BLOCK, 8) };
    }
    figures(&budget, [0, 0, 640, 640]);
}

/// Without memory. A release of something at this alignment leaves a byte behind.
const STICKY: usize = 2;

#[derive(Debug)]
struct Fake;

impl DeviceAllocator for Fake {
    fn allocate(&self, _: usize, _: usize) -> Result<NonNull<u8>, MemoryError> {
        Ok(NonNull::dangling())
    }

    unsafe fn deallocate(&self, _: NonNull<u8>, _: usize, _: usize) {}

    unsafe fn release(&self, _: NonNull<u8>, bytes: usize, align: usize) -> AllocationReleaseOutcome {
        if align == STICKY { residual(1) } else { AllocationReleaseOutcome::complete(ReleaseAccounting::eager(bytes as u64)) }
    }

    fn device(&self) -> DeviceKey {
        DeviceKey::device(0)
    }
}

/// What one thread did: what it holds, how much it left behind, and how often it was refused.
#[derive(Default)]
struct Log {
    held: Vec<usize>,
    left_behind: u64,
    refused: u64,
}

const LIMIT: u64 = 8192;

/// C129: sixteen threads on two allocators of one budget, while others come and go. Each sample adds up and is below the peak, each refusal
/// has figures that refuse; at rest the budget, and each allocator, has what the threads' logs say.
#[test]
fn sixteen_threads() {
    in_time(|| {
        let (budget, over) = (Arc::new(Budget::new(LIMIT)), AtomicBool::new(false));
        let allocator = || BudgetedAllocator::new(Fake, Arc::clone(&budget), MemoryRole::Workspace { step_scoped: true });
        let allocators = [allocator(), allocator()];
        let (logs, highest) = thread::scope(|scope| {
            let sampler = scope.spawn(|| sample(&budget, &over));
            let churner = scope.spawn(|| (0..20_000).for_each(|_| come_and_go(allocator())));
            let worker = |number: usize| (number, &allocators[number % 2]);
            let workers: Vec<_> = (0..16).map(worker).map(|(number, mine)| scope.spawn(move || work(mine, number))).collect();
            let logs: Vec<_> = workers.into_iter().map(|worker| worker.join().unwrap()).collect();
            churner.join().unwrap();
            over.store(true, SeqCst);
            (logs, sampler.join().unwrap())
        });

        for (parity, allocator) in allocators.iter().enumerate() {
            let (mut held, mut left_behind) = (tally(0, 0), 0);
            for log in logs.iter().skip(parity).step_by(2) {
                held.bytes += log.held.iter().sum::<usize>() as u64;
                held.count += log.held.len() as u64;
                left_behind += log.left_behind;
            }
            assert_eq!((allocator.charged(), allocator.quarantined()), (held, tally(left_behind, left_behind)));
        }
        let [used, quarantined] =
            [BudgetedAllocator::charged, BudgetedAllocator::quarantined].map(|part| allocators.iter().map(|one| part(one).bytes).sum());
        let peak = budget.peak();
        figures(&budget, [used, quarantined, LIMIT - used - quarantined, peak]);
        assert!(quarantined > 0 && highest <= peak, "{quarantined} bytes left behind, {highest} of {peak} seen");
        assert!(logs.iter().any(|log| log.refused > 0), "the limit was never met");
        drop(allocators);
        figures(&budget, [0, 0, LIMIT, peak]);
    });
}

/// The most that was seen used.
fn sample(budget: &Budget, over: &AtomicBool) -> u64 {
    let mut highest = 0;
    while !over.load(SeqCst) {
        let BudgetSnapshot { limit, used, quarantined, free, peak } = budget.snapshot();
        let sum = used.checked_add(quarantined).and_then(|taken| taken.checked_add(free));
        assert!(limit == LIMIT && sum == Some(limit), "{used} + {quarantined} + {free} of {limit}");
        assert!(used + quarantined <= peak && highest <= peak && peak <= LIMIT, "{used} + {quarantined} and {highest} of {peak}");
        highest = highest.max(used);
    }
    highest
}

/// An allocator that leaves something behind, and is gone.
fn come_and_go(allocator: BudgetedAllocator<Fake>) {
    if allocator.allocate(16, STICKY).is_ok() {
        give_back(&allocator, 16, STICKY);
    }
    let _ = allocator.allocate(16, 8);
}

fn work(allocator: &BudgetedAllocator<Fake>, number: usize) -> Log {
    let mut log = Log::default();
    let mut random = number as u64 + 1;
    for step in 0..62_500 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let bytes = (random % 500) as usize;
        let shrinks = if random & 1 << 40 == 0 {
            true
        } else {
            match allocator.allocate(bytes, 8) {
                Ok(_) => {
                    log.held.push(bytes);
                    false
                }
                Err(MemoryError::TierExhausted { requested, used, limit, available, .. }) => {
                    assert!(requested > available && used + available == limit, "refused {requested} of {available} bytes");
                    log.refused += 1;
                    true
                }
                Err(other) => panic!("{other}"),
            }
        };
        if let Some(last) = log.held.pop_if(|_| shrinks) {
            let sticks = last > 0 && step % 1000 == 0;
            give_back(allocator, last, if sticks { STICKY } else { 8 });
            log.left_behind += u64::from(sticks);
        }
    }
    log
}

fn give_back(allocator: &BudgetedAllocator<Fake>, bytes: usize, align: usize) {
    // SAFETY: there is no memory.
    unsafe { allocator.release(NonNull::dangling(), bytes, align) };
}
