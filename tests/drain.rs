//! Draining: who waits for a mechanism is told when the last of what it does and owns has gone, whoever that was and wherever it went.

mod common {
    pub mod another;
    pub mod api;
    pub mod arm;
    pub mod capable;
    pub mod doubles;
    pub mod held;
    pub mod lifecycle;
    pub mod park;
    pub mod refused;
    pub mod rig;
    pub mod watchdog;
    pub mod woken;
}

use common::{
    another::another,
    api::Reach,
    arm::arm,
    capable::Capable,
    held::hold,
    lifecycle::bring,
    park::{Gate, gate},
    refused::{Expected, refused},
    rig::{DEVICE, Rig},
    watchdog::in_time,
    woken::{Woken, poll, ready, waker_that_does},
};
use liveslot::{
    MechanismLifecycle::{Active, DeviceLost, Retired, Terminated},
    release::BoundedQueue,
    *,
};
use std::{
    cell::RefCell,
    mem,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::pin,
    sync::{
        Arc, Mutex,
        mpsc::{Sender, channel},
    },
    task::{Context, Wake, Waker},
    thread::{self, JoinHandle},
    time::Duration,
};

const NOW: Duration = Duration::ZERO;
const GONE: RegistryGone = RegistryGone { device: DEVICE };

/// Lets go of what a mechanism is still busy with.
type Leave = Box<dyn FnOnce() + Send>;

fn drain(rig: &Rig) -> Drain {
    rig.registry.drain(rig.mechanism).unwrap()
}

#[track_caller]
fn polled<const N: usize>(drains: &mut [Drain; N], woken: &[Arc<Woken>; N]) -> [bool; N] {
    std::array::from_fn(|n| poll(&mut drains[n], &woken[n]).is_ready())
}

fn times<const N: usize>(woken: &[Arc<Woken>; N]) -> [usize; N] {
    woken.each_ref().map(|woken| woken.times())
}

/// Another thread that waits without end.
fn waits<T: Send + 'static>(wait: impl FnOnce(Duration) -> T + Send + 'static) -> JoinHandle<T> {
    let (begins, has_begun) = channel();
    let thread = thread::spawn(move || {
        begins.send(()).unwrap();
        wait(Duration::MAX)
    });
    has_begun.recv().unwrap();
    thread
}

/// Another thread that stops within a call. It is left by letting that call end, and be it by a panic.
fn in_a_call(call: impl FnOnce() + Send + 'static, gate: Gate) -> Leave {
    let thread = thread::spawn(call);
    gate.reached();
    Box::new(move || {
        gate.open();
        let _ = thread.join();
    })
}

/// Another thread that stops within the allocator's `allocate`, which never gives anything.
fn in_allocate(rig: &Rig, end: fn() -> MemoryError) -> Leave {
    let (stop, gate) = gate();
    arm(&rig.script.allocate, move || {
        stop.park();
        Err(end())
    });
    let binding = rig.registry.bind(DEVICE).unwrap();
    in_a_call(move || assert!(binding.allocate(8, 8).is_err()), gate)
}

/// Another thread that stops in the closure of `with_view`, after which the allocation is released.
fn in_a_closure(rig: &Rig, end: fn()) -> Leave {
    let (stop, gate) = gate();
    let held = hold(rig);
    let binding = held.binding.clone();
    let leave = in_a_call(
        move || {
            held.binding
                .with_view(&held.view, |_| {
                    stop.park();
                    end();
                })
                .unwrap();
        },
        gate,
    );
    binding.release(held.allocation).unwrap();
    leave
}

fn nothing_left() -> MemoryError {
    MemoryError::InvalidRequest { tier: "test", requested: 8, reason: "there is nothing left" }
}

/// 64 bytes in quarantine, which no allocator was asked to release.
fn quarantined(rig: &Rig) {
    let held = hold(rig);
    held.binding.prepare_release(held.allocation).unwrap().quarantine(QuarantineReason::OwnerDropped);
}

type Last = fn(&Rig) -> Leave;

/// The last of each kind, made while the mechanism is Active; and in which of its later phases it can go.
const LAST: [(&str, &[MechanismLifecycle], Last); 16] = [
    ("a live allocation", &[Retired], |rig| {
        let held = hold(rig);
        Box::new(move || held.binding.release(held.allocation).unwrap())
    }),
    ("an owner", &[Retired], |rig| {
        let held = hold(rig);
        drop(held.view);
        let owner = OwningAllocation::new(held.allocation);
        Box::new(move || assert!(owner.release_now().unwrap().is_complete()))
    }),
    ("a prepared release", &[Retired], |rig| {
        let held = hold(rig);
        let request = held.binding.prepare_release(held.allocation).unwrap();
        Box::new(move || assert!(request.execute().is_complete()))
    }),
    ("a release in a queue", &[Retired], |rig| {
        let (held, queue) = (hold(rig), BoundedQueue::new(8));
        OwningAllocation::new(held.allocation).release_deferred(&queue).unwrap();
        Box::new(move || assert_eq!(queue.drain(usize::MAX).released, 1))
    }),
    ("a quarantined one, retried", &[Retired], |rig| {
        quarantined(rig);
        let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
        Box::new(move || assert_eq!(registry.retry_quarantined(mechanism, 1).unwrap().released, 1))
    }),
    ("a quarantined one, given up", &[Retired, DeviceLost], |rig| {
        quarantined(rig);
        let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
        Box::new(move || assert_eq!(registry.abandon_quarantined(mechanism, |_| true).unwrap().bytes(), 64))
    }),
    ("a quarantined one, written off", &[DeviceLost], |rig| {
        quarantined(rig);
        let (registry, context) = (rig.registry.clone(), rig.context);
        Box::new(move || registry.confirm_context_terminated(context).unwrap())
    }),
    ("a live one, written off", &[DeviceLost], |rig| {
        let (held, registry, context) = (hold(rig), rig.registry.clone(), rig.context);
        Box::new(move || {
            registry.confirm_context_terminated(context).unwrap();
            drop(held);
        })
    }),
    ("a call of the allocator", &[Retired, DeviceLost], |rig| in_allocate(rig, nothing_left)),
    ("a call that unwinds", &[Retired, DeviceLost], |rig| in_allocate(rig, || panic!("the allocator's own"))),
    ("a closure", &[Retired], |rig| in_a_closure(rig, || ())),
    ("a closure that unwinds", &[Retired], |rig| in_a_closure(rig, || panic!("the closure's own"))),
    ("a call of a capability", &[Retired, DeviceLost], |rig| {
        let (stop, gate) = gate();
        arm(&rig.script.discovery, move || stop.park());
        let binding = rig.registry.bind(DEVICE).unwrap();
        in_a_call(move || assert!(binding.virtual_backing().unwrap().is_none()), gate)
    }),
    ("a release in progress", &[Retired, DeviceLost], |rig| {
        let (stop, gate) = gate();
        arm(&rig.script.release, move || {
            stop.park();
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
        });
        let held = hold(rig);
        in_a_call(move || held.binding.release(held.allocation).unwrap(), gate)
    }),
    ("a retry in progress", &[Retired, DeviceLost], |rig| {
        let (stop, gate) = gate();
        quarantined(rig);
        arm(&rig.script.release, move || {
            stop.park();
            AllocationReleaseOutcome::complete(ReleaseAccounting::eager(64))
        });
        let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
        in_a_call(move || assert_eq!(registry.retry_quarantined(mechanism, 1).unwrap().released, 1), gate)
    }),
    ("a trim", &[Retired, DeviceLost], |rig| {
        let (stop, gate) = gate();
        arm(&rig.script.trim, move || stop.park());
        let registry = rig.registry.clone();
        in_a_call(move || _ = registry.trim(DEVICE, 0), gate)
    }),
];

