//! Circles of modules: modules that use each other, directly or through other modules.
//!
//! The files of a circle can only be understood together. A re-export (`pub use`) does not count as a use,
//! and a use of a re-exported name counts as a use of the module that defines it.

mod allowed;
mod modules;

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;

use crate::repository::Repository;
use allowed::{ALLOWED, Allowed};
use modules::{Module, Path};

/// Returns the circles that are not allowed, and the allowed ones that have changed.
pub(crate) fn broken(repository: &Repository) -> Result<Vec<String>> {
    let text = |path: &str| {
        let file = repository.files.iter().find(|file| file.path == path);
        file.map(|file| file.text.as_str())
    };
    let mut circles = BTreeSet::new();
    for file in &repository.files {
        let is_root = ["/src/lib.rs", "/src/main.rs"].iter().any(|end| file.path.ends_with(end));
        if is_root && !file.path.starts_with("fuzz/") {
            let modules = modules::modules(&file.path, &text)?;
            circles.extend(circles_of(&modules));
        }
    }
    Ok(compare(&circles, ALLOWED))
}

/// Returns a line for each circle that is not allowed, or has another number of files.
fn compare(circles: &BTreeSet<Vec<String>>, allowed: &[Allowed]) -> Vec<String> {
    const LIST: &str = "xtask/src/circles/allowed.rs";
    let is_of =
        |circle: &Vec<String>, allowed: &Allowed| circle.iter().any(|it| it == allowed.file);
    let mut places = Vec::new();
    for circle in circles {
        match allowed.iter().find(|allowed| is_of(circle, allowed)) {
            Some(allowed) if allowed.files == circle.len() => {}
            Some(allowed) => places.push(format!(
                "the circle of {} has {} files, and {LIST} allows {}: {}",
                allowed.file,
                circle.len(),
                allowed.files,
                circle.join(" ")
            )),
            None => {
                places.push(format!("{} files use each other: {}", circle.len(), circle.join(" ")));
            }
        }
    }
    let gone =
        allowed.iter().filter(|allowed| !circles.iter().any(|circle| is_of(circle, allowed)));
    places
        .extend(gone.map(|gone| format!("{LIST}: there is no circle with {} any more", gone.file)));
    places
}

/// Returns the circles of a crate: for each of them its files, in their order.
fn circles_of(modules: &BTreeMap<Path, Module>) -> Vec<Vec<String>> {
    let uses: BTreeMap<&Path, BTreeSet<Path>> =
        modules.iter().map(|(path, module)| (path, used(path, module, modules))).collect();
    let reached: BTreeMap<&Path, BTreeSet<&Path>> =
        modules.keys().map(|path| (path, reachable(path, &uses))).collect();
    let mut circles = BTreeSet::new();
    for (path, targets) in &reached {
        let circle: BTreeSet<&Path> =
            targets.iter().copied().filter(|target| reached[target].contains(path)).collect();
        if circle.len() > 1 {
            let mut files: Vec<String> =
                circle.iter().map(|path| modules[*path].file.clone()).collect();
            files.sort();
            circles.insert(files);
        }
    }
    circles.into_iter().collect()
}

/// Returns the modules that can be reached from one.
fn reachable<'m>(from: &Path, uses: &'m BTreeMap<&Path, BTreeSet<Path>>) -> BTreeSet<&'m Path> {
    let mut reached = BTreeSet::new();
    let mut left: Vec<&Path> = uses[from].iter().collect();
    while let Some(path) = left.pop() {
        if reached.insert(path) {
            left.extend(uses[path].iter());
        }
    }
    reached
}

/// Returns the modules that a module uses.
fn used(path: &Path, module: &Module, modules: &BTreeMap<Path, Module>) -> BTreeSet<Path> {
    let targets = module.paths.iter().filter_map(|used| resolve(path, used, modules, 0));
    targets.filter(|target| target != path).collect()
}

/// The most re-exports that are followed from a name to its definition.
const DEPTH_MAX: usize = 16;

