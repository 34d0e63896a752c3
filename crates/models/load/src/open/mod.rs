//! Opening files: which tensors are in them, and where they go.
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
//! All that a header declares is checked against the file before anything is allocated for its
//! content. The content is then loaded as it is, header and all, so that where a tensor is in the
//! buffer follows from where it is in its file: [`Opened::placed_tensors`].
//!
//! The formats themselves are in [`longshore_formats`].

use std::ops::Range;
use std::path::{Path, PathBuf};

use longshore_formats::{Header, Image, TensorView, gguf, safetensors};
use longshore_mem::Granule;

use crate::error::{Error, Result};
use crate::plan::{Plan, PlannedFile};
use crate::source::{Opener, SourceFile};
use choice::Kind;

mod choice;
mod header;
mod shards;
mod splits;

pub use choice::{FormatChoice, ParseFormatChoiceError};
pub(crate) use header::read_exact;
pub use header::{read_gguf_header, read_safetensors_header};

/// Files that are open, planned, and known as far as their format tells.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// What to load, for [`crate::Loader::load`]. Shards take the place of their index, sorted by
    /// name, and splits the place of the first.
    pub plan: Plan,
    /// The tensors of each file that has some, in the order of the plan.
    pub tensors: Vec<FileTensors>,
}

/// The tensors of one file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileTensors {
    /// Which of [`Plan::files`] it is.
    pub file_index: usize,
    /// What is in it.
    pub header: Header,
}

/// A tensor and where in the buffer it goes.
#[derive(Clone, Debug)]
#[non_exhaustive]
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
/// use longshore_load::{FormatChoice, Loader};
///
/// let opened = longshore_load::open(&["model.safetensors.index.json"], FormatChoice::Auto)?;
/// let loaded = Loader::new().load(&opened.plan)?;
/// for placed in opened.placed_tensors() {
///     println!("{:?} is at {:?}", placed.tensor.name, placed.buffer_range);
/// }
/// # Ok::<(), longshore_load::Error>(())
/// ```
///
/// # Errors
/// Those of [`SourceFile::open`], [`read_safetensors_header`], [`read_gguf_header`] and
/// [`Plan::push`]; [`Error::Format`] for the first file that is not as the index or the other splits of
/// its model say, or missing, and for a model in several files whose headers have more than 128 MiB
/// together.
pub fn open(paths: &[impl AsRef<Path>], choice: FormatChoice) -> Result<Opened> {
    open_by(paths, choice, &|path: &Path| SourceFile::open(path))
}

/// As [`open`], each file opened by `by`: in another folder, or not where it leads out of one.
///
/// # Errors
/// Those of [`open`] and of `by`.
pub fn open_by(
    paths: &[impl AsRef<Path>],
    choice: FormatChoice,
    by: &dyn Opener,
) -> Result<Opened> {
    let mut opened = Opened { plan: Plan::new(), tensors: Vec::new() };
    // A pattern of the shell names all splits, of which the first brings in the others.
    let mut splits: Vec<PathBuf> = Vec::new();
    for path in paths {
        let path = path.as_ref();
        if splits.iter().any(|split| split == path) {
            continue;
        }
        match Kind::of(path, choice) {
            Kind::Raw => opened.plan.push(by.open(path)?)?,
            Kind::Safetensors => {
                let source = by.open(path)?;
                let header = header::safetensors_header(&source, by)?;
                opened.push(source, Header::Safetensors(header))?;
            }
            Kind::Index => {
                for (source, header) in shards::open(&by.open(path)?, by)? {
                    opened.push(source, Header::Safetensors(header))?;
                }
            }
            Kind::Gguf => {
                for (source, header) in splits::open(path, by)? {
                    splits.push(source.path().to_owned());
                    opened.push(source, Header::Gguf(header))?;
                }
            }
        }
    }
    Ok(opened)
}

