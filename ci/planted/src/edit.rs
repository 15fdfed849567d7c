//! Planting: literal replacements in the files of a tree, and taking them back byte for byte.

use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

use crate::plant::Edit;

/// Replaces the one occurrence of `find` in `text`. Overlapping occurrences count as several.
pub(crate) fn replace_once(text: &str, find: &str, replace: &str) -> Result<String, String> {
    let count = text.char_indices().filter(|(at, _)| text[*at..].starts_with(find)).count();
    match count {
        1 => Ok(text.replacen(find, replace, 1)),
        _ => Err(format!("the text to find occurs {count} times, not once")),
    }
}

/// The texts of all files that `edits` touch in the tree at `root`: before and after.
fn rewrite(root: &Path, edits: &[Edit]) -> Result<BTreeMap<PathBuf, (String, String)>, String> {
    let mut files = BTreeMap::new();
    for edit in edits {
        let path = root.join(&edit.file);
        let fail = |reason: String| format!("{}: {reason}", edit.file);
        if !files.contains_key(&path) {
            let text = fs::read_to_string(&path).map_err(|error| fail(error.to_string()))?;
            files.insert(path.clone(), (text.clone(), text));
        }
        let (_, after) = files.get_mut(&path).expect("just inserted");
        *after = replace_once(after, &edit.find, &edit.replace).map_err(fail)?;
    }
    Ok(files)
}

/// Says why `edits` do not apply to the tree at `root`, and writes nothing.
pub(crate) fn check(root: &Path, edits: &[Edit]) -> Result<(), String> {
    rewrite(root, edits).map(drop)
}

/// A mistake that stands in a tree.
#[must_use = "the tree keeps the mistake until it is taken back"]
pub(crate) struct Planted {
    before: Vec<(PathBuf, String)>,
}

impl Planted {
    /// Writes `edits` into the tree at `root`: all of them, or none if one does not apply.
    pub(crate) fn plant(root: &Path, edits: &[Edit]) -> Result<Planted, String> {
        let mut before = Vec::new();
        for (path, (old, new)) in rewrite(root, edits)? {
            fs::write(&path, new).map_err(|error| format!("{}: {error}", path.display()))?;
            before.push((path, old));
        }
        Ok(Planted { before })
    }

    /// Puts the old bytes back. The files get a new modification time, which is what makes cargo build them again.
    pub(crate) fn take_back(self) -> io::Result<()> {
        self.before.into_iter().try_for_each(|(path, old)| fs::write(path, old))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(file: &str, find: &str, replace: &str) -> Edit {
        Edit { file: file.into(), find: find.into(), replace: replace.into() }
    }

    /// A directory of one's own, removed at the end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = std::env::temp_dir().join(format!("planted-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn exactly_one_occurrence_is_replaced() {
        assert_eq!(replace_once("a\n  b\nc", "  b\nc", "d").unwrap(), "a\nd");
        assert_eq!(replace_once("a b", "a ", "").unwrap(), "b");
    }

    #[test]
    fn none_two_and_overlapping_occurrences_are_refused() {
        assert_eq!(replace_once("abc", "x", "y").unwrap_err(), "the text to find occurs 0 times, not once");
        assert_eq!(replace_once("a-a", "a", "y").unwrap_err(), "the text to find occurs 2 times, not once");
        assert_eq!(replace_once("äaaa", "aa", "y").unwrap_err(), "the text to find occurs 2 times, not once");
    }

    #[test]
    fn later_edits_see_the_text_of_earlier_ones_and_all_is_taken_back() {
        let scratch = Scratch::new("back");
        let (a, b) = (scratch.0.join("a"), scratch.0.join("b"));
        fs::write(&a, "one\r\ntwo\n").unwrap();
        fs::write(&b, "three").unwrap();
        let edits = [edit("a", "one", "1"), edit("a", "1\r\ntwo", "2"), edit("b", "three", "3")];
        let planted = Planted::plant(&scratch.0, &edits).unwrap();
        assert_eq!(fs::read_to_string(&a).unwrap(), "2\n");
        assert_eq!(fs::read_to_string(&b).unwrap(), "3");
        planted.take_back().unwrap();
        assert_eq!(fs::read_to_string(&a).unwrap(), "one\r\ntwo\n");
        assert_eq!(fs::read_to_string(&b).unwrap(), "three");
    }

    #[test]
    fn an_edit_that_does_not_apply_leaves_every_file_alone() {
        let scratch = Scratch::new("alone");
        let a = scratch.0.join("a");
        fs::write(&a, "one").unwrap();
        let edits = [edit("a", "one", "1"), edit("a", "one", "2")];
        let error = Planted::plant(&scratch.0, &edits).err().unwrap();
        assert_eq!(error, "a: the text to find occurs 0 times, not once");
        assert_eq!(fs::read_to_string(&a).unwrap(), "one");
        assert!(check(&scratch.0, &[edit("missing", "x", "y")]).unwrap_err().starts_with("missing: "));
    }
}