/// Leaves when it is dropped.
struct Leaves(Option<Leave>);

impl Drop for Leaves {
    fn drop(&mut self) {
        self.0.take().unwrap()();
    }
}

thread_local! {
    static AT_EXIT: RefCell<Option<Leaves>> = const { RefCell::new(None) };
}

type Way = fn(Leave);

/// On which thread it leaves, and in what state that is.
const WAYS: [(&str, Way); 4] = [
    ("here", |leave| leave()),
    ("on another thread", |leave| thread::spawn(leave).join().unwrap()),
    ("while it unwinds", |leave| {
        let leaves = Leaves(Some(leave));
        catch_unwind(AssertUnwindSafe(move || {
            let _leaves = leaves;
            panic!("with the last one in its hands");
        }))
        .unwrap_err();
    }),
    ("when its thread exits", |leave| {
        let thread = thread::spawn(|| AT_EXIT.with_borrow_mut(|at_exit| *at_exit = Some(Leaves(Some(leave)))));
        thread.join().unwrap();
    }),
];

/// C104, C106: futures and threads wait until the last of each kind has gone, are woken then, once, and see it.
#[test]
fn the_last_of_each_kind() {
    for (last, phases, make) in LAST {
        for &phase in phases {
            for (way, go) in WAYS {
                let case = format!("{last}, {phase:?}, {way}");
                let rig = Rig::new();
                let leave = make(&rig);
                let woken = [(); 3].map(|()| Arc::<Woken>::default());
                let mut drains = [(); 3].map(|()| drain(&rig));
                let [mut on_a_thread, mut on_another] = [(); 2].map(|()| drain(&rig));
                assert!(poll(&mut drains[0], &woken[0]).is_pending(), "{case}: Active");
                let early = waits(move |long| on_another.wait(long));
                bring(&rig, phase);
                assert_eq!(times(&woken), [0; 3], "{case}");
                assert_eq!(polled(&mut drains, &woken), [false; 3], "{case}");
                assert!(matches!(drains[2].wait(NOW), Err(DrainError::TimedOut(_))), "{case}");
                let late = waits(move |long| on_a_thread.wait(long));
                assert_eq!(times(&woken), [0; 3], "{case}");

                go(leave);
                assert_eq!(times(&woken), [1; 3], "{case}");
                assert_eq!(in_time(|| [early, late].map(|thread| thread.join().unwrap())), [Ok(()), Ok(())], "{case}");
                assert_eq!(drains.each_mut().map(|drain| ready(poll(drain, &woken[0]))), [Ok(()); 3], "{case}");
                assert_eq!(drains.each_mut().map(|drain| drain.wait(NOW)), [Ok(()), Ok(()), Ok(())], "{case}: for good");
                assert_eq!(drain(&rig).wait(NOW), Ok(()), "{case}: who comes later");
                assert_eq!(times(&woken), [1; 3], "{case}");
                drop(drains);
                rig.finish();
            }
        }
    }
}

/// What is there on top of it: several things at once, on several threads. Each that goes tells nobody, but for the last.
#[test]
fn one_of_several_is_not_the_last() {
    let rig = Rig::new();
    let mut leaves: Vec<(&str, Leave)> = Vec::new();
    for (last, phases, make) in LAST {
        // What gives away all that is retained, or needs a loss, goes alone.
        if phases.contains(&Retired) && !last.starts_with("a quarantined one") && last != "a retry in progress" {
            leaves.push((last, thread::scope(|scope| scope.spawn(|| make(&rig)).join().unwrap())));
        }
    }
    assert_eq!(leaves.len(), 11);
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let woken = Arc::<Woken>::default();
    while let Some((name, leave)) = leaves.pop() {
        assert!(poll(&mut drain, &woken).is_pending(), "before {name}");
        assert_eq!(woken.times(), 0, "before {name}");
        leave();
    }
    assert_eq!(woken.times(), 1);
    assert_eq!(ready(poll(&mut drain, &woken)), Ok(()));
    drop(drain);
    rig.finish();
}

/// Becoming live, queued and quarantined is no leaving, nor is a try that fails; only what goes for good is told.
#[test]
fn what_stays_tells_nobody() {
    let rig = Rig::new();
    let (stop, gate) = gate();
    arm(&rig.script.allocate, move || {
        stop.park();
        Ok(())
    });
    let binding = rig.registry.bind(DEVICE).unwrap();
    let allocating = binding.clone();
    let allocating = thread::spawn(move || allocating.allocate(64, 8).unwrap());
    gate.reached();
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let woken = Arc::<Woken>::default();
    assert!(poll(&mut drain, &woken).is_pending());
    gate.open();
    let allocation = allocating.join().unwrap();
    let failed = || AllocationReleaseOutcome::failed("not now");
    arm(&rig.script.release, failed);
    let retained = binding.release(allocation).unwrap_err();
    for _ in 0..2 {
        arm(&rig.script.release, failed);
        assert_eq!(rig.registry.retry_quarantined(rig.mechanism, 1).unwrap().kept, 1);
    }
    assert_eq!(rig.registry.abandon_quarantined(rig.mechanism, |_| false).unwrap().bytes(), 0);
    refused(binding.allocate(8, 8), (rig.mechanism, Retired));
    assert_eq!(woken.times(), 0);
    assert!(poll(&mut drain, &woken).is_pending());
    assert_eq!(drain.report().snapshot.quarantined_allocations, 1);
    assert_eq!(rig.registry.retry_quarantined(rig.mechanism, 1).unwrap().released, 1);
    assert_eq!(woken.times(), 1);
    assert_eq!(ready(poll(&mut drain, &woken)), Ok(()));
    drop((drain, retained, binding));
    rig.finish();
}

/// What is idle has not drained while it is Active; whoever ends its life tells. So does who ends it further, if that frees what was left.
#[test]
fn an_end_of_a_life_tells() {
    type End = fn(&Rig);
    let ends: [(End, bool); 3] = [
        (|rig| rig.registry.retire(rig.mechanism).unwrap(), true),
        (|rig| rig.registry.invalidate_device(DEVICE, "lost").unwrap(), true),
        (|rig| rig.registry.confirm_context_terminated(rig.context).unwrap(), false),
    ];
    // Each alone, for an idle one.
    for (end, from_active) in ends {
        let rig = Rig::new();
        let other = another(&rig, "B");
        let held = (!from_active).then(|| hold(&rig));
        let woken = [(); 2].map(|()| Arc::<Woken>::default());
        let mut drains = [rig.mechanism, other].map(|mechanism| rig.registry.drain(mechanism).unwrap());
        if !from_active {
            rig.registry.invalidate_device(DEVICE, "lost").unwrap();
        }
        assert!(poll(&mut drains[0], &woken[0]).is_pending(), "it is Active");
        let mut on_a_thread = drain(&rig);
        let thread = waits(move |long| on_a_thread.wait(long));
        let _ = poll(&mut drains[1], &woken[1]);
        end(&rig);
        assert_eq!(woken[0].times(), 1, "nobody tells");
        assert_eq!(in_time(|| thread.join().unwrap()), Ok(()));
        assert_eq!(ready(poll(&mut drains[0], &woken[0])), Ok(()));
        let also = rig.registry.snapshot(other).unwrap().lifecycle != Active;
        assert_eq!(woken[1].times(), usize::from(also && from_active), "the other one's end is told by the same call");
        assert_eq!(drains[1].wait(NOW).is_ok(), also);
        rig.registry.retire(other).unwrap();
        rig.registry.remove(other).unwrap();
        drop((drains, held));
        rig.finish();
    }
}

