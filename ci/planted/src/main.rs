//! Plants known mistakes in copies of the tree, one at a time, and demands that a named test fails for each, with a known text.
//!
//! A test that nobody has seen fail proves little. The plants in `ci/planted/plants/` say, for each step of a protocol that an
//! earlier draft got wrong, what the mistake looks like and which test finds it; this program keeps that true. A plant is missed when
//! its replacement no longer applies, when it does not compile, when the test hangs, passes, or fails without the expected text, and
//! when the test fails with nothing planted. The format is described in `ci/planted/README.md`.
//!
//! The copies live in `planted/` below the target folder, each with a target folder of its own, and are kept for the next run.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    env, fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

mod cargo;
mod edit;
mod plant;
mod process;
mod tree;
mod verdict;

use cargo::{Executable, Plot};
use edit::Planted;
use plant::{Build, Case, Plant, Run};
use process::Ended;

const USAGE: &str = "usage: planted [--all | --only SUBSTRING] [--tested] [--list] [--jobs N] [--root DIR]";

/// What the command line asks for.
struct Options {
    /// Plants with this in their name.
    only: String,
    /// Those left to the longer sweep, too.
    all: bool,
    /// All tests have passed on this very tree: with nothing planted, only the examples are tried.
    tested: bool,
    /// Name the plants and run nothing.
    list: bool,
    /// Plants tried at once, each in a copy of its own.
    jobs: usize,
    /// The tree.
    root: PathBuf,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Options, String> {
        let jobs = thread::available_parallelism().map_or(1, |n| n.get().min(4));
        let mut options = Options { only: String::new(), all: false, tested: false, list: false, jobs, root: ".".into() };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value\n{USAGE}"));
            match argument.as_str() {
                "--only" => options.only = value()?,
                "--all" => options.all = true,
                "--tested" => options.tested = true,
                "--list" => options.list = true,
                "--jobs" => options.jobs = value()?.parse().ok().filter(|n| *n > 0).ok_or(USAGE)?,
                "--root" => options.root = value()?.into(),
                _ => return Err(USAGE.into()),
            }
        }
        options.root = options.root.canonicalize().map_err(|error| format!("{}: {error}", options.root.display()))?;
        Ok(options)
    }
}

fn main() -> ExitCode {
    match Options::parse(env::args().skip(1)).and_then(|options| try_all(&options)) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("planted: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Tries the plants that are asked for and returns how many were missed.
fn try_all(options: &Options) -> Result<usize, String> {
    let mut plants = read_plants(&options.root.join("ci/planted/plants"), &options.only)?;
    if options.list {
        return Ok(list(&options.root, &plants));
    }
    if !options.all && options.only.is_empty() {
        let known = plants.len();
        plants.retain(|plant| !plant.nightly);
        println!("{} of {known} plants; the others are tried with --all", plants.len());
    }
    let failed = |error: io::Error| format!("cannot work in the copies: {error}");
    let field = Field::prepare(options, &plants).map_err(failed)?;
    field.build_dependencies(&plants).map_err(failed)?;
    let healthy = field.try_unplanted(&plants, options.tested).map_err(failed)?;
    let missed = field.try_planted(&plants, &healthy).map_err(failed)?;
    println!("planted: {} caught, {missed} missed", plants.len() - missed);
    Ok(missed)
}

/// The plants whose name contains `only`; those that share an executable stand together.
fn read_plants(folder: &Path, only: &str) -> Result<Vec<Plant>, String> {
    let fail = |error: io::Error| format!("{}: {error}", folder.display());
    let mut plants = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|extension| extension == "plant") && name.contains(only) {
            let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
            plants.push(Plant::parse(&name, &text).map_err(|error| format!("{}: {error}", path.display()))?);
        }
    }
    if plants.is_empty() {
        return Err(format!("no plant in {} has `{only}` in its name", folder.display()));
    }
    plants.sort_by(|a, b| (&a.run.build, &a.name).cmp(&(&b.run.build, &b.name)));
    Ok(plants)
}

/// Prints the plants and returns how many no longer apply.
fn list(root: &Path, plants: &[Plant]) -> usize {
    let mut misfits = 0;
    for plant in plants {
        println!("{}  ({})\n    {}", plant.name, plant.run, plant.why);
        if let Err(reason) = edit::check(root, &plant.edits) {
            println!("    DOES NOT APPLY: {reason}");
            misfits += 1;
        }
    }
    misfits
}

