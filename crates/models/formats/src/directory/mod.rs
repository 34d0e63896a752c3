//! The files of a model among those of a directory.
//!
//! A directory of weights has other files beside them, and sometimes the same weights in several forms.
//! [`select`] takes the first that exists:
//!
//! 1. the index of safetensors files (`model.safetensors.index.json`);
//! 2. `model.safetensors`;
//! 3. the only other safetensors file, or complete set of numbered files;
//! 4. the only GGUF file, or set of splits.
//!
//! A variant (`model.fp16.safetensors`) is selected only if there is no plain file (`model.safetensors`), or
//! by a [`ModelFilter`]. Adapters (`adapter_model.safetensors`) and projectors (`mmproj-*.gguf`) are not
//! models: see [`select_companion`]. A diffusers model has a directory for each of its [`components`].

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::format::Format;
use crate::pattern::matches_pattern;
use crate::quoted::QuotedName;

mod file_name;
mod find;
mod pipeline;

use file_name::{FileName, Kind};
pub use find::{Directory, FindError, find};
pub use pipeline::{PIPELINE_LEN_MAX_BYTES, check_pipeline_len, components};

/// The name of the index of a diffusers model.
pub const PIPELINE_NAME: &str = "model_index.json";

/// The most candidates that an error lists.
const LISTED_MAX: usize = 20;
/// The extensions of weights in formats that this crate does not read.
const OTHER_WEIGHTS: [&str; 6] = [".bin", ".pt", ".pth", ".ckpt", ".h5", ".onnx"];

/// A restriction of the files that a model in a directory is selected from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelFilter {
    include: Vec<String>,
    variant: Option<String>,
    format: Option<Format>,
}

impl ModelFilter {
    /// Makes a filter that restricts nothing.
    pub const fn new() -> Self {
        Self { include: Vec::new(), variant: None, format: None }
    }

    /// Selects all files with weights whose path in the directory matches a pattern, in place of the
    /// model. In the pattern, `*` stands for any characters, also for `/`, and `?` for one. Several
    /// patterns select the files that match any of them.
    pub fn include(mut self, pattern: impl Into<String>) -> Self {
        self.include.push(pattern.into());
        self
    }

    /// Selects a variant: `fp16` selects `model.fp16.safetensors`, and `Q4_K_M` the GGUF files with this
    /// word in their names.
    pub fn variant(mut self, variant: impl Into<String>) -> Self {
        self.variant = Some(variant.into());
        self
    }

    /// Selects only files of a format: GGUF files, or safetensors files and their indexes.
    pub fn format(mut self, format: Format) -> Self {
        self.format = Some(format);
        self
    }

    /// Returns the filter without its variant.
    pub fn without_variant(self) -> Self {
        Self { variant: None, ..self }
    }

    /// Returns the requested variant.
    pub fn requested_variant(&self) -> Option<&str> {
        self.variant.as_deref()
    }

    /// Returns `true` if the filter selects neither files nor a variant.
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.variant.is_none()
    }

    /// Returns `true` if a pattern can match files in folders of the directory.
    pub fn includes_folders(&self) -> bool {
        self.include.iter().any(|pattern| pattern.contains(['*', '/']))
    }
}

/// The reason why no files were selected.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DirectoryProblem {
    /// There are no safetensors and no GGUF files, or none of the requested format.
    NoModel {
        /// The requested format.
        format: Option<Format>,
        /// A file with weights in another format.
        other: Option<QuotedName>,
    },
    /// Several files or sets of files could be the model.
    Several {
        /// The first of each set, at most 20.
        candidates: Vec<QuotedName>,
        /// The number of candidates.
        count: usize,
    },
    /// No file is of the requested variant.
    NoVariant {
        /// The requested variant.
        variant: QuotedName,
        /// The files of other variants, at most 20.
        candidates: Vec<QuotedName>,
    },
    /// No file with weights matches the patterns.
    NothingIncluded {
        /// The files with weights, at most 20.
        candidates: Vec<QuotedName>,
    },
    /// Files of a numbered set are missing.
    Incomplete {
        /// A file of the set.
        name: QuotedName,
        /// The number of missing files.
        missing: u64,
        /// The number of files of the set.
        count: u64,
    },
    /// A component of a diffusers model has no directory, or no weights.
    NoComponent {
        /// The name of the component.
        name: QuotedName,
    },
    /// The model has several files, and none of them names the others.
    Separate {
        /// The number of files.
        count: usize,
    },
    /// The path is that of a file, from which nothing can be selected.
    File,
    /// A variant is requested twice.
    TwoVariants,
}