/// Retired, lost and written off, one after the other, with something that stays: the last step alone tells.
#[test]
fn from_one_end_to_the_next() {
    let rig = Rig::new();
    let held = hold(&rig);
    let woken = Arc::<Woken>::default();
    let mut drain = drain(&rig);
    for phase in [Active, Retired, DeviceLost] {
        if phase != Active {
            bring(&rig, phase);
        }
        assert!(poll(&mut drain, &woken).is_pending());
        assert_eq!((drain.report().snapshot.lifecycle, woken.times()), (phase, 0));
    }
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(woken.times(), 1, "nobody tells");
    assert_eq!(ready(poll(&mut drain, &woken)), Ok(()));
    assert_eq!(drain.report().snapshot.lifecycle, Terminated);
    drop((drain, held));
    rig.finish();
}

/// What only keeps the resources does not keep a mechanism from draining.
#[test]
fn handles_do_not_count() {
    let rig = Rig::new();
    let held = hold(&rig);
    let _clone = held.binding.clone();
    let retained = {
        arm(&rig.script.release, || AllocationReleaseOutcome::failed("not now"));
        held.binding.release(held.allocation).unwrap_err()
    };
    rig.registry.abandon_quarantined(rig.mechanism, |_| true).unwrap();
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    assert_eq!(drain.wait(NOW), Ok(()));
    assert_eq!(drain.report().snapshot, held.binding.mechanism_snapshot().unwrap());
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(drain.wait(NOW), Ok(()), "also after its removal");
    rig.log.take();
    drop((_clone, retained, held.view));
    assert_eq!(rig.log.take(), [""; 0]);
    drop(held.binding);
    assert_eq!(rig.log.take(), ["A dropped"]);
    assert_eq!(drain.wait(NOW), Ok(()));
    assert_eq!(drain.report().snapshot.lifecycle, Retired, "its memory answers still");
}

/// R153: what the report's text tells to do next is what goes on: each step is refused or changes nothing before the one that is told.
#[test]
fn the_report_tells_the_way_out() {
    let way_out = |rig: &Rig| {
        let text = drain(rig).report().to_string();
        let (_, rest) = text.split_once(" is ").unwrap();
        let (told, _) = rest.split_once(": operations").unwrap();
        told.to_owned()
    };
    let (rig, lost) = (Rig::new(), Rig::new());
    assert_eq!(way_out(&rig), "Active, retire it");
    for rig in [&rig, &lost] {
        quarantined(rig);
        rig.registry.retire(rig.mechanism).unwrap();
        assert_eq!(way_out(rig), "Retired, release what it owns, retry or abandon what is quarantined");
    }
    assert_eq!(rig.registry.abandon_quarantined(rig.mechanism, |_| true).unwrap().bytes(), 64);
    assert_eq!(way_out(&rig), "Retired, remove it");
    rig.finish();

    let rig = Rig::new();
    let leave = in_allocate(&rig, nothing_left);
    let held = hold(&rig);
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(way_out(&rig), "Retired, release what it owns");
    held.binding.release(held.allocation).unwrap();
    assert_eq!(way_out(&rig), "Retired, let its calls end");
    leave();
    drop((held.binding, held.view));
    rig.finish();

    lost.registry.invalidate_device(DEVICE, "gone").unwrap();
    assert_eq!(way_out(&lost), "DeviceLost, confirm the end of its provider context");
    lost.registry.confirm_context_terminated(lost.context).unwrap();
    assert_eq!(way_out(&lost), "Terminated, remove it");
    lost.finish();

    let rig = Rig::new();
    let held = hold(&rig);
    let request = held.binding.prepare_release(held.allocation).unwrap();
    rig.registry.invalidate_device(DEVICE, "gone").unwrap();
    let busy = "DeviceLost, let its calls end, execute or quarantine prepared releases, then confirm the end of its provider context";
    assert_eq!(way_out(&rig), busy);
    assert!(rig.registry.confirm_context_terminated(rig.context).is_err());
    let _ = request.quarantine_device_lost();
    assert_eq!(way_out(&rig), "DeviceLost, confirm the end of its provider context");
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    drop((held.binding, held.view));
    rig.finish();

    let idle = Rig::new();
    idle.registry.invalidate_device(DEVICE, "gone").unwrap();
    assert_eq!(way_out(&idle), "DeviceLost, remove it");
    idle.finish();
}

/// The report has each kind in its own count, in the value and in its text; so has the error of a wait that was over too soon.
#[test]
fn the_report() {
    let rig = Rig::new();
    let [one, two, three] = [(); 3].map(|()| hold(&rig));
    let request = two.binding.prepare_release(two.allocation).unwrap();
    quarantined(&rig);
    let leave = in_allocate(&rig, nothing_left);
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let Err(DrainError::TimedOut(report)) = drain.wait(Duration::from_millis(1)) else { panic!("not drained") };
    assert_eq!(report.snapshot, drain.report().snapshot);
    assert_eq!(report.snapshot, rig.registry.snapshot(rig.mechanism).unwrap());
    assert_eq!(report.snapshot.active_operations, 2);
    let identity = rig.mechanism.identity();
    assert_eq!(drain.mechanism(), identity);
    let text = format!(
        "{identity:?} of {DEVICE} is Retired, release what it owns, retry or abandon what is quarantined: operations in progress 1, live 2, \
         queued 1, quarantined 1 of 64 bytes"
    );
    let holders: String = report.holders.iter().map(|holder| format!("; {holder}")).collect();
    assert_eq!(report.to_string(), format!("{text}{holders}"));
    assert_eq!(DrainError::TimedOut(report).to_string(), format!("not drained in time: {text}{holders}"));
    let Err(error) = rig.registry.remove_when_drained(rig.mechanism).unwrap().wait(NOW) else { panic!("not drained") };
    assert!(error.to_string().starts_with(&format!("not drained in time: {text}")));
    assert!(format!("{drain:?}").contains(&format!("{identity:?}")));

    leave();
    request.execute();
    for held in [one, three] {
        held.binding.release(held.allocation).unwrap();
    }
    assert_eq!(rig.registry.abandon_quarantined(rig.mechanism, |_| true).unwrap().bytes(), 64);
    assert_eq!(drain.wait(NOW), Ok(()));
    assert!(drain.report().to_string().contains("operations in progress 0, live 0, queued 0, quarantined 0 of"));
    drop((drain, two.binding, two.view));
    rig.finish();
}

