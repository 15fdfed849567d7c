//! A run with a time limit, its output in a file.

use std::{
    env,
    fs::{self, File},
    io,
    os::unix::process::{CommandExt, ExitStatusExt},
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How a run ended, and all that it wrote.
#[derive(Debug)]
pub(crate) struct Ended {
    /// How it ended.
    pub(crate) how: How,
    /// Standard output and standard error, in the order written.
    pub(crate) output: String,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// With this code.
    Exit(i32),
    /// By this signal.
    Signal(i32),
    /// Not within the limit.
    Timeout,
}

impl From<ExitStatus> for How {
    fn from(status: ExitStatus) -> How {
        match (status.code(), status.signal()) {
            (Some(code), _) => How::Exit(code),
            (None, signal) => How::Signal(signal.unwrap_or_default()),
        }
    }
}

/// Hides from `command` what would change how a plant is built or checked: bounds and iterations of the checkers, warnings denied
/// (a plant may leave an import unused), backtraces.
pub(crate) fn settle_environment(command: &mut Command) {
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        let ours = text.starts_with("LOOM_") || text.starts_with("LIVESLOT_") || text.starts_with("SHUTTLE_");
        if ours || matches!(&*text, "RUSTFLAGS" | "CARGO_ENCODED_RUSTFLAGS" | "RUST_BACKTRACE" | "RUST_TEST_THREADS") {
            command.env_remove(&name);
        }
    }
}

/// Runs `program` in `folder` for at most `limit`, then kills it and all that it started.
pub(crate) fn run(program: &Path, arguments: &[&str], folder: &Path, limit: Duration, log: &Path) -> io::Result<Ended> {
    let out = File::create(log)?;
    // The process group is what is killed. It does not get the terminal's Ctrl-C: the limit on processor time ends what spins on
    // after this program was interrupted, and the limit on file size what prints for ever. No core dumps: some failures abort.
    let processor_seconds = (limit.as_secs() + 1) * thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let mut command = Command::new("sh");
    settle_environment(&mut command);
    let mut child = command
        .args(["-c", "ulimit -c 0; ulimit -f 131072; ulimit -t \"$0\"; exec \"$@\""])
        .arg(processor_seconds.to_string())
        .arg(program)
        .args(arguments)
        .current_dir(folder)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(out)
        .spawn()?;
    let start = Instant::now();
    let how = loop {
        if let Some(status) = child.try_wait()? {
            break status.into();
        }
        if start.elapsed() > limit {
            Command::new("sh").args(["-c", "kill -9 -\"$0\""]).arg(child.id().to_string()).status()?;
            child.wait()?;
            break How::Timeout;
        }
        thread::sleep(Duration::from_millis(5));
    };
    Ok(Ended { how, output: String::from_utf8_lossy(&fs::read(log)?).into_owned() })
}
