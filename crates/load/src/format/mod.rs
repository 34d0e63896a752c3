//! File formats: which tensors are in the files to be loaded, and where.
//!
//! ```text
//!   paths ──► open ──┬─ model.safetensors             header read and checked ──┐
//!                    ├─ model.safetensors.index.json  shards found and checked ─┤
//!                    ├─ model.gguf                    header read and checked ──┼─► Opened
//!                    ├─ model-00001-of-00003.gguf     splits found and checked ─┤   │
//!                    └─ any other file                raw                      ─┘   │
//!                                                                  Loader::load(&opened.plan)
//! ```
//!
//! All that a file says of itself is held against the file before anything is allocated for its
//! content. The content is then loaded as it is, header and all, so that where a tensor is in the
//! buffer follows from where it is in its file: [`Opened::placed_tensors`].
//!
//! [`Header`] and [`TensorView`] are what all formats have in common; what one has of its own is in
//! its module.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use longshore_mem::FileOffset;
use longshore_sys::file::{self, ReadFlags};

use crate::error::{Error, Result};
use crate::plan::{Plan, PlannedFile};
use crate::source::SourceFile;
use index::ShardIndex;

pub mod gguf;
pub mod index;
pub mod safetensors;
pub mod synthetic;

mod align;
mod header;
mod json;

pub use header::{Dtype, Header, TensorView};
pub use json::printable;

/// What files are taken to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum FormatChoice {
    /// What their names say: `*.safetensors` is safetensors, `*.safetensors.index.json` stands for
    /// the shards it names, `*.gguf` is GGUF, the first of several splits standing for all, and
    /// anything else is raw.
    #[default]
    Auto,
    /// Bytes that nothing is known of, whatever the name.
    Raw,
    /// Safetensors whatever the name; `*.index.json` stands for the shards it names.
    Safetensors,
    /// GGUF whatever the name; the first of several splits stands for all.
    Gguf,
}

impl FormatChoice {
    /// What a file that holds a model is by its first bytes, whatever its name: GGUF if it says so,
    /// and else safetensors, which says nothing.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Truncated`].
    pub fn of_content(source: &SourceFile) -> Result<Self> {
        let mut first = [0; gguf::MAGIC.len()];
        if source.len_bytes() >= first.len() as u64 {
            read_exact(source, &mut first, 0)?;
        }
        Ok(if first == gguf::MAGIC { Self::Gguf } else { Self::Safetensors })
    }
}

/// A word that names no format.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is no format; there are auto, raw, safetensors and gguf")]
pub struct ParseFormatChoiceError(String);

impl FromStr for FormatChoice {
    type Err = ParseFormatChoiceError;

    fn from_str(word: &str) -> std::result::Result<Self, ParseFormatChoiceError> {
        Ok(match word {
            "auto" => Self::Auto,
            "raw" => Self::Raw,
            "safetensors" => Self::Safetensors,
            "gguf" => Self::Gguf,
            _ => return Err(ParseFormatChoiceError(word.to_owned())),
        })
    }
}

/// The word that [`FromStr`] reads back.
impl fmt::Display for FormatChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Auto => "auto",
            Self::Raw => "raw",
            Self::Safetensors => "safetensors",
            Self::Gguf => "gguf",
        })
    }
}

/// Files that are open, planned, and known as far as their format tells.
#[derive(Debug)]
pub struct Opened {
    /// What to load, for [`crate::Loader::load`]. Shards take the place of their index, sorted by
    /// name, and splits the place of the first.
    pub plan: Plan,
    /// The tensors of each file that has some, in the order of the plan.
    pub tensors: Vec<FileTensors>,
}

/// The tensors of one file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileTensors {
    /// Which of [`Plan::files`] it is.
    pub file_index: usize,
    /// What is in it.
    pub header: Header,
}

/// A tensor and where in the buffer it goes.
#[derive(Clone, Debug)]
pub struct PlacedTensor<'a> {
    /// The file it is in.
    pub file: &'a PlannedFile,
    /// The tensor; its `data` is where it is in the file.
    pub tensor: TensorView<'a>,
    /// Its bytes in the buffer.
    pub buffer_range: Range<u64>,
}

/// Opens files, finds out what is in them, and plans to load them whole, one behind the other.
///
/// ```no_run
/// use longshore_load::{Loader, format};
///
/// let opened = format::open(&["model.safetensors.index.json"], format::FormatChoice::Auto)?;
/// let loaded = Loader::new().load(&opened.plan)?;
/// for placed in opened.placed_tensors() {
///     println!("{:?} is at {:?}", placed.tensor.name, placed.buffer_range);
/// }
/// # Ok::<(), longshore_load::Error>(())
/// ```
///
/// # Errors
/// Those of [`SourceFile::open`], [`safetensors::Header::read`], [`ShardIndex::read`],
/// [`ShardIndex::open_shards`], [`gguf::open_splits`] and [`Plan::push`]: what is wrong with the
/// first file that has something wrong with it.
pub fn open(paths: &[impl AsRef<Path>], choice: FormatChoice) -> Result<Opened> {
    open_by(paths, choice, &|path| SourceFile::open(path))
}

/// How a file that is named, or that belongs to one that is, is opened.
pub type Opener<'a> = &'a dyn Fn(&Path) -> Result<SourceFile>;