/// Times out: zero, short, longer than the clock goes, and long with somebody who leaves meanwhile.
#[test]
fn timeouts() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut drain = drain(&rig);
    for time in [NOW, Duration::from_nanos(1), Duration::from_millis(5)] {
        assert!(matches!(drain.wait(time), Err(DrainError::TimedOut(DrainReport { snapshot, .. })) if snapshot.lifecycle == Active));
    }
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    let leaver = thread::spawn(move || {
        registry.retire(mechanism).unwrap();
        held.binding.release(held.allocation).unwrap();
    });
    assert_eq!(drain.wait(Duration::MAX), Ok(()));
    leaver.join().unwrap();
    for time in [NOW, Duration::from_secs(1000), Duration::MAX] {
        assert_eq!(drain.wait(time), Ok(()));
    }
    drop((drain, held.view));
    rig.finish();
}

/// Tokens of another registry, and of what was removed, are refused; a refused call does nothing.
#[test]
fn foreign_and_removed_tokens() {
    let [rig, other] = [(); 2].map(|()| Rig::new());
    let gone = another(&rig, "B");
    rig.registry.retire(gone).unwrap();
    rig.registry.remove(gone).unwrap();
    let registry = &rig.registry;
    for (token, refusal) in [
        (other.mechanism, BindingError::ForeignRegistry { kind: "mechanism" }),
        (gone, BindingError::UnregisteredMechanism(gone.identity())),
    ] {
        let refusal = Expected::from(refusal);
        refused(registry.drain(token), refusal.clone());
        refused(registry.retire_and_drain(token), refusal.clone());
        refused(registry.remove_when_drained(token), refusal.clone());
        refused(registry.teardown(token), refusal);
    }
    for rig in [rig, other] {
        assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, Active);
        rig.finish();
    }
}

/// C104: what leaves between the look and the registration is not lost.
#[test]
fn a_leave_before_the_registration_is_seen() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let waker = waker_that_does(move || held.binding.release(held.allocation).unwrap());
    assert_eq!(ready(pin!(&mut drain).poll(&mut Context::from_waker(&waker))), Ok(()));
    drop((drain, held.view));
    rig.finish();
}

/// C107, C109: wherever a future stands when it is dropped, others are woken, and its waker is gone.
#[test]
fn dropped_at_each_stage() {
    for stage in ["made", "asleep", "asleep again", "woken", "done"] {
        let rig = Rig::new();
        let held = hold(&rig);
        let woken = [(); 2].map(|()| Arc::<Woken>::default());
        let mut first = rig.registry.retire_and_drain(rig.mechanism).unwrap();
        let mut second = drain(&rig);
        if stage != "made" {
            assert!(poll(&mut first, &woken[0]).is_pending());
        }
        if stage == "asleep again" {
            assert!(poll(&mut first, &woken[0]).is_pending());
            assert_eq!(Arc::strong_count(&woken[0]), 2, "one waker, however often it is polled");
        }
        assert!(poll(&mut second, &woken[1]).is_pending());
        let mut first = Some(first);
        if !["woken", "done"].contains(&stage) {
            first = None;
        }
        held.binding.release(held.allocation).unwrap();
        if stage == "done" {
            assert_eq!(ready(poll(first.as_mut().unwrap(), &woken[0])), Ok(()));
        }
        assert_eq!(times(&woken), [usize::from(first.is_some()), 1], "{stage}");
        drop(first);
        assert_eq!(Arc::strong_count(&woken[0]), 1, "{stage}: a waker stays behind");
        assert_eq!(ready(poll(&mut second, &woken[1])), Ok(()), "{stage}");
        assert_eq!(Arc::strong_count(&woken[1]), 1, "{stage}: a waker stays behind");
        drop((second, held.binding, held.view));
        rig.finish();
    }
}

/// A drain that moves to another task, and from a task to a thread and back, is woken where it was last.
#[test]
fn the_last_waker_counts() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let woken = [(); 3].map(|()| Arc::<Woken>::default());
    assert!(poll(&mut drain, &woken[0]).is_pending());
    assert!(poll(&mut drain, &woken[1]).is_pending());
    assert!(matches!(drain.wait(Duration::from_nanos(1)), Err(DrainError::TimedOut(_))));
    assert_eq!(woken.each_ref().map(Arc::strong_count), [1; 3]);
    assert!(poll(&mut drain, &woken[2]).is_pending());
    held.binding.release(held.allocation).unwrap();
    assert_eq!(times(&woken), [0, 0, 1]);
    drop((drain, held.binding, held.view));
    rig.finish();
}

/// C106: ten thousand wait for one mechanism, and all of them finish; each takes at most 256 bytes, a place of 24 bytes in a list that
/// doubles included.
#[test]
fn ten_thousand_drains() {
    const MANY: usize = 10_000;
    let rig = Rig::new();
    let held = hold(&rig);
    let mut drains: Vec<_> = (0..MANY).map(|_| drain(&rig)).collect();
    let woken = Arc::<Woken>::default();
    assert!(drains.iter_mut().all(|drain| poll(drain, &woken).is_pending()));
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(woken.times(), 0);
    held.binding.release(held.allocation).unwrap();
    assert_eq!(woken.times(), MANY);
    assert!(drains.iter_mut().all(|drain| ready(poll(drain, &woken)).is_ok()));
    assert_eq!((woken.times(), Arc::strong_count(&woken)), (MANY, 1));
    for bytes in [size_of::<Drain>(), size_of::<RemoveWhenDrained>(), size_of::<Teardown>()] {
        assert!(bytes + 2 * 24 <= 256, "{bytes} bytes");
    }
    drop((drains, held.binding, held.view));
    rig.finish();
}

/// They may be sent, shared, moved while they wait.
#[test]
fn they_belong_to_no_thread() {
    fn check<T: Send + Sync + Unpin + 'static>() {}
    check::<Drain>();
    check::<RemoveWhenDrained>();
    check::<Teardown>();
    check::<DrainError>();
    check::<RemovalError>();
    check::<StillHeld>();
}

/// A waker that panics is counted; the others are woken, and whoever was the last to leave is not told.
#[test]
fn a_waker_that_panics() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut drains = [(); 3].map(|()| drain(&rig));
    let woken = [Woken::with(|| panic!("a waker's own")), Woken::with(|| panic!("another's")), Arc::default()];
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(polled(&mut drains, &woken), [false; 3]);
    let before = suppressed_panics();
    held.binding.release(held.allocation).unwrap();
    // Other tests of this process count theirs.
    assert!(suppressed_panics() >= before + 2);
    assert_eq!(times(&woken), [1; 3]);
    assert_eq!(drains.each_mut().map(|drain| drain.wait(NOW)), [Ok(()), Ok(()), Ok(())]);
    drop((drains, held.binding, held.view));
    rig.finish();
}

/// So is one that panics while its notifier unwinds.
#[test]
fn a_waker_that_panics_while_unwinding() {
    let rig = Rig::new();
    let leave = in_allocate(&rig, || panic!("the allocator's own"));
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let woken = Woken::with(|| panic!("a waker's own"));
    assert!(poll(&mut drain, &woken).is_pending());
    leave();
    assert_eq!((woken.times(), drain.wait(NOW)), (1, Ok(())));
    drop(drain);
    rig.finish();
}

/// A waker that can't be cloned costs its own poll: the drain is as it was, and is woken through the waker before.
#[test]
fn a_waker_that_cannot_be_cloned() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let woken = Arc::<Woken>::default();
    assert!(poll(&mut drain, &woken).is_pending());
    let waker = waker_that_does(|| panic!("a waker's own"));
    catch_unwind(AssertUnwindSafe(|| pin!(&mut drain).poll(&mut Context::from_waker(&waker)))).unwrap_err();
    held.binding.release(held.allocation).unwrap();
    assert_eq!(woken.times(), 1);
    assert_eq!(ready(poll(&mut drain, &woken)), Ok(()));
    drop((drain, held.binding, held.view));
    rig.finish();
}