/// Returns whether a file stands for others beside it, by its name.
pub fn names_others(path: &Path, choice: FormatChoice) -> bool {
    match Kind::of(path, choice) {
        Kind::Index => true,
        Kind::Gguf => splits::is_first_of_several(path),
        Kind::Raw | Kind::Safetensors => false,
    }
}

/// Returns whether the file at `path` would be read as the index of a model in several files. It is
/// not opened.
pub fn is_index(path: &Path, choice: FormatChoice) -> bool {
    matches!(Kind::of(path, choice), Kind::Index)
}

/// Returns the paths of the files that the one at `path` stands for, in the order in which
/// [`open_by`] opens them. Only the file at `path` is opened: the others may be files of another user
/// that the caller is not to read yet. A file that stands for itself alone is not opened either.
///
/// # Errors
/// Those of `by` and [`read_gguf_header`], and [`Error::Format`] where it is no index, or where the first
/// of several splits contradicts its name.
pub fn others_of(path: &Path, choice: FormatChoice, by: &dyn Opener) -> Result<Vec<PathBuf>> {
    if !names_others(path, choice) {
        return Ok(Vec::new());
    }
    match Kind::of(path, choice) {
        Kind::Index => {
            let source = by.open(path)?;
            Ok(shards::paths(source.path(), &shards::read_index(&source, by)?))
        }
        Kind::Gguf => splits::others(path, by),
        Kind::Raw | Kind::Safetensors => Ok(Vec::new()),
    }
}

/// Parses the header of a file whose content is in memory, taken for what [`open`] would take the file
/// at `path`. Returns `None` for a raw file.
///
/// # Errors
/// [`Error::Format`].
pub fn parse_header(path: &Path, content: &[u8], choice: FormatChoice) -> Result<Option<Header>> {
    let len_bytes = content.len() as u64;
    let header = match Kind::of(path, choice) {
        Kind::Raw => return Ok(None),
        Kind::Gguf => gguf::Header::parse(content, len_bytes).map(Header::Gguf),
        // Of an index, the files that it stands for.
        Kind::Safetensors | Kind::Index => {
            safetensors::Header::parse(content, len_bytes).map(Header::Safetensors)
        }
    };
    header.map(Some).map_err(|error| Error::format(path, error))
}

impl FileTensors {
    /// Makes the tensors of the file `file_index` of a plan.
    pub const fn new(file_index: usize, header: Header) -> Self {
        Self { file_index, header }
    }
}

impl Opened {
    /// Makes what a caller has opened by itself: a plan, and the tensors of those of its files that have
    /// some, in the order of the plan.
    pub const fn new(plan: Plan, tensors: Vec<FileTensors>) -> Self {
        Self { plan, tensors }
    }

    /// Plans anew, so that each tensor begins at a multiple of `alignment` in the buffer.
    ///
    /// A file some of whose tensors do not lie so becomes an image in the buffer: a whole file of
    /// its format with the same tensors and metadata, in an order that may be another. What
    /// [`Opened::tensors`] says is of the image then. Files of which no tensors are known begin at
    /// a multiple of the alignment.
    ///
    /// # Errors
    /// [`Error::Format`] where the format has no room for such a file, or where
    /// [`Opened::tensors`] was changed so that two tensors share bytes, or one lies outside the
    /// file; [`Error::NotEnoughMemory`] where the sum of the lengths passes 2^63.
    pub fn align(self, alignment: Granule) -> Result<Self> {
        let mut plan = Plan::new();
        let mut headers = self.tensors.into_iter().peekable();
        let mut tensors = Vec::new();
        for (file_index, source) in self.plan.into_sources().enumerate() {
            let of_file = headers.next_if(|of_file| of_file.file_index == file_index);
            let image = match of_file {
                None => Image::whole(source.len(), alignment),
                Some(FileTensors { header, .. }) => {
                    let aligned = header.align(source.len(), alignment);
                    let (image, header) =
                        aligned.map_err(|error| Error::format(source.path(), error))?;
                    tensors.push(FileTensors { file_index, header });
                    image
                }
            };
            plan.push_image(source, image)?;
        }
        Ok(Self { plan, tensors })
    }

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
