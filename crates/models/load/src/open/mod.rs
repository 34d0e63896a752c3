//! Opens files, reads their headers, and plans where their tensors go in the buffer.
//!
//! ```text
//!   paths ──► open ──┬─ model.safetensors             header read and checked ──┐
//!                    ├─ model.safetensors.index.json  shards found and checked ─┤
//!                    ├─ model.gguf                    header read and checked ──┼─► Opened
//!                    ├─ model-00001-of-00003.gguf     splits found and checked ─┤   │
//!                    ├─ a name without extension      the first bytes decide   ─┤   │
//!                    └─ any other file                raw                      ─┘   │
//!                                                                  Loader::load(&opened.plan)
//! ```
//!
//! A header is checked against its file before memory is allocated for the content. Files are loaded
//! unchanged, including their headers, so the place of a tensor in the buffer follows from its place in
//! the file: [`Opened::placed_tensors`].
//!
//! The formats themselves are in [`longshore_formats`].

use std::collections::HashSet;
use std::ops::Range;
use std::path::{Path, PathBuf};

use longshore_formats::directory::ModelFilter;
use longshore_formats::{Header, Image, TensorView, gguf, safetensors};
use longshore_mem::Granule;

use crate::error::{Error, Result};
use crate::find::find_files;
use crate::plan::{Plan, PlannedFile};
use crate::source::{Opener, SourceFile};
use choice::{Content, Kind};

mod choice;
mod header;
mod shards;
mod splits;

pub use choice::{FormatChoice, ParseFormatChoiceError};
pub(crate) use header::HeadersOfModel;
pub(crate) use header::read_exact;
pub use header::{read_gguf_header, read_safetensors_header};

/// Opened files: a plan to load them, and their tensors.
#[derive(Debug)]
#[non_exhaustive]
pub struct Opened {
    /// The plan for [`crate::Loader::load`]. It has the shards in place of their index, sorted by name,
    /// and all splits in place of the first.
    pub plan: Plan,
    /// The tensors of each file with a known format, in the order of the plan.
    pub tensors: Vec<FileTensors>,
}

/// The tensors of one file of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FileTensors {
    /// The index of the file in [`Plan::files`].
    pub file_index: usize,
    /// The header of the file.
    pub header: Header,
}

/// A tensor and its place in the buffer.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PlacedTensor<'a> {
    /// The file with the tensor.
    pub file: &'a PlannedFile,
    /// The tensor. Its `data` is its range in the file or in the aligned layout.
    pub tensor: TensorView<'a>,
    /// The range of the data in the buffer.
    pub buffer_range: Range<u64>,
}

/// Opens files, reads their headers, and plans to load all files whole, one behind the other. A directory
/// stands for the files of its model, and `hf://ORG/NAME` for those of a repository in the local cache
/// of the Hugging Face Hub, as in [`find_files`].
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
/// Those of [`SourceFile::open`], [`read_safetensors_header`], [`read_gguf_header`] and [`Plan::push`];
/// [`Error::Format`] if a file of a model is missing or contradicts the index or the other splits, or
/// if the headers of all files of a model together have more than 128 MiB; those of [`find_files`].
pub fn open(paths: &[impl AsRef<Path>], choice: FormatChoice) -> Result<Opened> {
    let filter = ModelFilter::new();
    let mut files = Vec::new();
    for path in paths {
        files.extend(find_files(path, choice, &filter)?);
    }
    open_by(&files, choice, &|path: &Path| SourceFile::open(path))
}

/// Opens files like [`open`], each through `by`, which can for example restrict them to a folder. A
/// directory is not searched for a model.
///
/// A file that an index or a first split has named before is not opened again.
///
/// # Errors
/// Those of [`open`] and of `by`.
pub fn open_by(
    paths: &[impl AsRef<Path>],
    choice: FormatChoice,
    by: &dyn Opener,
) -> Result<Opened> {
    let mut opened = Opened { plan: Plan::new(), tensors: Vec::new() };
    // A pattern of a shell names all splits, but opening the first one has opened the others already.
    let mut others: HashSet<PathBuf> = HashSet::new();
    for path in paths {
        let path = path.as_ref();
        if others.contains(path) {
            continue;
        }
        match Kind::of(path, choice) {
            Kind::Raw => opened.plan.push(by.open(path)?)?,
            Kind::Unnamed => {
                let source = by.open(path)?;
                match Content::of(&source)? {
                    Content::Gguf => {
                        let header = header::gguf_header(&source, by)?;
                        opened.push(source, Header::Gguf(header))?;
                    }
                    Content::Safetensors => opened.push_safetensors(source, by)?,
                    Content::Unknown => opened.plan.push(source)?,
                }
            }
            Kind::Safetensors => opened.push_safetensors(by.open(path)?, by)?,
            Kind::Index => {
                for (source, header) in shards::open(&by.open(path)?, by)? {
                    others.insert(source.path().to_owned());
                    opened.push(source, Header::Safetensors(header))?;
                }
            }
            Kind::Gguf => {
                for (source, header) in splits::open(path, by)? {
                    others.insert(source.path().to_owned());
                    opened.push(source, Header::Gguf(header))?;
                }
            }
        }
    }
    Ok(opened)
}