/// C136: a waker may call whatever it likes, end what is being woken, and retire, drain and remove others.
#[test]
fn a_waker_that_calls_everything() {
    let rig = Rig::new();
    let [busy, third] = ["B", "D"].map(|name| another(&rig, name));
    let binding = rig.registry.bind_registered(busy).unwrap();
    let allocation = binding.allocate(8, 8).unwrap();
    let woken_drain = Arc::new(Mutex::new(Some(rig.registry.retire_and_drain(busy).unwrap())));
    let (reach, registry, own) = (Reach::of(&rig), rig.registry.clone(), Arc::clone(&woken_drain));
    let woken = Woken::with(move || {
        let mut drain = own.lock().unwrap().take().unwrap();
        let inner = Arc::<Woken>::default();
        assert_eq!(ready(poll(&mut drain, &inner)), Ok(()));
        drop(drain);
        reach.whole_api();
        let mut removal = registry.remove_when_drained(third).unwrap();
        assert!(poll(&mut removal, &inner).is_pending());
        registry.retire(third).unwrap();
        assert_eq!(inner.times(), 1);
        ready(poll(&mut removal, &inner)).unwrap();
        assert_eq!(registry.drain(busy).unwrap().wait(Duration::MAX), Ok(()));
        let mut teardown = registry.teardown(busy).unwrap();
        registry.remove(busy).unwrap();
        assert_eq!(teardown.wait(NOW).unwrap_err().handles, 1, "the leaver's own");
    });
    assert!(poll(woken_drain.lock().unwrap().as_mut().unwrap(), &woken).is_pending());
    binding.release(allocation).unwrap();
    assert_eq!((woken.times(), Arc::strong_count(&woken)), (1, 1));
    assert!(woken_drain.lock().unwrap().is_none());
    rig.log.take();
    drop(binding);
    assert_eq!(rig.log.take(), ["B dropped"]);
    drop(woken);
    rig.finish();
}

/// A waker that does not return delays nobody: others work, wait, end lives and remove; what it kept from being woken sees the drain
/// when it looks, and is woken by whoever notifies next.
#[test]
fn a_waker_that_blocks() {
    let rig = Rig::new();
    let other = another(&rig, "B");
    let held = hold(&rig);
    let (stop, gate) = gate();
    let woken = [Woken::with(move || stop.park()), Arc::default(), Arc::default(), Arc::default()];
    let mut drains = [(); 4].map(|()| drain(&rig));
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(polled(&mut drains, &woken), [false; 4]);
    let (binding, allocation) = (held.binding, held.allocation);
    let stopped = thread::spawn(move || binding.release(allocation));
    gate.reached();
    assert_eq!(times(&woken), [1, 0, 0, 0]);

    let [mut blocked, mut behind, mut looks, dropped] = drains;
    let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
    in_time(move || {
        assert_eq!(registry.drain(mechanism).unwrap().wait(Duration::MAX), Ok(()));
        registry.select(other).unwrap();
        let binding = registry.bind(DEVICE).unwrap();
        let allocation = binding.allocate(8, 8).unwrap();
        let woken = Arc::<Woken>::default();
        let mut removal = registry.remove_when_drained(other).unwrap();
        assert!(poll(&mut removal, &woken).is_pending());
        registry.retire(other).unwrap();
        binding.release(allocation).unwrap();
        assert_eq!(woken.times(), 1);
        ready(poll(&mut removal, &woken)).unwrap();
        drop(dropped);
        registry.trim(DEVICE, 0);
        registry.retire(mechanism).unwrap();
    });
    assert_eq!(times(&woken)[..2], [1, 1], "the next one who notifies");
    assert_eq!(woken.each_ref().map(Arc::strong_count)[2..], [1, 1]);
    assert_eq!([&mut blocked, &mut behind, &mut looks].map(|drain| ready(poll(drain, &woken[1]))), [Ok(()); 3]);
    drop((blocked, behind, looks));
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(teardown.wait(NOW).unwrap_err().handles, 2, "the stopped one's, and the view's");
    gate.open();
    stopped.join().unwrap().unwrap();
    rig.log.take();
    drop(held.view);
    assert_eq!(rig.log.take(), ["A dropped"]);
    assert_eq!(teardown.wait(NOW), Ok(()));
}

/// Who releases without a binding holds nothing when wakers are called: one that does not return keeps no resource.
#[test]
fn a_waker_that_blocks_keeps_no_request() {
    type Release = fn(PreparedAllocationRelease, &BoundedQueue);
    let executed: Release = |request, _| assert!(request.execute().is_complete());
    let drained: Release = |request, queue| {
        queue.enqueue(request).unwrap();
        assert_eq!(queue.drain(1).released, 1);
    };
    for release in [executed, drained] {
        let rig = Rig::new();
        let binding = rig.registry.bind(DEVICE).unwrap();
        let request = binding.prepare_release(binding.allocate(64, 8).unwrap()).unwrap();
        drop(binding);
        rig.registry.retire(rig.mechanism).unwrap();
        let (stop, gate) = gate();
        let mut drain = drain(&rig);
        assert!(poll(&mut drain, &Woken::with(move || stop.park())).is_pending());
        let stopped = thread::spawn(move || release(request, &BoundedQueue::new(1)));
        gate.reached();
        rig.log.take();
        rig.registry.remove(rig.mechanism).unwrap();
        assert_eq!(rig.log.take(), ["A dropped"]);
        gate.open();
        stopped.join().unwrap();
    }
}

/// What the crate documentation advises where a waker may block: its owner has it called elsewhere. Then not even a future behind it is
/// delayed, with nothing else happening.
#[test]
fn a_waker_that_blocks_elsewhere() {
    struct Elsewhere(Waker);
    impl Wake for Elsewhere {
        fn wake(self: Arc<Self>) {
            thread::spawn(move || self.0.wake_by_ref());
        }
    }

    let rig = Rig::new();
    let held = hold(&rig);
    let (stop, gate) = gate();
    let (behind, reached) = channel();
    let tell = || {
        let behind = behind.clone();
        Woken::with(move || behind.send(()).unwrap())
    };
    let woken = [Woken::with(move || stop.park()), tell(), tell()];
    let mut drains = [(); 3].map(|()| drain(&rig));
    rig.registry.retire(rig.mechanism).unwrap();
    for (drain, woken) in drains.iter_mut().zip(&woken) {
        let elsewhere = Waker::from(Arc::new(Elsewhere(Waker::from(Arc::clone(woken)))));
        assert!(pin!(drain).poll(&mut Context::from_waker(&elsewhere)).is_pending());
    }
    in_time(move || {
        held.binding.release(held.allocation).unwrap();
        gate.reached();
        reached.recv().unwrap();
        reached.recv().unwrap();
        gate.open();
    });
    assert_eq!(polled(&mut drains, &woken), [true; 3]);
    assert_eq!(times(&woken), [1; 3]);
}