impl fmt::Display for DirectoryProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoModel { format, other } => {
                match format {
                    Some(format) => write!(f, "it contains no {format} files")?,
                    None => f.write_str("it contains no safetensors and no GGUF files")?,
                }
                match (other, format) {
                    (None, _) => Ok(()),
                    (Some(name), Some(_)) => write!(f, "; it has {name}"),
                    (Some(name), None) => write!(f, "; convert {name} to one of them"),
                }
            }
            Self::Several { candidates, count } => {
                write!(f, "it contains {count} models: {}", listed(candidates, *count))?;
                f.write_str("; name one of them, or select by variant or pattern")
            }
            Self::NoVariant { variant, candidates } => {
                write!(f, "it contains no files of the variant {variant}")?;
                match candidates.len() {
                    0 => Ok(()),
                    count => write!(f, "; it has {}", listed(candidates, count)),
                }
            }
            Self::NothingIncluded { candidates } => {
                f.write_str("none of its files with weights matches the pattern")?;
                match candidates.len() {
                    0 => Ok(()),
                    count => write!(f, "; it has {}", listed(candidates, count)),
                }
            }
            Self::Incomplete { name, missing, count } => write!(
                f,
                "{missing} of the {count} files of the set with {name} are missing; fetch them"
            ),
            Self::NoComponent { name } => {
                write!(f, "its component {name} has no weights here; fetch them")
            }
            Self::Separate { count } => {
                write!(f, "its model has {count} files, and none names the others; give one file")
            }
            Self::File => {
                f.write_str("it is a file: patterns and variants select files of a directory")
            }
            Self::TwoVariants => f.write_str("its name and the options select a variant; give one"),
        }
    }
}

impl std::error::Error for DirectoryProblem {}

fn listed(candidates: &[QuotedName], count: usize) -> String {
    let mut names: Vec<String> = candidates.iter().map(QuotedName::to_string).collect();
    if count > candidates.len() {
        names.push(format!("and {} more", count - candidates.len()));
    }
    names.join(", ")
}

/// A file with weights.
#[derive(Clone, Copy, Debug)]
struct File<'a> {
    /// The place in the list of names.
    place: usize,
    /// The path in the directory.
    path: &'a str,
}

/// A file, or several files with consecutive numbers.
#[derive(Clone, Debug)]
struct Group<'a> {
    name: FileName<'a>,
    /// The files, by number.
    files: Vec<(u64, File<'a>)>,
}

/// Selects the files of the model in a directory, and returns their places in `names`, in the order in
/// which to open them. `names` are the paths of all files relative to the directory, in any order.
///
/// For an index, the result is the index alone, and for splits of a GGUF model the first split, because
/// these name the other files. A numbered set of safetensors files without an index is returned whole.
///
/// # Errors
/// [`DirectoryProblem`] if there is no model, or more than one.
pub fn select(
    names: &[impl AsRef<str>],
    filter: &ModelFilter,
) -> Result<Vec<usize>, DirectoryProblem> {
    select_from(names, filter, false)
}

/// Selects the adapter or projector in a directory that has no model, as [`select`] does for models.
///
/// # Errors
/// Those of [`select`].
pub fn select_companion(
    names: &[impl AsRef<str>],
    filter: &ModelFilter,
) -> Result<Vec<usize>, DirectoryProblem> {
    select_from(names, filter, true)
}

fn select_from(
    names: &[impl AsRef<str>],
    filter: &ModelFilter,
    companions: bool,
) -> Result<Vec<usize>, DirectoryProblem> {
    let is_of_format = |group: &Group<'_>| {
        filter.format.is_none_or(|it| (it == Format::Gguf) == (group.name.kind == Kind::Gguf))
    };
    let (mut groups, others): (Vec<_>, Vec<_>) = groups(names).into_iter().partition(is_of_format);
    if !filter.include.is_empty() && !groups.is_empty() {
        return included(&groups, filter);
    }
    groups.retain(|group| group.name.is_companion() == companions);
    if groups.is_empty() {
        let is_other = |name: &&str| OTHER_WEIGHTS.iter().any(|ending| name.ends_with(ending));
        let of_other_kind = others.first().map(|group| group.files[0].1.path);
        let of_other_tools = || names.iter().map(AsRef::as_ref).find(is_other);
        let other = of_other_kind.or_else(of_other_tools).map(QuotedName::new);
        return Err(DirectoryProblem::NoModel { format: filter.format, other });
    }
    let groups = match &filter.variant {
        Some(variant) => of_variant(groups, variant)?,
        None => without_variants(&groups),
    };
    let of_kind = |kind| groups.iter().filter(move |group| group.name.kind == kind).collect();
    let indexes: Vec<&Group<'_>> = of_kind(Kind::Index);
    let safetensors: Vec<&Group<'_>> = of_kind(Kind::Safetensors);
    for candidates in [indexes, safetensors, of_kind(Kind::Gguf)] {
        match candidates.as_slice() {
            [] => {}
            [only] => return only.places(),
            several => {
                let is_usual = |group: &&&Group<'_>| {
                    let FileName { kind, base, of_set, .. } = &group.name;
                    *base == "model" && *kind != Kind::Gguf && of_set.is_none()
                };
                let mut usual = several.iter().filter(is_usual);
                return match (usual.next(), usual.next()) {
                    (Some(usual), None) => usual.places(),
                    _ => Err(DirectoryProblem::Several {
                        candidates: first_of(several.iter().copied()),
                        count: several.len(),
                    }),
                };
            }
        }
    }
    Err(DirectoryProblem::NoModel { format: filter.format, other: None })
}

