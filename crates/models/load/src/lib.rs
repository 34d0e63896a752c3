//! Loads files into a shared buffer at the speed of the disk, without the page cache.
//!
//! ```text
//!   Plan (which bytes of which files)
//!     │
//!     ▼
//!   Loader::load ──► budget: does it fit? ──► Heap::reserve ──► fill ──► unchanged? verified?
//!                                                                             │
//!                                                                             ▼
//!                                                        Loaded { buffer, files, report }
//! ```
//!
//! A load returns a complete [`longshore_heap::Buffer`] or an error. The error names the file, the
//! range, the operation and the number of bytes that were done. A load that fails leaves no descriptor
//! and no memory behind. A drawing in the source of the `fill` module shows how reads overlap with
//! prefaulting.
//!
//! A [`Publisher`] makes files of a model in a tmpfs, so that every program of the machine can use them.
//!
//! [`open`](open()) opens the files of models. It checks their headers before memory is allocated for
//! the content.

mod atomic_file;
mod budget;
mod checksum;
mod digest_kind;
mod error;
mod fill;
mod find;
mod into_slice;
mod keep_copy;
mod loader;
mod mode;
mod object;
mod open;
mod plan;
mod progress;
mod publish;
mod reason;
mod repack;
mod report;
mod source;
mod stream;
mod verify;
mod version;

pub use atomic_file::AtomicFile;
pub use digest_kind::{DigestKind, ParseDigestKindError};
pub use error::{Error, Result};
pub use find::{
    HubCache, HubName, HubProblem, ParseHubNameError, RepositoryKind, find_files, locate,
};
pub use keep_copy::KeptCopy;
pub use loader::{Loaded, LoadedFile, Loader, POPULATE_AHEAD_DEFAULT_BYTES};
pub use mode::{ParseReadModeError, ReadMode};
pub use object::{Object, ObjectError, ReadControl};
pub use open::{
    FileTensors, FormatChoice, Opened, ParseFormatChoiceError, PlacedTensor, buffer_range,
    is_index, names_others, open, open_by, others_of, parse_header, read_gguf_header,
    read_safetensors_header,
};
pub use plan::{FILE_ALIGNMENT, Plan, PlannedFile};
pub use progress::{CancelToken, Progress};
pub use publish::{
    FoundModel, HeldFile, HeldModel, ManagerLock, ModelUse, Outcome, PublishProblem, Published,
    PublishedFile, PublishedModel, PublishedModels, Publisher, RemoteModel, SourceState,
};
pub use reason::{Change, FileKind, FormatProblem, ManifestProblem, MemoryLimit, ModeProblem};
pub use repack::{copy_file, repack};
pub use report::{BytesByRoute, Engine, Report};
pub use source::{Opener, SourceFile};
pub use stream::{
    OnFull, Order, Rows, RowsOfTensor, Selection, Stream, StreamOptions, StreamProblem,
    StreamReport, StreamedTensor, Tensors,
};
pub use verify::Manifest;
pub use version::FileVersion;