/// R107: nor does it keep resources for a call that brings no handle: the mechanism is removed and destroyed beside a trim, a retry or a
/// giving up that has made it drain, and whose waker does not return.
#[test]
fn a_waker_that_blocks_keeps_no_resource() {
    type Call = fn(&BindingRegistry, RegisteredMechanism);
    let calls: [(&str, Call, &[&str]); 3] = [
        ("trim", |registry, _| assert_eq!(registry.trim(DEVICE, 0), 0), &["A dropped"]),
        (
            "retry",
            |registry, mechanism| assert_eq!(registry.retry_quarantined(mechanism, usize::MAX).unwrap().released, 1),
            &["A release 64 8", "A dropped"],
        ),
        (
            "giving up",
            |registry, mechanism| assert_eq!(registry.abandon_quarantined(mechanism, |_| true).unwrap().bytes(), 64),
            &["A dropped"],
        ),
    ];
    for (name, call, log) in calls {
        let rig = Rig::new();
        quarantined(&rig);
        let (registry, mechanism) = (rig.registry.clone(), rig.mechanism);
        if name == "trim" {
            // While it is asked, the last that it owns goes.
            arm(&rig.script.trim, move || assert_eq!(registry.abandon_quarantined(mechanism, |_| true).unwrap().bytes(), 64));
        }
        let mut drain = rig.registry.retire_and_drain(mechanism).unwrap();
        let mut teardown = rig.registry.teardown(mechanism).unwrap();
        let (stop, gate) = gate();
        assert!(poll(&mut drain, &Woken::with(move || stop.park())).is_pending());
        let registry = rig.registry.clone();
        let stopped = thread::spawn(move || call(&registry, mechanism));
        gate.reached();
        rig.registry.remove(mechanism).unwrap();
        let torn_down = teardown.wait(NOW);
        gate.open();
        stopped.join().unwrap();
        assert_eq!((torn_down, rig.log.take()), (Ok(()), log.iter().map(|line| String::from(*line)).collect()), "kept by a {name}");
    }
}

/// A thread may wait in the destructor of a thread-local, when it exits.
#[test]
fn a_thread_waits_when_it_exits() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut drain = rig.registry.retire_and_drain(rig.mechanism).unwrap();
    let (tells, told) = channel();
    let (waits, it_waits) = channel();
    let waiting = thread::spawn(move || {
        let wait: Leave = Box::new(move || {
            waits.send(()).unwrap();
            tells.send(drain.wait(Duration::MAX)).unwrap();
        });
        AT_EXIT.with_borrow_mut(|at_exit| *at_exit = Some(Leaves(Some(wait))));
    });
    it_waits.recv().unwrap();
    held.binding.release(held.allocation).unwrap();
    drop((held.binding, held.view));
    in_time(move || waiting.join().unwrap());
    assert_eq!(told.recv().unwrap(), Ok(()));
    rig.finish();
}

/// The registry's end ends every wait for a mechanism that had not drained, also while bindings live on; what had drained has drained.
#[test]
fn the_registry_goes() {
    for active in [true, false] {
        let rig = Rig::new();
        let drained = another(&rig, "B");
        let held = hold(&rig);
        if !active {
            rig.registry.retire(rig.mechanism).unwrap();
        }
        let mut done = rig.registry.retire_and_drain(drained).unwrap();
        let mut drain = drain(&rig);
        let mut removal = rig.registry.remove_when_drained(rig.mechanism).unwrap();
        let mut late = rig.registry.remove_when_drained(drained).unwrap();
        let woken = [(); 2].map(|()| Arc::<Woken>::default());
        assert!(poll(&mut drain, &woken[0]).is_pending());
        assert!(poll(&mut removal, &woken[1]).is_pending());
        let (mut waiting, mut removing) =
            (rig.registry.drain(rig.mechanism).unwrap(), rig.registry.remove_when_drained(rig.mechanism).unwrap());
        let waiting = waits(move |long| waiting.wait(long));
        let removing = waits(move |long| removing.wait(long));
        assert_eq!(times(&woken), [0, 0]);
        rig.log.take();
        drop(rig.registry);
        assert_eq!(rig.log.take(), ["B dropped"], "a drain keeps no resource");
        assert_eq!(times(&woken), [1, 1], "nobody tells");
        assert_eq!(ready(poll(&mut drain, &woken[0])), Err(GONE));
        assert!(matches!(ready(poll(&mut removal, &woken[1])), Err(RemovalError::RegistryGone(GONE))));
        assert_eq!(in_time(|| waiting.join().unwrap()), Err(DrainError::RegistryGone(GONE)));
        assert!(matches!(in_time(|| removing.join().unwrap()), Err(RemovalError::RegistryGone(GONE))));
        assert_eq!(done.wait(NOW), Ok(()));
        assert!(matches!(late.wait(NOW), Err(RemovalError::RegistryGone(GONE))), "nobody removes it any more");
        assert_eq!(drain.report().snapshot.live_allocations, 1);
        assert_eq!(held.binding.allocate(8, 8).is_ok(), active, "R56");
        assert_eq!(drain.wait(Duration::MAX), Err(DrainError::RegistryGone(GONE)));
        assert_eq!(DrainError::RegistryGone(GONE).to_string(), GONE.to_string());
        drop(held);
        assert_eq!(rig.log.take().last().unwrap(), "C dropped");
    }
}

/// A destructor that panics keeps nobody from hearing of the registry's end.
#[test]
fn the_registry_goes_with_a_panic() {
    let rig = Rig::new();
    let mut drain = drain(&rig);
    let woken = Arc::<Woken>::default();
    assert!(poll(&mut drain, &woken).is_pending());
    arm(&rig.script.drop, || panic!("the allocator's own"));
    catch_unwind(AssertUnwindSafe(|| drop(rig.registry))).unwrap_err();
    assert_eq!(woken.times(), 1);
    assert_eq!(ready(poll(&mut drain, &woken)), Err(GONE));
}

/// Somebody else removes it: it has drained, and there is nothing left to be removed.
#[test]
fn removed_by_another() {
    let rig = Rig::new();
    let [b, c] = ["B", "D"].map(|name| another(&rig, name));
    for (mechanism, looks_before) in [(b, true), (c, false)] {
        let mut drain = rig.registry.drain(mechanism).unwrap();
        let mut removal = rig.registry.remove_when_drained(mechanism).unwrap();
        let woken = Arc::<Woken>::default();
        if looks_before {
            assert!(poll(&mut drain, &woken).is_pending());
            assert!(poll(&mut removal, &woken).is_pending());
        }
        rig.registry.retire(mechanism).unwrap();
        rig.registry.remove(mechanism).unwrap();
        assert_eq!(ready(poll(&mut drain, &woken)), Ok(()));
        for _ in 0..2 {
            let refusal = match ready(poll(&mut removal, &woken)) {
                Err(RemovalError::Refused(refusal)) => Err::<(), _>(refusal),
                other => panic!("{other:?}"),
            };
            refused(refusal, BindingError::UnregisteredMechanism(mechanism.identity()));
        }
    }
    rig.finish();
}

