//! Building one target in a copy of the tree.

use std::{
    env, fs, io,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    plant::{Build, Target},
    process::settle_environment,
};

/// A copy of the tree and where it is built.
pub(crate) struct Plot {
    /// The copy.
    pub(crate) tree: PathBuf,
    /// Its target folder.
    pub(crate) target: PathBuf,
}

/// An executable, and the folder of its package.
pub(crate) struct Executable {
    /// The file to run.
    pub(crate) path: PathBuf,
    /// Where cargo would run it.
    pub(crate) folder: PathBuf,
}

impl Plot {
    /// Builds `build`; what the compiler says goes to `log`. `None`: it does not compile.
    pub(crate) fn build(&self, build: &Build, log: &Path) -> io::Result<Option<Executable>> {
        let mut cargo = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        settle_environment(&mut cargo);
        match &build.target {
            Target::Lib => cargo.args(["test", "--no-run", "--lib"]),
            Target::Test(name) => cargo.args(["test", "--no-run", "--test", name]),
            Target::Example(name) => cargo.args(["build", "--example", name]),
        };
        if build.release {
            cargo.arg("--release");
        }
        if let Some(feature) = &build.feature {
            cargo.args(["--features", feature]);
        }
        let output = cargo
            .args(["--package", &build.package, "--message-format", "json-render-diagnostics"])
            // A plant is built once and its failure found soon: here optimising costs more than it saves.
            .args(["--config", "profile.dev.package.loom-tests.opt-level=0"])
            .args(["--config", "profile.dev.package.shuttle-tests.opt-level=0"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TERM_COLOR", "never")
            .stdin(Stdio::null())
            .stderr(fs::File::create(log)?)
            .output()?;
        if !output.status.success() {
            return Ok(None);
        }
        let messages = String::from_utf8_lossy(&output.stdout);
        Ok(messages.lines().rev().find_map(executable))
    }
}

/// The executable that one of cargo's JSON messages announces.
fn executable(message: &str) -> Option<Executable> {
    let path = string_field(message, "executable")?;
    let manifest = PathBuf::from(string_field(message, "manifest_path")?);
    Some(Executable { path: path.into(), folder: manifest.parent()?.to_owned() })
}

/// The value of a string field of one of cargo's JSON messages. Paths with quotes or backslashes are not supported.
fn string_field(message: &str, name: &str) -> Option<String> {
    let (_, rest) = message.split_once(&format!("\"{name}\":\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_read_from_a_message() {
        let message = r#"{"reason":"compiler-artifact","manifest_path":"/w/a/Cargo.toml","target":{"name":"slot"},"executable":"/t/slot-1","fresh":true}"#;
        let found = executable(message).unwrap();
        assert_eq!((found.path, found.folder), ("/t/slot-1".into(), "/w/a".into()));
        assert!(executable(&message.replace("\"/t/slot-1\"", "null")).is_none());
    }
}
