//! The modules of a crate and the names that they use, read with `syn`.
//!
//! Test code and the arguments of macros are ignored.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, Item, ItemMod, ItemUse, Meta, UseTree};

/// A path of names, such as `crate::plan::Part`.
pub(super) type Path = Vec<String>;

/// A module, with the inline modules in its file.
#[derive(Debug, Default)]
pub(super) struct Module {
    /// The file, from the root of the crate.
    pub(super) file: String,
    /// The names that are defined here.
    pub(super) items: BTreeSet<String>,
    /// The modules below.
    pub(super) children: BTreeSet<String>,
    /// The imported names, and their paths.
    pub(super) imports: BTreeMap<String, Path>,
    /// The modules of glob imports.
    pub(super) globs: Vec<Path>,
    /// The paths in the code, and those of imports that are not re-exported.
    pub(super) paths: BTreeSet<Path>,
}

/// Reads the modules of a crate from its root file; returns them by their paths. `text` returns the text of a
/// file.
pub(super) fn modules<'t>(
    root: &str,
    text: &dyn Fn(&str) -> Option<&'t str>,
) -> Result<BTreeMap<Path, Module>> {
    let mut modules = BTreeMap::new();
    read(root, folder(root), &Path::new(), text, &mut modules)?;
    Ok(modules)
}

/// Resolves a path that is relative to a folder.
fn within(folder: &str, place: &str) -> String {
    let mut names: Vec<&str> = folder.split('/').collect();
    for name in place.split('/') {
        match name {
            ".." => _ = names.pop(),
            name => names.push(name),
        }
    }
    names.join("/")
}

fn folder(file: &str) -> &str {
    file.rsplit_once('/').map_or("", |(folder, _)| folder)
}

/// Reads the module `path` from `file`, and its submodules, whose files are in the folder `below`.
fn read<'t>(
    file: &str,
    below: &str,
    path: &Path,
    text: &dyn Fn(&str) -> Option<&'t str>,
    modules: &mut BTreeMap<Path, Module>,
) -> Result<()> {
    let content = text(file).with_context(|| format!("{file} does not exist"))?;
    let parsed = syn::parse_file(content).with_context(|| format!("parsing {file}"))?;
    let mut reader =
        Reader { module: Module { file: file.to_owned(), ..Module::default() }, files: Vec::new() };
    parsed.items.iter().for_each(|item| reader.visit_item(item));
    let Reader { module, files } = reader;
    modules.insert(path.clone(), module);
    for (name, place) in files {
        let (file, folder) = match place {
            Some(place) => (within(folder(file), &place), below.to_owned()),
            None => {
                let flat = format!("{below}/{name}.rs");
                let nested = format!("{below}/{name}/mod.rs");
                let file = if text(&flat).is_some() { flat } else { nested };
                (file, format!("{below}/{name}"))
            }
        };
        let mut path = path.clone();
        path.push(name);
        read(&file, &folder, &path, text, modules)?;
    }
    Ok(())
}

struct Reader {
    module: Module,
    /// The modules in files of their own, with the file if `#[path]` names it.
    files: Vec<(String, Option<String>)>,
}

impl Reader {
    fn import(&mut self, tree: &UseTree, mut path: Path, is_passed_on: bool) {
        match tree {
            UseTree::Path(part) => {
                path.push(part.ident.to_string());
                self.import(&part.tree, path, is_passed_on);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, path.clone(), is_passed_on));
            }
            UseTree::Glob(_) => self.module.globs.push(path),
            UseTree::Name(name) => self.import_name(&name.ident, &name.ident, path, is_passed_on),
            UseTree::Rename(name) => {
                self.import_name(&name.ident, &name.rename, path, is_passed_on);
            }
        }
    }

    fn import_name(&mut self, name: &Ident, alias: &Ident, mut path: Path, is_passed_on: bool) {
        let alias = match path.last() {
            Some(last) if alias == "self" => last.clone(),
            _ => alias.to_string(),
        };
        if name != "self" {
            path.push(name.to_string());
        }
        if !is_passed_on {
            self.module.paths.insert(path.clone());
        }
        self.module.imports.insert(alias, path);
    }

    fn import_all(&mut self, item: &ItemUse) {
        let is_passed_on = !matches!(item.vis, syn::Visibility::Inherited);
        self.import(&item.tree, Vec::new(), is_passed_on);
    }

    fn enter(&mut self, item: &ItemMod) {
        let name = item.ident.to_string();
        match &item.content {
            // The names of an inline module are resolved in this module, which is accurate enough.
            Some((_, items)) => {
                self.module.items.insert(name);
                items.iter().for_each(|item| self.visit_item(item));
            }
            None => {
                self.module.children.insert(name.clone());
                self.files.push((name, named_file(&item.attrs)));
            }
        }
    }
}

impl<'ast> Visit<'ast> for Reader {
    fn visit_item(&mut self, item: &'ast Item) {
        if is_test(attributes(item)) {
            return;
        }
        if let Some(name) = name(item) {
            self.module.items.insert(name);
        }
        match item {
            Item::Use(item) => self.import_all(item),
            Item::Mod(item) => self.enter(item),
            item => visit::visit_item(self, item),
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let names = path.segments.iter().map(|segment| segment.ident.to_string());
            self.module.paths.insert(names.collect());
        }
        visit::visit_path(self, path);
    }
}

/// Returns the name that an item defines.
fn name(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// Returns `true` for `#[test]`, and for `#[cfg(…)]` with `test` as all of the condition or as one of
/// several that must hold.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        if attribute.path().is_ident("test") {
            return true;
        }
        let Meta::List(list) = &attribute.meta else { return false };
        let condition = list.tokens.to_string().replace(' ', "");
        attribute.path().is_ident("cfg")
            && (condition == "test"
                || condition.strip_prefix("all(").is_some_and(|all| {
                    all.trim_end_matches(')').split(',').any(|part| part == "test")
                }))
    })
}

/// Returns the file that `#[path = "…"]` names, or the first one that it names under a condition.
fn named_file(attributes: &[Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let text = match &attribute.meta {
            Meta::NameValue(pair) if pair.path.is_ident("path") => {
                let syn::Expr::Lit(literal) = &pair.value else { return None };
                let syn::Lit::Str(file) = &literal.lit else { return None };
                return Some(file.value());
            }
            Meta::List(list) if list.path.is_ident("cfg_attr") => list.tokens.to_string(),
            _ => return None,
        };
        Some(text.split_once("path = \"")?.1.split_once('"')?.0.to_owned())
    })
}