/// Groups the files with weights, in the order of their paths.
fn groups(names: &[impl AsRef<str>]) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<(&str, &str, Option<&str>, u64, &str), Group<'_>> = BTreeMap::new();
    for (place, path) in names.iter().map(AsRef::as_ref).enumerate() {
        let (folder, last) = path.rsplit_once('/').unwrap_or(("", path));
        // Hidden files are those of tools, such as `._model.safetensors` of macOS.
        let Some(name) = FileName::parse(last).filter(|_| !last.starts_with('.')) else { continue };
        let (number, count) = name.of_set.unwrap_or((1, 0));
        let ending = match name.kind {
            Kind::Gguf => "gguf",
            Kind::Index => "index",
            Kind::Safetensors => "safetensors",
        };
        let key = (folder, name.base, name.variant, count, ending);
        let group = groups.entry(key).or_insert(Group { name, files: Vec::new() });
        group.files.push((number, File { place, path }));
    }
    let mut groups: Vec<Group<'_>> = groups.into_values().collect();
    for group in &mut groups {
        group.files.sort_unstable_by_key(|(number, file)| (*number, file.path));
    }
    groups.sort_unstable_by_key(|group| group.files[0].1.path);
    groups
}

/// Returns the places of all files that match the patterns. Indexes come first, so that a reader can skip
/// the shards that they name.
fn included(groups: &[Group<'_>], filter: &ModelFilter) -> Result<Vec<usize>, DirectoryProblem> {
    let mut files = Vec::new();
    for group in groups {
        if filter.variant.as_ref().is_some_and(|variant| !group.name.is_of_variant(variant)) {
            continue;
        }
        let is_included = |path: &str| filter.include.iter().any(|it| matches_pattern(it, path));
        let matching = group.files.iter().filter(|(_, file)| is_included(file.path));
        files.extend(matching.map(|(_, file)| (group.name.kind != Kind::Index, *file)));
    }
    if files.is_empty() {
        return Err(DirectoryProblem::NothingIncluded { candidates: first_of(groups) });
    }
    files.sort_by_key(|(is_not_index, file)| (*is_not_index, file.path));
    Ok(files.into_iter().map(|(_, file)| file.place).collect())
}

fn of_variant<'a>(
    groups: Vec<Group<'a>>,
    variant: &str,
) -> Result<Vec<Group<'a>>, DirectoryProblem> {
    let is_of_it = |group: &Group<'_>| group.name.is_of_variant(variant);
    let (found, others): (Vec<_>, Vec<_>) = groups.into_iter().partition(is_of_it);
    if found.is_empty() {
        let (variant, candidates) = (QuotedName::new(variant), first_of(&others));
        return Err(DirectoryProblem::NoVariant { variant, candidates });
    }
    Ok(found)
}

/// Leaves the variants of safetensors files out of which there is a plain one.
fn without_variants<'a>(groups: &[Group<'a>]) -> Vec<Group<'a>> {
    let is_plain = |group: &Group<'_>| group.name.variant.is_none();
    let is_safetensors = |group: &&Group<'_>| group.name.kind != Kind::Gguf && is_plain(group);
    let plain: BTreeSet<&str> =
        groups.iter().filter(is_safetensors).map(|group| group.name.base).collect();
    let stays = |group: &Group<'_>| is_plain(group) || !plain.contains(group.name.base);
    groups.iter().filter(|group| stays(group)).cloned().collect()
}

/// Returns the path of the first file of each group, for an error.
fn first_of<'a>(groups: impl IntoIterator<Item = &'a Group<'a>>) -> Vec<QuotedName> {
    let first = |group: &Group<'_>| QuotedName::new(group.files[0].1.path);
    groups.into_iter().take(LISTED_MAX).map(first).collect()
}

impl Group<'_> {
    /// Returns the places of the files to open.
    fn places(&self) -> Result<Vec<usize>, DirectoryProblem> {
        let (_, first) = self.files[0];
        let Some((_, count)) = self.name.of_set else { return Ok(vec![first.place]) };
        if let Some(pair) = self.files.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            // The variant of a set has two spellings.
            let candidates = pair.iter().map(|(_, file)| QuotedName::new(file.path)).collect();
            return Err(DirectoryProblem::Several { candidates, count: 2 });
        }
        let missing = count - self.files.len() as u64;
        if missing > 0 {
            let name = QuotedName::new(first.path);
            return Err(DirectoryProblem::Incomplete { name, missing, count });
        }
        Ok(match self.name.kind {
            Kind::Gguf => vec![first.place],
            _ => self.files.iter().map(|(_, file)| file.place).collect(),
        })
    }
}

#[cfg(test)]
mod tests;
