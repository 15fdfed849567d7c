//! A terminal view of a running registry: what an operator looks at.
//!
//! Threads bind, allocate and release on three devices; a control thread registers, selects, deselects, retires and removes mechanisms,
//! loses devices and replaces what was lost. Everything shown comes from the library: the table is the registry's `Display`, the picture
//! its `to_dot`, the events come from a `SelectionWatch` of each device.
//!
//! ```text
//! cargo run --release --example operator                      # a view that refreshes, for ten seconds or until Ctrl-C
//! cargo run --release --example operator -- --once            # one table
//! cargo run --release --example operator -- --dot | dot -Tsvg # one picture
//! ```
//!
//! | Module | What |
//! | --- | --- |
//! | `load` | the threads that use the registry, and its end in order: retire, drain, remove |
//! | `feed` | the events, as they come |
//! | `view` | what is shown, as lines or as JSON |
//! | `screen` | the terminal, and how it is left as it was |
//!
//! Exit code 0: everything ended in order. 1: not so. 2: an option is out of its range. 130: ended by a second Ctrl-C.

mod feed;
#[path = "../hot_swap/grouped.rs"]
mod grouped;
mod load;
#[path = "../serve/memory.rs"]
mod memory;
#[path = "../hot_swap/rng.rs"]
mod rng;
mod screen;
mod view;

