//! A paged key-value cache, as an inference server keeps one, on address space whose pages come and go.
//!
//! A sequence reserves addresses for as many tokens as it may ever have; its pages are committed as tokens come, and
//! decommitted when it is rolled back or ends. All sequences begin with the same prompt, whose pages exist once and are
//! mapped into each. The memory is `VirtualMemory`, reached through the registry.
//!
//! After each step the example compares what the cache believes with what the kernel says in `/proc/self/smaps`, and it
//! ends as a server does that is told to stop: the mechanism is retired, nothing new is begun, what is there ends.
//!
//! ```text
//! cargo run --release --example kv_cache
//! ```
//!
//! | Module | What |
//! | --- | --- |
//! | `shape` | where a sequence's tokens lie, and which pages they need |
//! | `cache` | sequences: begin, append, truncate, read, end |
//! | `resident` | Rss and Pss of an address range |
//! | `account` | the table, and the comparison |
//!
//! Exit code 0: all figures agree. 1: they do not, or a step failed, or the options do not fit together. 2: an option is
//! out of its range.

mod account;
mod cache;
mod resident;
mod shape;

use std::error::Error;
use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser;
use liveslot::{BindingError, BindingRegistry, DeviceKey, MechanismLifecycle, VirtualMemory};

use crate::account::Account;
use crate::cache::{Cache, CacheError, Sequence};
use crate::shape::Shape;

/// A paged key-value cache on real pages, and what the kernel says about them.
///
/// Exit code 0: the kernel's figures are those of the cache. 1: they are not, or a step failed, or the options do not fit together.
/// 2: an option is out of its range.
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// Sequences at once, 1 to 4096
    #[arg(long, value_name = "COUNT", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..=4096))]
    sequences: u16,

    /// Tokens that each sequence adds to its prompt, 1 to 1 000 000
    #[arg(long, value_name = "COUNT", default_value_t = 250, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    tokens: u32,

    /// Bytes that the keys and values of one token take, 1 to 16 777 216. The default is one layer's with 10 heads of 128 16-bit numbers
    #[arg(long, value_name = "BYTES", default_value_t = 5120, value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    token_bytes: u32,

    /// Tokens of the prompt that all sequences share, 1 to 1 000 000
    #[arg(long, value_name = "COUNT", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    prompt_tokens: u32,

    /// Tokens that a sequence has addresses for, the prompt included
    #[arg(long, value_name = "COUNT", default_value_t = 8192)]
    context: usize,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(failure) => {
            eprintln!("kv_cache: {failure}");
            ExitCode::FAILURE
        }
    }
}

/// Whether all figures agreed.
fn run(options: &Options) -> Result<bool, Box<dyn Error>> {
    let (count, tokens, prompt_tokens) = (usize::from(options.sequences), options.tokens as usize, options.prompt_tokens as usize);
    let memory = VirtualMemory::default();
    let shape = Shape::new(memory.page_bytes(), options.token_bytes as usize, prompt_tokens, tokens, options.context)?;
    shape.check_memory(count, tokens, resident::available()?)?;

    let registry = BindingRegistry::new()?;
    let context = registry.register_provider_context(DeviceKey::HOST, Arc::new("this process"))?;
    let authority = registry.register_authority(DeviceKey::HOST, Arc::new("nobody limits it"))?;
    let mechanism = registry.register_allocator(context, authority, Arc::new(memory))?;
    let cache = Cache::new(registry.bind(DeviceKey::HOST)?, shape)?;

    let mut account = Account::new(shape);
    account.step(format_args!("a prompt of {prompt_tokens} tokens"), &cache, &[])?;

    let mut sequences = (1..=count).map(|number| cache.begin(number)).collect::<Result<Vec<_>, _>>()?;
    account.step("every sequence begins with it", &cache, &sequences)?;

    for _ in 0..tokens {
        sequences.iter_mut().try_for_each(|sequence| cache.append(sequence))?;
    }
    account.step(format_args!("{tokens} tokens more in each"), &cache, &sequences)?;

    for sequence in sequences.iter_mut().step_by(2) {
        cache.truncate(sequence, tokens / 3)?;
    }
    account.step(format_args!("every second is rolled back to {}", tokens / 3), &cache, &sequences)?;

    for _ in tokens / 3..tokens / 2 {
        sequences.iter_mut().step_by(2).try_for_each(|sequence| cache.append(sequence))?;
    }
    account.step(format_args!("and grows again to {}", tokens / 2), &cache, &sequences)?;

    let ended = sequences.split_off(count.div_ceil(2));
    end(&cache, ended, &mut account)?;
    account.step("half of all sequences have ended", &cache, &sequences)?;

    registry.retire(mechanism)?;
    let refused = cache.begin(count + 1);
    let is_refused =
        matches!(refused, Err(CacheError::Binding(BindingError::InactiveMechanism { lifecycle: MechanismLifecycle::Retired, .. })));
    end(&cache, sequences, &mut account)?;
    let prompt = cache.prompt_addresses();
    drop(cache);
    account.gone(&[prompt])?;

    let snapshot = registry.snapshot(mechanism)?;
    registry.remove(mechanism)?;
    let agreed = account.verdict();
    println!(
        "after the teardown: {} live, {} queued, {} quarantined; a sequence after the retirement was {}",
        snapshot.live_allocations,
        snapshot.queued_releases,
        snapshot.quarantined_allocations,
        if is_refused { "refused" } else { "NOT REFUSED" }
    );
    Ok(agreed && is_refused && !snapshot.retains_ownership())
}

/// Ends sequences, and looks whether their memory is gone.
fn end(cache: &Cache, sequences: Vec<Sequence>, account: &mut Account) -> Result<(), CacheError> {
    let addresses: Vec<_> = sequences.iter().map(Sequence::addresses).collect();
    sequences.into_iter().try_for_each(|sequence| cache.end(sequence))?;
    Ok(account.gone(&addresses)?)
}
