//! The tests of a package, and the rules that the doc comment of each names.
//!
//! A test is a function with a `test` attribute. A macro may make tests too: if its definition has a `#[test]`, each function that one
//! of its calls names is one. What is `#[ignore]`d shows nothing.

use crate::naming::{Rule, named};
use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::BTreeSet;
use syn::{
    Attribute, Expr, ExprLit, ItemFn, Lit, Macro, Meta,
    visit::{self, Visit},
};

/// A test and what it shows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Test {
    /// Its file and its name.
    pub(crate) name: String,
    /// The rules that its doc comment names.
    pub(crate) rules: BTreeSet<Rule>,
}

/// The tests in the files of one package, each given as its path and its text.
pub(crate) fn tests(files: &[(String, String)]) -> Result<Vec<Test>, String> {
    let mut package = Package::default();
    for (path, text) in files {
        let file = syn::parse_file(text).map_err(|error| format!("{path}: {error}"))?;
        package.path = path;
        package.visit_file(&file);
    }
    let generated: BTreeSet<String> = package
        .calls
        .iter()
        .filter(|(name, _)| package.test_makers.contains(name))
        .flat_map(|(_, tokens)| identifiers(tokens.clone()))
        .collect();
    let is_test = |function: &Function<'_>| function.is_test || generated.contains(&function.name);
    let read = |function: Function<'_>| {
        let name = format!("{} {}", function.path, function.name);
        let rules = named(&function.doc).map_err(|error| format!("{name}: {error}"))?;
        Ok(Test { name, rules })
    };
    package.functions.into_iter().filter(is_test).map(read).collect()
}

/// A function outside `impl` and `trait`.
struct Function<'a> {
    path: &'a str,
    name: String,
    doc: String,
    is_test: bool,
}

/// What the files seen so far have.
#[derive(Default)]
struct Package<'a> {
    /// The file that is looked at.
    path: &'a str,
    functions: Vec<Function<'a>>,
    /// Macros that make tests.
    test_makers: BTreeSet<String>,
    /// Calls of macros by name.
    calls: Vec<(String, TokenStream)>,
}

impl<'ast> Visit<'ast> for Package<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        let has = |name: &str| item.attrs.iter().any(|attribute| last_segment(attribute.path()) == name);
        if !has("ignore") {
            let (name, doc) = (item.sig.ident.to_string(), doc(&item.attrs));
            self.functions.push(Function { path: self.path, name, doc, is_test: has("test") });
        }
        visit::visit_item_fn(self, item);
    }

    fn visit_item_macro(&mut self, item: &'ast syn::ItemMacro) {
        if let Some(name) = &item.ident {
            if makes_tests(item.mac.tokens.clone()) {
                self.test_makers.insert(name.to_string());
            }
        } else {
            visit::visit_item_macro(self, item);
        }
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.calls.push((last_segment(&call.path), call.tokens.clone()));
    }
}

fn last_segment(path: &syn::Path) -> String {
    path.segments.last().map(|segment| segment.ident.to_string()).unwrap_or_default()
}

/// The text of a doc comment, a line for each attribute.
fn doc(attributes: &[Attribute]) -> String {
    let line = |attribute: &Attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    };
    attributes.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// Whether `#[test]` occurs, at any depth.
fn makes_tests(tokens: TokenStream) -> bool {
    tokens.into_iter().any(|token| match token {
        TokenTree::Group(group) => {
            (group.delimiter() == Delimiter::Bracket && group.stream().to_string() == "test") || makes_tests(group.stream())
        }
        _ => false,
    })
}

/// The identifiers in `tokens`, at any depth.
fn identifiers(tokens: TokenStream) -> Vec<String> {
    let of = |token| match token {
        TokenTree::Ident(name) => vec![name.to_string()],
        TokenTree::Group(group) => identifiers(group.stream()),
        _ => Vec::new(),
    };
    tokens.into_iter().flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tests of a package of one file, with their rules.
    fn found(text: &str) -> Vec<String> {
        let files = [("f".to_owned(), text.to_owned())];
        let show = |test: Test| format!("{}: {}", test.name, test.rules.iter().map(Rule::to_string).collect::<Vec<_>>().join(" "));
        tests(&files).unwrap().into_iter().map(show).collect()
    }

    #[test]
    fn the_doc_comment_of_a_test_is_its_own() {
        let text = r#"
            //! R1: about the file.

            /// R2: no test.
            fn helper() {}

            /// R3: a test,
            /// and R4.
            #[test]
            fn a() { /* R5 */ helper("R6") }

            // R7: no doc comment.
            #[test]
            fn b() {}

            /// R8 to
            /// R10, before other attributes.
            #[cfg(unix)]
            #[test]
            #[should_panic]
            fn c() {}

            #[test]
            #[doc = "R11: written out."]
            fn d() {}

            /** R12: a block. */
            #[tokio::test]
            async fn e() {}
        "#;
        assert_eq!(found(text), ["f a: R3 R4", "f b: ", "f c: R8 R9 R10", "f d: R11", "f e: R12"]);
    }

    #[test]
    fn tests_in_modules_are_found() {
        assert_eq!(found("/// R1\n#[cfg(test)] mod tests {\n /// R2\n #[test] fn a() {}\n}"), ["f a: R2"]);
    }

    #[test]
    fn what_is_ignored_shows_nothing() {
        assert_eq!(
            found("/// R1\n#[test]\n#[ignore = \"slow\"]\nfn a() {}\nmacro_rules! m { () => { #[test] fn t() {} } }"),
            [] as [&str; 0]
        );
    }

    #[test]
    fn a_macro_may_make_tests_of_functions() {
        let text = "
            macro_rules! each { ($($life:ident)*) => {$( mod $life { #[test] fn random() { run(lives::$life) } } )*} }
            macro_rules! other { ($($life:ident)*) => { $( $life() )* } }
            each! { one two }
            other! { three }
        ";
        let lives = "
            /// R1: made a test in another file.
            pub fn one() {}
            /// R2, R3
            pub fn two() {}
            /// R4: called by something else.
            pub fn three() {}
        ";
        let files = [("main".to_owned(), text.to_owned()), ("lives".to_owned(), lives.to_owned())];
        let names: Vec<_> = tests(&files).unwrap().into_iter().map(|test| (test.name, test.rules.len())).collect();
        assert_eq!(names, [("lives one".to_owned(), 1), ("lives two".to_owned(), 2)]);
    }

    #[test]
    fn mistakes_say_where() {
        let of = |text: &str| tests(&[("f".to_owned(), text.to_owned())]).unwrap_err();
        assert_eq!(of("/// R154\n#[test]\nfn a() {}"), "f a: `R154` is none of R1 to R153");
        assert!(of("fn").starts_with("f: "));
    }
}