use crate::{
    feed::Feed,
    load::{DEVICES, Ending, Load, Shared},
    screen::Screen,
    view::{Sample, Sampler},
};
use clap::Parser;
use liveslot::BindingRegistry;
use std::{
    error::Error,
    io::{self, Write},
    process::{self, ExitCode},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

type Failure = Box<dyn Error + Send + Sync>;

/// Shows a running registry: its table, its rate of operations, its latest events.
///
/// On a terminal the view refreshes in place; elsewhere it is printed once a second. Ends by itself or on Ctrl-C; a second Ctrl-C ends at
/// once. Exit code 0: everything ended in order. 1: not so. 2: an option is out of its range. 130: ended by a second Ctrl-C.
#[derive(Debug, Parser)]
#[command(allow_negative_numbers = true)]
struct Options {
    /// How long to run, in seconds, 1 to 86 400; with --once and --dot as long as it takes until something has happened, this at most
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    seconds: u32,

    /// Print the table once, and end
    #[arg(long)]
    once: bool,

    /// Print a picture of who pins whom once, in the DOT language of Graphviz, and end
    #[arg(long, conflicts_with_all = ["once", "json"])]
    dot: bool,

    /// Print JSON objects, one a line, instead of tables
    #[arg(long)]
    json: bool,

    /// Decides what the threads do, though not how they interleave
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

/// A thread that takes longer than this to stop is stuck, and a mechanism to drain.
const PATIENCE: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    match run(&Options::parse(), &mut io::stdout()) {
        Ok(ending) if ending.is_in_order() => ExitCode::SUCCESS,
        Ok(ending) => {
            eprintln!("operator: not in order: {ending}");
            ExitCode::FAILURE
        }
        Err(failure) => {
            eprintln!("operator: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options, out: &mut impl Write) -> Result<Ending, Failure> {
    let registry = BindingRegistry::new()?;
    let shared = Arc::new(Shared::new(thread::available_parallelism().map_or(2, |cores| cores.get().max(2))));
    let feed = Feed::follow(DEVICES.map(|device| registry.device(device).watch()))?;
    let load = Load::start(&registry, &shared, options.seed)?;
    let sampler = Sampler::new(&registry, &shared, &feed);

    let end = Instant::now().checked_add(Duration::from_secs(options.seconds.into())).ok_or("the clock ends before")?;
    // A reader that has gone away ends the view, and nothing else.
    let _ = if options.once || options.dot { once(options, out, sampler, end, &load) } else { watch(options, out, sampler, end, &load) };

    let ending = load.end(PATIENCE)?;
    // The last share. The watches end with it, and with them the feed.
    drop(registry);
    feed.end(PATIENCE)?;
    if !(options.once || options.dot || options.json) {
        let _ = writeln!(out, "{ending}").and_then(|()| out.flush());
    }
    Ok(ending)
}

/// Shows what there is once enough has happened to be seen.
fn once(options: &Options, out: &mut impl Write, sampler: Sampler<'_>, end: Instant, load: &Load) -> io::Result<()> {
    const ENOUGH: u64 = 12;
    const TICK: Duration = Duration::from_millis(1);
    while !(sampler.has_seen(ENOUGH) || Instant::now() >= end || load.has_ended()) {
        thread::park_timeout(TICK);
    }
    match options {
        Options { dot: true, .. } => write!(out, "{}", sampler.picture())?,
        Options { json: true, .. } => writeln!(out, "{}", sampler.sample().json())?,
        _ => writeln!(out, "{}", sampler.sample().table)?,
    }
    out.flush()
}

/// Shows until the time is over, or Ctrl-C, or the load has ended by itself.
fn watch(options: &Options, out: &mut impl Write, sampler: Sampler<'_>, end: Instant, load: &Load) -> io::Result<()> {
    let mut screen = Screen::enter(!options.json)?;
    stop_on_ctrl_c(load.shared(), screen.is_live())?;
    let period = if screen.is_live() { Duration::from_millis(100) } else { Duration::from_secs(1) };
    let mut last: Option<Sample> = None;
    while !(load.has_ended() || load.shared().stopping()) {
        let now = Instant::now();
        if now >= end {
            break;
        }
        // A Ctrl-C ends the pause.
        thread::park_timeout(period.min(end - now));
        let sample = sampler.sample_since(last.as_ref());
        match options.json {
            true => writeln!(out, "{}", sample.json())?,
            false if screen.is_live() => screen.show(&sample.lines(screen::rows()))?,
            false => writeln!(out, "{}\n", sample.lines(usize::MAX).join("\n"))?,
        }
        out.flush()?;
        last = Some(sample);
    }
    let was_live = screen.is_live();
    drop(screen);
    // What was seen last stays to be read.
    if let (true, Some(last)) = (was_live, last) {
        writeln!(out, "{}\n", last.lines(usize::MAX).join("\n"))?;
    }
    Ok(())
}

/// The first Ctrl-C stops the run, the second one the process.
fn stop_on_ctrl_c(shared: &Arc<Shared>, live: bool) -> io::Result<()> {
    const INTERRUPTED: i32 = 130;
    let (main, shared) = (thread::current(), Arc::clone(shared));
    let handler = move || {
        if shared.stop() {
            if live {
                let _ = screen::leave();
            }
            process::exit(INTERRUPTED);
        }
        main.unpark();
    };
    ctrlc::set_handler(handler).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output(arguments: &[&str]) -> String {
        let options = Options::try_parse_from([&["operator"], arguments].concat()).unwrap();
        let mut out = Vec::new();
        let ending = run(&options, &mut out).unwrap();
        assert!(ending.is_in_order(), "{ending}");
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn one_table() {
        let table = output(&["--once"]);
        let lines: Vec<_> = table.lines().collect();
        assert!(lines[0].starts_with("device    mechanism  selected"), "{table}");
        assert!(lines[1..].iter().all(|line| line.contains(" device ") || line.starts_with("device ") || line.starts_with("host 0")));
        assert!(lines.len() > 1, "{table}");
    }

    #[test]
    fn one_picture() {
        let picture = output(&["--dot"]);
        assert!(picture.starts_with("digraph registry {\n") && picture.ends_with("}\n"), "{picture}");
    }

    #[test]
    fn one_object() {
        let object: serde_json::Value = serde_json::from_str(&output(&["--once", "--json"])).unwrap();
        assert!(object["operations"].as_u64().unwrap() > 0);
        assert!(!object["mechanisms"].as_array().unwrap().is_empty());
        assert!(object["events"].as_array().unwrap().iter().all(|event| event["device"].is_string()));
    }
}