/// Returns the module that defines the item of a path in the module `from`; `None` if the item is in another
/// crate or cannot be found.
fn resolve(
    from: &Path,
    used: &[String],
    modules: &BTreeMap<Path, Module>,
    depth: usize,
) -> Option<Path> {
    if depth > DEPTH_MAX {
        return None;
    }
    let mut at = from.clone();
    let mut rest = used;
    // `crate`, `super` and `self` give the module at which the path begins.
    while let Some((first, others)) = rest.split_first() {
        match first.as_str() {
            "crate" => at = Path::new(),
            "super" => _ = at.pop(),
            "self" => {}
            _ => break,
        }
        rest = others;
    }
    while let Some((first, others)) = rest.split_first() {
        let module = modules.get(&at)?;
        if module.children.contains(first) {
            at.push(first.clone());
            rest = others;
        } else if module.items.contains(first) {
            return Some(at);
        } else if let Some(import) = module.imports.get(first) {
            // A crate that is imported under its own name would be looked up here again.
            if import.first() == Some(first) && !module.children.contains(first) {
                return None;
            }
            let path: Path = import.iter().chain(others).cloned().collect();
            return resolve(&at, &path, modules, depth + 1);
        } else {
            return module.globs.iter().find_map(|glob| {
                let path: Path = glob.iter().chain(rest).cloned().collect();
                let target = resolve(&at, &path, modules, depth + 1)?;
                let name = rest.last().filter(|_| rest.len() == 1)?;
                modules[&target].items.contains(name).then_some(target)
            });
        }
    }
    // The path names a module itself, as in `use crate::wire;`; the code names the items that it uses.
    (at != *from && used.len() > 1).then_some(at).filter(|at| !modules[at].items.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let text = |path: &str| files.iter().find(|(name, _)| *name == path).map(|(_, text)| *text);
        circles_of(&modules::modules("src/lib.rs", &text).unwrap())
    }

    #[test]
    fn modules_that_use_each_other_are_a_circle() {
        let root = ("src/lib.rs", "mod a; mod b; mod c;");
        let (a, b) = (("src/a.rs", "use crate::b::B; pub struct A(B);"), "pub struct B;");
        let c = ("src/c.rs", "fn c(_: crate::a::A) {}");
        assert!(circles(&[root, a, ("src/b.rs", b), c]).is_empty());
        let b = "pub struct B; impl B { fn b() { crate::c::c() } }";
        let c = ("src/c.rs", "pub fn c() { let _ = super::a::A; }");
        let found = circles(&[root, a, ("src/b.rs", b), c]);
        assert_eq!(found, [["src/a.rs", "src/b.rs", "src/c.rs"]]);
    }

    #[test]
    fn a_use_of_a_re_exported_name_counts_for_its_definition() {
        let root = ("src/lib.rs", "mod a; pub use a::{A, B as C}; mod b;");
        let a = ("src/a/mod.rs", "mod inner; pub use inner::*; pub struct A;");
        let inner = ("src/a/inner.rs", "pub struct B;");
        let b = ("src/b.rs", "use crate::C; use crate::A;");
        assert!(circles(&[root, a, inner, b]).is_empty());
        let inner = ("src/a/inner.rs", "use crate::b::X; pub struct B;");
        let b = ("src/b.rs", "use crate::C; pub type X = C;");
        assert_eq!(circles(&[root, a, inner, b]), [["src/a/inner.rs", "src/b.rs"]]);
    }

    #[test]
    fn a_parent_that_uses_a_child_that_uses_it_is_a_circle() {
        let child = ("src/a.rs", "use super::Root; pub struct A(Root);");
        let root = ("src/lib.rs", "mod a; pub use a::A; pub struct Root;");
        assert!(circles(&[root, child]).is_empty());
        let root = ("src/lib.rs", "mod a; pub use a::A; pub struct Root; fn f(_: A) {}");
        assert_eq!(circles(&[root, child]), [["src/a.rs", "src/lib.rs"]]);
    }

    #[test]
    fn tests_are_left_out() {
        let root = ("src/lib.rs", "mod a; mod b;");
        let a = ("src/a.rs", "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }");
        let b = ("src/b.rs", "use crate::a::A; pub struct B;");
        assert!(circles(&[root, a, b]).is_empty());
    }

    #[test]
    fn allowed_circles_may_neither_grow_nor_shrink() {
        let circle = ["a.rs", "b.rs"].map(str::to_owned).to_vec();
        let allowed = |file, files| [Allowed { file, files, reason: "" }];
        let found = BTreeSet::from([circle]);
        assert!(compare(&found, &allowed("b.rs", 2)).is_empty());
        assert_eq!(compare(&found, &[]), ["2 files use each other: a.rs b.rs"]);
        for files in [1, 3] {
            let places = compare(&found, &allowed("b.rs", files));
            assert!(places.len() == 1 && places[0].starts_with("the circle of b.rs has 2 files"));
        }
        let places = compare(&found, &[&allowed("b.rs", 2)[..], &allowed("c.rs", 2)].concat());
        assert!(places.len() == 1 && places[0].ends_with("no circle with c.rs any more"));
    }
}