/// The removal happens within the poll, on its thread, and so do the destructors.
#[test]
fn it_is_removed_within_the_poll() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut removal = rig.registry.remove_when_drained(rig.mechanism).unwrap();
    let woken = Arc::<Woken>::default();
    assert!(poll(&mut removal, &woken).is_pending());
    rig.registry.retire(rig.mechanism).unwrap();
    assert!(poll(&mut removal, &woken).is_pending());
    held.binding.release(held.allocation).unwrap();
    drop((held.binding, held.view));
    assert_eq!(woken.times(), 1);
    rig.log.take();
    assert_eq!(removal.report().snapshot, rig.registry.snapshot(rig.mechanism).unwrap(), "it is still there");
    let (thread, on_thread) = (thread::current().id(), Arc::new(Mutex::new(None)));
    let ran_on = Arc::clone(&on_thread);
    arm(&rig.script.drop, move || *ran_on.lock().unwrap() = Some(thread::current().id()));
    ready(poll(&mut removal, &woken)).unwrap();
    assert_eq!(*on_thread.lock().unwrap(), Some(thread));
    assert_eq!(rig.log.take(), ["A dropped"]);
    assert_eq!(rig.registry.snapshots().unwrap(), []);
    assert!(format!("{removal:?}").contains(&format!("{:?}", rig.mechanism.identity())));

    // With the thread, over a handle.
    let b = another(&rig, "B");
    let binding = rig.registry.bind_registered(b).unwrap();
    let mut removal = rig.registry.remove_when_drained(b).unwrap();
    let removing = waits(move |long| removal.wait(long));
    rig.registry.retire(b).unwrap();
    in_time(|| removing.join().unwrap()).unwrap();
    refused(rig.registry.snapshot(b), BindingError::UnregisteredMechanism(b.identity()));
    rig.log.take();
    drop(binding);
    assert_eq!(rig.log.take(), ["B dropped"]);
}

/// From a lost device it is removed once what it had has been written off.
#[test]
fn it_is_removed_from_a_lost_device() {
    let rig = Rig::new();
    let held = hold(&rig);
    let mut removal = rig.registry.remove_when_drained(rig.mechanism).unwrap();
    let woken = Arc::<Woken>::default();
    bring(&rig, DeviceLost);
    assert!(poll(&mut removal, &woken).is_pending());
    rig.registry.confirm_context_terminated(rig.context).unwrap();
    assert_eq!(woken.times(), 1);
    ready(poll(&mut removal, &woken)).unwrap();
    assert_eq!(rig.registry.snapshots().unwrap(), []);
    rig.log.take();
    drop(held);
    assert_eq!(rig.log.take(), ["A dropped"]);
}

/// A destructor's panic comes out of the poll or the wait, and the mechanism is gone.
#[test]
fn a_removal_that_panics() {
    for blocking in [false, true] {
        let rig = Rig::new();
        let mut removal = rig.registry.remove_when_drained(rig.mechanism).unwrap();
        let woken = Arc::<Woken>::default();
        assert!(poll(&mut removal, &woken).is_pending());
        rig.registry.retire(rig.mechanism).unwrap();
        arm(&rig.script.drop, || panic!("the allocator's own"));
        let result = catch_unwind(AssertUnwindSafe(|| match blocking {
            true => removal.wait(Duration::MAX),
            false => ready(poll(&mut removal, &woken)),
        }));
        assert_eq!(*result.unwrap_err().downcast::<&str>().unwrap(), "the allocator's own");
        assert_eq!(rig.registry.snapshots().unwrap(), []);
        assert!(matches!(removal.wait(NOW), Err(RemovalError::Refused(BindingError::UnregisteredMechanism(_)))));
        drop(removal);
        assert_eq!(Arc::strong_count(&woken), 1);
        rig.registry.remove_authority(rig.authority).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
    }
}

/// A waker that panics when it is dropped takes no result with it: what a poll has removed, it says.
#[test]
fn a_waker_that_panics_when_it_is_dropped() {
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a waker's own");
        }
    }

    let rig = Rig::new();
    // So that the removal tears nothing down, which would wake.
    let binding = rig.registry.bind(DEVICE).unwrap();
    let (mut first, mut removal) = (drain(&rig), rig.registry.remove_when_drained(rig.mechanism).unwrap());
    // The first waker polls the removal, whose own waker, not woken yet, is dropped by that.
    let next = Arc::new(Mutex::new(None::<RemoveWhenDrained>));
    let (tells, told) = channel();
    let woken = Woken::with({
        let next = Arc::clone(&next);
        move || {
            let mut removal = next.lock().unwrap().take().unwrap();
            tells.send(catch_unwind(AssertUnwindSafe(|| poll(&mut removal, &Arc::default())))).unwrap();
        }
    });
    assert!(poll(&mut first, &woken).is_pending());
    let panics = Panics;
    let waker = Waker::from(Woken::with(move || mem::forget(panics)));
    assert!(pin!(&mut removal).poll(&mut Context::from_waker(&waker)).is_pending());
    drop(waker);
    *next.lock().unwrap() = Some(removal);
    let before = suppressed_panics();
    rig.registry.retire(rig.mechanism).unwrap();
    ready(told.recv().unwrap().expect("the waker's own panic came out of the poll")).unwrap();
    assert!(suppressed_panics() > before);
    assert_eq!(rig.registry.snapshots().unwrap(), []);
    rig.log.take();
    drop((first, binding));
    assert_eq!(rig.log.take(), ["A dropped"]);
}

/// Dropped before, it removes nothing; of two, one removes.
#[test]
fn one_removal_removes() {
    let rig = Rig::new();
    let woken = Arc::<Woken>::default();
    let mut dropped = rig.registry.remove_when_drained(rig.mechanism).unwrap();
    assert!(poll(&mut dropped, &woken).is_pending());
    let mut removals = [(); 2].map(|()| rig.registry.remove_when_drained(rig.mechanism).unwrap());
    assert!(removals.iter_mut().all(|removal| poll(removal, &woken).is_pending()));
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(woken.times(), 3);
    drop(dropped);
    assert_eq!(rig.registry.snapshot(rig.mechanism).unwrap().lifecycle, Retired);
    let results = removals.each_mut().map(|removal| ready(poll(removal, &woken)));
    assert!(matches!(results, [Ok(()), Err(RemovalError::Refused(BindingError::UnregisteredMechanism(_)))]), "{results:?}");
    assert_eq!(rig.registry.snapshots().unwrap(), []);
}

/// Waits for its mechanism to be torn down, and expects that it is not: from within a destructor of it.
fn not_yet(rig: &Rig, tells: &Sender<usize>) -> Leave {
    let (mut teardown, tells) = (rig.registry.teardown(rig.mechanism).unwrap(), tells.clone());
    Box::new(move || tells.send(teardown.wait(NOW).expect_err("it is torn down already").handles).unwrap())
}

/// R48: a teardown has ended when the context has been destroyed, not before, also when destructors panic: told once.
#[test]
fn a_teardown_ends_behind_the_context() {
    for panics in [false, true] {
        let rig = Rig::new();
        let held = hold(&rig);
        let (tells, told) = channel();
        for hook in [&rig.script.drop, &rig.script.authority_drop, &rig.script.context_drop] {
            let look = not_yet(&rig, &tells);
            arm(hook, move || {
                look();
                assert!(!panics, "a destructor's own");
            });
        }
        let woken = Arc::<Woken>::default();
        let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
        assert_eq!(teardown.mechanism(), rig.mechanism.identity());
        let mut on_a_thread = rig.registry.teardown(rig.mechanism).unwrap();
        held.binding.release(held.allocation).unwrap();
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        rig.registry.remove_authority(rig.authority).unwrap();
        rig.registry.remove_provider_context(rig.context).unwrap();
        rig.log.take();
        assert!(poll(&mut teardown, &woken).is_pending());
        let waiting = waits(move |long| on_a_thread.wait(long));
        drop(held.view);
        assert_eq!((teardown.wait(NOW).unwrap_err().handles, woken.times()), (1, 0));
        let result = catch_unwind(AssertUnwindSafe(|| drop(held.binding)));
        assert_eq!(result.is_err(), panics);
        assert_eq!(rig.log.take(), ["A dropped", "Q dropped", "C dropped"]);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [0; 3]);
        assert_eq!(woken.times(), 1, "nobody tells");
        ready(poll(&mut teardown, &woken));
        assert_eq!(in_time(|| waiting.join().unwrap()), Ok(()));
        assert_eq!(teardown.wait(NOW), Ok(()));
        assert_eq!(woken.times(), 1);
        assert!(format!("{teardown:?}").contains(&format!("{:?}", rig.mechanism.identity())));
    }
}