/// Returns `true` if, by its name, the file is an index or the first of several splits.
pub fn names_others(path: &Path, choice: FormatChoice) -> bool {
    match Kind::of(path, choice) {
        Kind::Index => true,
        Kind::Gguf => splits::is_first_of_several(path),
        Kind::Raw | Kind::Safetensors | Kind::Unnamed => false,
    }
}

/// Returns `true` if [`open`] would read the file at `path` as the index of a model in several files.
/// Does not open the file.
pub fn is_index(path: &Path, choice: FormatChoice) -> bool {
    matches!(Kind::of(path, choice), Kind::Index)
}

/// Returns the paths of the other files that [`open_by`] would open for the one at `path`, in that
/// order: the shards of an index, or the other splits.
///
/// This opens only the file at `path`, because the others may be files that the caller must not read
/// yet. If its name is neither that of an index nor of a first split, it opens no file and returns no
/// paths.
///
/// # Errors
/// Those of `by` and [`read_gguf_header`]; [`Error::Format`] if the file is not a valid index, or if the
/// metadata of the first split contradicts its name.
pub fn others_of(path: &Path, choice: FormatChoice, by: &dyn Opener) -> Result<Vec<PathBuf>> {
    if !names_others(path, choice) {
        return Ok(Vec::new());
    }
    match Kind::of(path, choice) {
        Kind::Index => {
            let source = by.open(path)?;
            let index = shards::read_index(&source, by)?;
            Ok(shards::paths(source.path(), &index, by))
        }
        Kind::Gguf => splits::others(path, by),
        Kind::Raw | Kind::Safetensors | Kind::Unnamed => Ok(Vec::new()),
    }
}

/// Parses the header of a file whose content is in memory, in the format that [`open`] would choose for
/// `path`. Returns `None` for a raw file.
///
/// # Errors
/// [`Error::Format`].
pub fn parse_header(path: &Path, content: &[u8], choice: FormatChoice) -> Result<Option<Header>> {
    let len_bytes = content.len() as u64;
    let kind = match Kind::of(path, choice) {
        Kind::Unnamed => Content::of_beginning(content).kind(),
        kind => kind,
    };
    let header = match kind {
        Kind::Raw | Kind::Unnamed => return Ok(None),
        Kind::Gguf => gguf::Header::parse(content, len_bytes).map(Header::Gguf),
        // In place of an index, its shards are in memory.
        Kind::Safetensors | Kind::Index => {
            safetensors::Header::parse(content, len_bytes).map(Header::Safetensors)
        }
    };
    header.map(Some).map_err(|error| Error::format(path, error))
}

impl FileTensors {
    /// Makes the tensors of the file with index `file_index` in a plan.
    pub const fn new(file_index: usize, header: Header) -> Self {
        Self { file_index, header }
    }
}

impl Opened {
    /// Makes an `Opened` from a plan and the tensors of its files, in the order of the plan.
    pub const fn new(plan: Plan, tensors: Vec<FileTensors>) -> Self {
        Self { plan, tensors }
    }

    /// Changes the plan so that each tensor begins at a multiple of `alignment` in the buffer.
    ///
    /// If a file has an unaligned tensor, the buffer gets an aligned layout in place of the file: a
    /// whole file of the same format with the same tensors and metadata, possibly in another order.
    /// [`Opened::tensors`] then describes that layout. Files without known tensors begin at a multiple
    /// of the alignment.
    ///
    /// # Errors
    /// [`Error::Format`] if the format cannot represent such a file, or if [`Opened::tensors`] was
    /// changed so that two tensors overlap or one lies outside the file; [`Error::NotEnoughMemory`] if
    /// the length of the buffer would reach 2^63 bytes.
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

    fn push_safetensors(&mut self, source: SourceFile, by: &dyn Opener) -> Result<()> {
        let header = header::safetensors_header(&source, by)?;
        self.push(source, Header::Safetensors(header))
    }

    fn push(&mut self, source: SourceFile, header: Header) -> Result<()> {
        let file_index = self.plan.files().len();
        self.plan.push(source)?;
        self.tensors.push(FileTensors { file_index, header });
        Ok(())
    }

    /// Returns all tensors of all files with their places, in the order of the buffer, without padding
    /// tensors.
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

/// Returns the range of the buffer for a range of a file. The plan must have the whole file, as a plan
/// of [`open`] does.
pub fn buffer_range(file: &PlannedFile, data: &Range<u64>) -> Range<u64> {
    let shifted = |offset: u64| file.buffer_offset() + offset;
    shifted(data.start)..shifted(data.end)
}
