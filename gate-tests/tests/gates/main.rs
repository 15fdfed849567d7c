//! What happens when calls meet in the middle: deterministic, on the real registry, without a stub and without a sleep.
//!
//! The library is compiled with hooks at the named steps of its protocols ([`Step`](liveslot_gated::internals::gates::Step)). A
//! test arms a step, and what it armed runs there, once: the racing calls themselves, or another thread that begins a call and is
//! stopped at a step of its own until the test lets it go on. A call that has to get by without the stopped one then shows
//! that it does.
//!
//! | file | what meets |
//! | --- | --- |
//! | [`selection`] | select, register, retire and bind on one slot; the regressions that this library began with |
//! | [`loss`] | the loss of a device and everything else |
//! | [`removal`] | a stopped retirement or removal, and what others may do meanwhile |
//! | [`release`] | a release that was decided upon and not counted |
//! | [`queue`] | a thread that is stopped in the bounded queue, and the others |
//! | [`teardown`] | the last pin, of every kind, and what it destroys in which order |
//! | [`shutdown`] | shutdowns at once: who destroys what |
//! | [`drain`] | drains, and leavers, ends of lives and refusals that are stopped before they tell |
//! | [`watch`] | watches, and calls that are stopped before they tell |
//! | [`exhaustion`] | no identity is left |

mod drain;
mod exhaustion;
mod loss;
mod queue;
mod release;
mod removal;
mod selection;
mod shutdown;
mod support;
mod teardown;
mod watch;