/// The runs that were tried with nothing planted, and why some prove nothing.
type Healthy<'a> = BTreeMap<&'a Run, Result<(), String>>;

/// The copies that plants are tried in.
struct Field {
    plots: Vec<Plot>,
    logs: PathBuf,
}

impl Field {
    fn prepare(options: &Options, plants: &[Plant]) -> io::Result<Field> {
        let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| options.root.join("target"), PathBuf::from);
        let scratch = std::path::absolute(target)?.join("planted");
        let logs = scratch.join("logs");
        fs::create_dir_all(&logs)?;
        let plots: Vec<Plot> = (0..options.jobs.min(plants.len()))
            .map(|n| Plot { tree: scratch.join(format!("tree-{n}")), target: scratch.join(format!("target-{n}")) })
            .collect();
        for place in &plots {
            tree::mirror(&options.root, &place.tree)?;
        }
        Ok(Field { plots, logs })
    }

    /// Builds in the first plot one executable of each package, with what they depend on, and gives that to the new plots.
    fn build_dependencies(&self, plants: &[Plant]) -> io::Result<()> {
        let builds: BTreeMap<_, _> =
            plants.iter().map(|plant| &plant.run.build).map(|build| ((&build.package, build.release), build)).collect();
        for build in builds.values() {
            // Whether it compiles is asked, and told, where it is tried.
            self.plots[0].build(build, &self.logs.join("dependencies.log"))?;
        }
        self.share_builds()
    }

    /// Builds and runs every distinct test and example once with nothing planted. Where the tests have passed already, it tries the
    /// examples alone: a test that is absent shows when it is to fail.
    fn try_unplanted<'a>(&self, plants: &'a [Plant], tested: bool) -> io::Result<Healthy<'a>> {
        let passed = |run: &Run| tested && matches!(run.case, Case::Test(_));
        let healthy =
            Mutex::new(plants.iter().map(|plant| &plant.run).filter(|run| passed(run)).map(|run| (run, Ok(()))).collect::<Healthy<'_>>());
        let limits: BTreeMap<&Run, Duration> =
            plants.iter().map(|plant| (&plant.run, plant.timeout)).filter(|(run, _)| !passed(run)).collect();

        let builds: Vec<&Build> = limits.keys().map(|run| &run.build).collect::<BTreeSet<_>>().into_iter().collect();
        let executables = Mutex::new(BTreeMap::new());
        self.on_all(builds.chunks(1), |place, build| {
            let executable = place.build(build, &self.logs.join(format!("unplanted-{}-build.log", build.package)))?;
            executables.lock().expect("no holder panics").insert(*build, executable);
            Ok(())
        })?;
        let executables = executables.into_inner().expect("no holder panics");

        let runs: Vec<(usize, (&Run, Duration))> = limits.into_iter().enumerate().collect();
        self.on_all(runs.chunks(1), |_, &(n, (run, limit))| {
            let verdict = match &executables[&run.build] {
                Some(executable) => {
                    let ended = start(executable, &run.case, limit, &self.logs.join(format!("unplanted-{n}.log")))?;
                    verdict::passes(run, &ended)
                }
                None => Err("does not compile".into()),
            };
            healthy.lock().expect("no holder panics").insert(run, verdict);
            Ok(())
        })?;
        Ok(healthy.into_inner().expect("no holder panics"))
    }

    /// Gives new plots the dependencies that the first one has built.
    fn share_builds(&self) -> io::Result<()> {
        let (first, others) = self.plots.split_first().expect("at least one plant, hence one plot");
        for place in others.iter().filter(|place| !place.target.exists()) {
            tree::clone_builds(&first.target, &place.target)?;
        }
        Ok(())
    }

    /// Tries every plant, prints a line for each, and returns how many were missed.
    fn try_planted(&self, plants: &[Plant], healthy: &Healthy<'_>) -> io::Result<usize> {
        let missed = AtomicUsize::new(0);
        self.on_all(plants.chunk_by(|a, b| a.run.build == b.run.build), |place, plant| {
            let start = Instant::now();
            let verdict = match &healthy[&plant.run] {
                Ok(()) => self.try_plant(place, plant)?,
                Err(reason) => Err(format!("with nothing planted, {} {reason}", plant.run)),
            };
            match verdict {
                Ok(()) => println!("caught  {}  ({}, {:.1} s)", plant.name, plant.run, start.elapsed().as_secs_f64()),
                Err(reason) => {
                    println!("MISSED  {}: {reason}", plant.name);
                    missed.fetch_add(1, Relaxed);
                }
            }
            Ok(())
        })?;
        Ok(missed.into_inner())
    }

    /// Plants, builds, runs, judges, takes back.
    fn try_plant(&self, place: &Plot, plant: &Plant) -> io::Result<Result<(), String>> {
        let planted = match Planted::plant(&place.tree, &plant.edits) {
            Ok(planted) => planted,
            Err(reason) => return Ok(Err(reason)),
        };
        let log = self.logs.join(format!("{}.log", plant.name));
        let verdict = match place.build(&plant.run.build, &log)? {
            Some(executable) => verdict::caught(plant, &start(&executable, &plant.run.case, plant.timeout, &log)?),
            None => Err("does not compile".into()),
        };
        planted.take_back()?;
        Ok(verdict.map_err(|reason| format!("{reason}  [{}]", log.display())))
    }

    /// Calls `job` for all items, on one thread per plot.
    fn on_all<'a, T: Sync + 'a>(
        &self,
        groups: impl Iterator<Item = &'a [T]>,
        job: impl Fn(&Plot, &'a T) -> io::Result<()> + Sync,
    ) -> io::Result<()> {
        let queue = Queue::new(groups);
        thread::scope(|scope| {
            let worker = |place| {
                let (queue, job) = (&queue, &job);
                scope.spawn(move || {
                    let mut group = None;
                    while let Some(item) = queue.next(&mut group) {
                        job(place, item)?;
                    }
                    Ok(())
                })
            };
            let workers: Vec<_> = self.plots.iter().map(worker).collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })
    }
}