/// R50, R56: a teardown waits for the last handle, removed or left behind by its registry; without one the removal tells.
#[test]
fn a_teardown_waits_for_the_last_handle() {
    // Removed with no handle left.
    let rig = Rig::new();
    let woken = Arc::<Woken>::default();
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
    assert!(poll(&mut teardown, &woken).is_pending());
    rig.registry.retire(rig.mechanism).unwrap();
    assert!(poll(&mut teardown, &woken).is_pending());
    let before = woken.times();
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(woken.times(), before + 1);
    ready(poll(&mut teardown, &woken));

    // Left behind by its registry.
    let rig = Rig::new();
    let binding = rig.registry.bind(DEVICE).unwrap();
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
    drop(rig.registry);
    assert_eq!(teardown.wait(NOW).unwrap_err().handles, 1);
    let allocation = binding.allocate(8, 8).unwrap();
    assert_eq!(teardown.wait(NOW).unwrap_err().handles, 2);
    binding.release(allocation).unwrap();
    assert!(poll(&mut teardown, &woken).is_pending());
    let before = woken.times();
    thread::spawn(|| drop(binding)).join().unwrap();
    assert_eq!(woken.times(), before + 1);
    ready(poll(&mut teardown, &woken));

    // At the registry's end, with no handle left.
    let rig = Rig::new();
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
    assert!(poll(&mut teardown, &woken).is_pending());
    drop(rig.registry);
    ready(poll(&mut teardown, &woken));
}

/// One mechanism's teardown within another's: both are told before the outermost call returns.
#[test]
fn a_teardown_within_a_teardown() {
    let rig = Rig::new();
    let b = another(&rig, "B");
    let binding = rig.registry.bind_registered(b).unwrap();
    let woken = [(); 2].map(|()| Arc::<Woken>::default());
    let mut teardowns = [rig.mechanism, b].map(|mechanism| rig.registry.teardown(mechanism).unwrap());
    for (teardown, woken) in teardowns.iter_mut().zip(&woken) {
        assert!(poll(teardown, woken).is_pending());
    }
    for mechanism in [rig.mechanism, b] {
        rig.registry.retire(mechanism).unwrap();
    }
    rig.registry.remove(b).unwrap();
    let before = times(&woken);
    for (teardown, woken) in teardowns.iter_mut().zip(&woken) {
        assert!(poll(teardown, woken).is_pending());
    }
    arm(&rig.script.drop, move || drop(binding));
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(times(&woken), before.map(|times| times + 1));
    assert_eq!(teardowns.each_mut().map(|teardown| teardown.wait(NOW)), [Ok(()), Ok(())]);
}

/// R50, R107: a waker is within nobody's teardown, also one that a removal or the registry's end calls: what it lets go of last is destroyed
/// then and there, so it may wait for that, and one that does not return keeps nothing else.
#[test]
fn what_a_waker_lets_go_of_is_destroyed_at_once() {
    for by_the_registrys_end in [false, true] {
        let rig = Rig::new();
        let (b, binding) = (another(&rig, "B"), rig.registry.bind_registered(rig.mechanism).unwrap());
        rig.registry.retire(rig.mechanism).unwrap();
        rig.registry.remove(rig.mechanism).unwrap();
        rig.registry.retire(b).unwrap();
        let mut teardown = rig.registry.teardown(b).unwrap();
        let (log, destroyed) = (rig.log.clone(), Arc::<Mutex<Vec<String>>>::default());
        let seen = Arc::clone(&destroyed);
        let woken = Woken::with(move || {
            log.take();
            drop(binding);
            *seen.lock().unwrap() = log.take();
        });
        assert!(poll(&mut teardown, &woken).is_pending());
        if by_the_registrys_end {
            drop(rig.registry);
        } else {
            rig.registry.remove(b).unwrap();
        }
        assert!(poll(&mut teardown, &woken).is_ready());
        let all = ["A dropped", "Q dropped", "C dropped"];
        assert_eq!(*destroyed.lock().unwrap(), all[..if by_the_registrys_end { 3 } else { 1 }], "left to the call that has woken");
    }
}

/// What a teardown waits for is counted, before the removal and after it.
#[test]
fn handles_are_counted() {
    let rig = Rig::new();
    let mut teardown = rig.registry.teardown(rig.mechanism).unwrap();
    let mut handles = move || teardown.wait(NOW).unwrap_err();
    assert_eq!(handles().handles, 0, "registered");
    let held = hold(&rig);
    assert_eq!(handles().handles, 2, "a binding and an allocation; a view shares the allocation's");
    let clone = held.binding.clone();
    let owner = held.binding.allocate_owning(8, 8).unwrap();
    let view = owner.view(0, 8).unwrap();
    assert_eq!(handles().handles, 4);
    let elsewhere = thread::scope(|scope| scope.spawn(|| rig.registry.bind(DEVICE).unwrap()).join().unwrap());
    assert_eq!(handles().handles, 5);
    let text = handles().to_string();
    let identity = rig.mechanism.identity();
    assert_eq!(
        text,
        format!(
            "{identity:?} is not torn down, handles that hold it: 5; remove it unless it is removed, and drop its bindings and what was made with them"
        )
    );

    let own = Capable::of(&rig);
    let prefix = own.mapping.create_shared_prefix(8).unwrap();
    assert_eq!(handles().handles, 9, "a binding, two capabilities and a prefix");
    let committed = own.backing.allocate_committed(8, 8, &[]).unwrap();
    assert_eq!(handles().handles, 10);
    own.binding.release(committed).unwrap();
    drop((own, prefix));
    let request = clone.prepare_release(clone.allocate(8, 8).unwrap()).unwrap();
    assert_eq!(handles().handles, 6);
    request.execute();
    assert_eq!(handles().handles, 5);

    drop(view);
    assert!(owner.release_now().unwrap().is_complete());
    held.binding.release(held.allocation).unwrap();
    assert_eq!(handles().handles, 4, "the view keeps what it sees");
    rig.registry.retire(rig.mechanism).unwrap();
    assert_eq!(handles().handles, 4);
    rig.registry.remove(rig.mechanism).unwrap();
    assert_eq!(handles().handles, 4);
    assert_eq!(handles().mechanism, identity);
    let another = clone.clone();
    assert_eq!(handles().handles, 5);
    thread::spawn(move || drop((another, elsewhere))).join().unwrap();
    assert_eq!(handles().handles, 3);
    drop(held.view);
    assert_eq!(handles().handles, 2);
    drop(clone);
    assert_eq!(handles().handles, 1);
}
