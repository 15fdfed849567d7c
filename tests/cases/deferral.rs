//! Memory is freed under work that uses it.

use crate::{
    common::{
        another::another,
        refused::refused,
        rig::{DEVICE, Rig},
    },
    work::{Waiting, Work},
};
use liveslot::*;
use std::thread;

/// C096, R82, R83, R96: a block that two streams use is free after both. A use that the release does not name is a view of the owner's: as
/// long as there is one the release is refused, and no queue called.
#[test]
fn a_release_waits_for_every_use() {
    let rig = Rig::new();
    let (waiting, first, second) = (Waiting::default(), Work::default(), Work::default());
    let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
    let identity = owner.identity();
    let used_by_first = owner.view(0, 16).unwrap();
    let used_by_second = used_by_first.clone();
    rig.log.take();
    let names_first_alone = |owner: OwningAllocation, views| {
        let (error, owner) = owner.release_deferred(&waiting.after(&[&first])).unwrap_err().into_parts();
        refused::<()>(Err(error), BindingError::OutstandingViews { identity, views });
        owner
    };
    let owner = names_first_alone(owner, 2);
    drop(used_by_first);
    let owner = names_first_alone(owner, 1);
    drop(used_by_second);
    assert!(owner.release_deferred(&waiting.after(&[&first, &second])).unwrap().is_queued());

    first.complete();
    assert_eq!(waiting.poll(), (0, 0));
    assert_eq!(rig.log.take(), [""; 0]);
    second.complete();
    assert_eq!(waiting.poll(), (1, 0));
    assert_eq!(rig.log.take(), ["A release 16 8"]);
    rig.finish();
}

/// C097, R30, R36, R42, R46, R51, R86, R88: nothing frees what queued work uses: no selection, no retirement, no attempt at removal, no
/// loss, no forgotten owner, no end of the registry. It is freed by its completion, once, or, if the work is given up, never by itself.
#[test]
fn nothing_frees_what_queued_work_uses() {
    for (lose, give_up) in [(false, false), (false, true), (true, false), (true, true)] {
        let rig = Rig::new();
        let (waiting, work) = (Waiting::default(), Work::default());
        let binding = rig.registry.bind(DEVICE).unwrap();
        let [deferred, forgotten] = [(); 2].map(|()| binding.allocate_owning(16, 8).unwrap());
        let plain = binding.allocate(16, 8).unwrap();
        assert!(deferred.release_deferred(&waiting.after(&[&work])).unwrap().is_queued());
        rig.log.take();

        drop((plain, forgotten));
        let next = another(&rig, "B");
        rig.registry.select(next).unwrap();
        rig.registry.retire(rig.mechanism).unwrap();
        if lose {
            rig.registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
            rig.registry.remove(next).unwrap();
            let busy = BindingError::ContextNotQuiescent { context: rig.context.identity(), active_operations: 1 };
            refused(rig.registry.confirm_context_terminated(rig.context), busy);
            assert_eq!(rig.log.take(), ["B dropped"]);
        } else {
            let living = (rig.mechanism, MechanismLifecycle::Retired);
            refused(rig.registry.confirm_context_terminated(rig.context), living);
        }
        // The forgotten owner's block comes first.
        let owning = BindingError::QuarantinedOwnership { mechanism: rig.mechanism.identity(), quarantined: 1 };
        refused(rig.registry.remove(rig.mechanism), owning);
        let Rig { registry, log, context, authority, .. } = rig;
        refused(registry.remove_provider_context(context), BindingError::ProviderContextInUse(context.identity()));
        refused(registry.remove_authority(authority), BindingError::AuthorityInUse(authority.identity()));
        // On a lost device the queue would not wait.
        let still_waits = || assert!(lose || waiting.poll() == (0, 0));
        still_waits();
        drop((registry, binding));
        still_waits();
        let others: &[&str] = if lose { &[] } else { &["B dropped"] };
        assert_eq!(log.take(), others);

        let released: &[&str] = match (lose, give_up) {
            (false, false) => &["A release 16 8"],
            _ => &[],
        };
        if give_up {
            drop(waiting);
        } else {
            work.complete();
            assert_eq!(waiting.poll(), if lose { (0, 1) } else { (1, 0) });
        }
        assert_eq!(log.take(), [released, &["A dropped", "Q dropped", "C dropped"]].concat());
    }
}

/// C097, R42, R88: a mechanism that has nothing out but what queued work uses can't be removed.
#[test]
fn queued_work_alone_keeps_its_mechanism() {
    for lose in [false, true] {
        let rig = Rig::new();
        let (waiting, work) = (Waiting::default(), Work::default());
        let owner = rig.registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
        assert!(owner.release_deferred(&waiting.after(&[&work])).unwrap().is_queued());
        rig.registry.retire(rig.mechanism).unwrap();
        if lose {
            rig.registry.invalidate_device(DEVICE, "fell off the bus").unwrap();
        }
        let lifecycle = rig.registry.snapshot(rig.mechanism).unwrap().lifecycle;
        refused(rig.registry.remove(rig.mechanism), (rig.mechanism, lifecycle));
        work.complete();
        assert_eq!(waiting.poll(), if lose { (0, 1) } else { (1, 0) });
        if lose {
            rig.registry.confirm_context_terminated(rig.context).unwrap();
        }
        rig.finish();
    }
}

/// C102, R48, R56, R57, R88: who defers a release may return, and everything that he had may go: what the release needs stays until it is
/// made, wherever that happens.
#[test]
fn what_a_waiting_release_needs_stays() {
    let Rig { registry, log, .. } = Rig::new();
    let (waiting, work) = (Waiting::default(), Work::default());
    let needs = &[&work];
    thread::scope(|scope| {
        scope.spawn(|| {
            let owner = registry.bind(DEVICE).unwrap().allocate_owning(16, 8).unwrap();
            assert!(owner.release_deferred(&waiting.after(needs)).unwrap().is_queued());
        });
    });
    drop(registry);
    assert_eq!(log.take(), ["A allocate 16 8"]);
    work.complete();
    thread::spawn(move || assert_eq!(waiting.poll(), (1, 0))).join().unwrap();
    assert_eq!(log.take(), ["A release 16 8", "A dropped", "Q dropped", "C dropped"]);
}