/// As [`open`], each file opened by `by`: in another folder, or not where it leads out of one.
///
/// # Errors
/// Those of [`open`] and of `by`.
pub fn open_by(paths: &[impl AsRef<Path>], choice: FormatChoice, by: Opener<'_>) -> Result<Opened> {
    let mut opened = Opened { plan: Plan::new(), tensors: Vec::new() };
    // A pattern of the shell names all splits, of which the first brings in the others.
    let mut splits: Vec<PathBuf> = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if splits.iter().any(|split| split == path) {
            continue;
        }
        match Kind::of(path, choice) {
            Kind::Raw => opened.plan.push(by(path)?)?,
            Kind::Safetensors => {
                let source = by(path)?;
                let header = safetensors::Header::read(&source)?;
                opened.push(source, Header::Safetensors(header))?;
            }
            Kind::Index => {
                for (source, header) in ShardIndex::read_source(&by(path)?)?.open_shards_by(by)? {
                    opened.push(source, Header::Safetensors(header))?;
                }
            }
            Kind::Gguf => {
                for (source, header) in gguf::open_splits_by(path, by)? {
                    splits.push(source.path().to_owned());
                    opened.push(source, Header::Gguf(header))?;
                }
            }
        }
    }
    Ok(opened)
}

/// Whether a file stands for others beside it, by its name.
pub fn names_others(path: &Path, choice: FormatChoice) -> bool {
    match Kind::of(path, choice) {
        Kind::Index => true,
        Kind::Gguf => gguf::is_first_of_several(path),
        Kind::Raw | Kind::Safetensors => false,
    }
}

impl Opened {
    fn push(&mut self, source: SourceFile, header: Header) -> Result<()> {
        let file_index = self.plan.files().len();
        self.plan.push(source)?;
        self.tensors.push(FileTensors { file_index, header });
        Ok(())
    }

    /// Every tensor of every file and where in the buffer it goes, in the order of the buffer. What
    /// only fills a gap is left out.
    pub fn placed_tensors(&self) -> impl Iterator<Item = PlacedTensor<'_>> {
        self.tensors.iter().flat_map(|of_file| {
            let file = &self.plan.files()[of_file.file_index];
            let tensors = of_file.header.tensors().filter(|tensor| !tensor.is_padding());
            tensors.map(move |tensor| {
                let buffer_range = buffer_range(file, &tensor.data);
                PlacedTensor { file, tensor, buffer_range }
            })
        })
    }
}

/// The bytes of the buffer that these bytes of a file take. The file must be planned whole, as
/// [`open`] does.
pub fn buffer_range(file: &PlannedFile, data: &Range<u64>) -> Range<u64> {
    let shifted = |offset: u64| file.buffer_offset() + offset;
    shifted(data.start)..shifted(data.end)
}

enum Kind {
    Raw,
    Safetensors,
    Index,
    Gguf,
}

impl Kind {
    /// Names may be anything but UTF-8: only their ends count.
    fn of(path: &Path, choice: FormatChoice) -> Self {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        // Variants have their name in front of the last ending: model.safetensors.index.fp16.json.
        let is_index = name.ends_with(".json")
            && (name.contains(".safetensors.index.")
                || choice == FormatChoice::Safetensors && name.ends_with(".index.json"));
        match choice {
            FormatChoice::Raw => Self::Raw,
            FormatChoice::Gguf => Self::Gguf,
            _ if is_index => Self::Index,
            FormatChoice::Safetensors => Self::Safetensors,
            FormatChoice::Auto if name.ends_with(".safetensors") => Self::Safetensors,
            FormatChoice::Auto if name.ends_with(".gguf") => Self::Gguf,
            FormatChoice::Auto => Self::Raw,
        }
    }
}

/// Reads all of `bytes` from `offset`, through the page cache.
pub(crate) fn read_exact(source: &SourceFile, bytes: &mut [u8], offset: u64) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        let at = offset + done as u64;
        let rest = &mut bytes[done..];
        let range = at..at + rest.len() as u64;
        let read =
            file::read_into(source.buffered(), rest, FileOffset::new(at), ReadFlags::default());
        let path = || source.path().to_owned();
        match read {
            Ok(0) => {
                let len_bytes = source.len_bytes();
                return Err(Error::Truncated { path: path(), ended_at: at, len_bytes });
            }
            Ok(read) => done += read,
            Err(source) => {
                return Err(Error::Read { path: path(), range, done_bytes: 0, source });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_format() {
        use FormatChoice::{Auto, Gguf, Raw, Safetensors};
        let kinds = |name: &str| {
            [Auto, Raw, Safetensors, Gguf].map(|choice| match Kind::of(Path::new(name), choice) {
                Kind::Raw => 'r',
                Kind::Safetensors => 's',
                Kind::Index => 'i',
                Kind::Gguf => 'g',
            })
        };
        for (name, expected) in [
            ("a/model.safetensors", "srsg"),
            ("model.safetensors.index.json", "irig"),
            ("model.safetensors.index.fp16.json", "irig"),
            ("weights.index.json", "rrig"),
            ("model.safetensors.json", "rrsg"),
            ("model.gguf", "grsg"),
            ("model-00002-of-00003.gguf", "grsg"),
            ("model.gguf.part", "rrsg"),
            (".safetensors", "srsg"),
            ("model.safetensors/blob", "rrsg"),
            ("/", "rrsg"),
        ] {
            assert_eq!(kinds(name).iter().collect::<String>(), expected, "{name}");
        }
    }

    #[test]
    fn words_are_read_back_as_they_are_written() {
        for word in ["auto", "raw", "safetensors", "gguf"] {
            assert_eq!(word.parse::<FormatChoice>().unwrap().to_string(), word);
        }
        assert!("GGUF".parse::<FormatChoice>().is_err());
    }
}