/// Hands out items in groups, such as plants that share an executable. Its first build in a plot is a whole one: so a worker stays with a
/// group while something is left of it, then begins the longest, and when all are begun helps where most is left.
struct Queue<'a, T>(Mutex<Vec<Group<'a, T>>>);

struct Group<'a, T> {
    left: &'a [T],
    begun: bool,
}

impl<'a, T> Queue<'a, T> {
    fn new(groups: impl Iterator<Item = &'a [T]>) -> Self {
        Queue(Mutex::new(groups.map(|left| Group { left, begun: false }).collect()))
    }

    /// The next item for a worker, which keeps `current`, its group, from call to call. `None`: nothing is left.
    fn next(&self, current: &mut Option<usize>) -> Option<&'a T> {
        let mut groups = self.0.lock().expect("no holder panics");
        let goes_on = current.filter(|&at| !groups[at].left.is_empty());
        let at = goes_on.or_else(|| {
            let left = (0..groups.len()).filter(|&at| !groups[at].left.is_empty());
            left.max_by_key(|&at| (!groups[at].begun, groups[at].left.len(), Reverse(at)))
        })?;
        *current = Some(at);
        groups[at].begun = true;
        groups[at].left.split_off_first()
    }
}

/// Runs one test alone, or an example.
fn start(executable: &Executable, case: &Case, limit: Duration, log: &Path) -> io::Result<Ended> {
    let arguments: Vec<&str> = match case {
        // Uncaptured, so that the text of a failure that aborts is not lost.
        Case::Test(name) => vec!["--exact", name, "--nocapture", "--test-threads=1"],
        Case::Example(arguments) => arguments.iter().map(String::as_str).collect(),
    };
    process::run(&executable.path, &arguments, &executable.folder, limit, log)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_stays_with_its_group_then_begins_the_longest_then_helps() {
        let queue = Queue::new([&[10, 11, 12, 13, 14][..], &[20][..], &[30, 31][..]].into_iter());
        let (mut a, mut b) = (None, None);
        assert_eq!(queue.next(&mut a), Some(&10));
        assert_eq!(queue.next(&mut b), Some(&30), "the longest that nobody has begun");
        assert_eq!(queue.next(&mut b), Some(&31));
        assert_eq!(queue.next(&mut a), Some(&11));
        assert_eq!(queue.next(&mut b), Some(&20), "not begun, and hence before a longer one that is");
        assert_eq!(queue.next(&mut b), Some(&12), "helps");
        assert_eq!([queue.next(&mut a), queue.next(&mut b), queue.next(&mut a)], [Some(&13), Some(&14), None]);
    }
}
