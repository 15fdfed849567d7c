//! Copies of the tree: what git tracks or would track, or everything but `target` and `.git` where git is absent.

use std::{
    collections::BTreeSet,
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    process::Command,
};

/// Makes `copy` the same as the tree at `root`. Files that are equal already keep their modification time, so that cargo need not
/// build them again; `copy` may hold nothing else.
pub(crate) fn mirror(root: &Path, copy: &Path) -> io::Result<()> {
    let files = files(root)?;
    fs::create_dir_all(copy)?;
    for stray in walk(copy)?.difference(&files) {
        fs::remove_file(copy.join(stray))?;
    }
    for file in files {
        let (from, to) = (root.join(&file), copy.join(&file));
        let bytes = fs::read(from)?;
        if fs::read(&to).ok().as_ref() != Some(&bytes) {
            fs::create_dir_all(to.parent().expect("a file is in a folder"))?;
            fs::write(to, bytes)?;
        }
    }
    Ok(())
}

/// Copies the folder `from` to `to` with modification times, which is what cargo judges a build by.
pub(crate) fn clone_builds(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, from, to) = (entry.file_type()?, entry.path(), to.join(entry.file_name()));
        if kind.is_dir() {
            // Incremental state belongs to the packages of one tree.
            if entry.file_name() != "incremental" {
                clone_builds(&from, &to)?;
            }
        } else if kind.is_file() {
            fs::copy(&from, &to)?;
            fs::File::options().write(true).open(&to)?.set_modified(entry.metadata()?.modified()?)?;
        }
    }
    Ok(())
}

fn files(root: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let git = Command::new("git").arg("-C").arg(root).args(["ls-files", "-co", "--exclude-standard", "-z"]).output();
    match git {
        // Inside a larger checkout git answers for the folder alone, which is as good.
        Ok(output) if output.status.success() => Ok(output
            .stdout
            .split(|byte| *byte == 0)
            .filter(|name| !name.is_empty())
            .map(|name| PathBuf::from(OsStr::from_bytes(name)))
            .filter(|file| root.join(file).is_file())
            .collect()),
        _ => walk(root),
    }
}

/// Every file below `root` but for those in a `target` or `.git`.
fn walk(root: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                found.insert(path.strip_prefix(root).expect("below the root").to_owned());
            } else if entry.file_name() != "target" && entry.file_name() != ".git" {
                folders.push(path);
            }
        }
    }
    Ok(found)
}
