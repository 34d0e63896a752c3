//! The kinds of memory that a cursor walks.
//!
//! | kind | memory | others may change it | it can fault |
//! | --- | --- | --- | --- |
//! | [`ForeignBuf`] | one foreign range | yes | yes |
//! | [`ForeignVec`] | a list of foreign ranges | yes | yes |
//! | [`OwnVec`] | a list of private slices | no | no |
//! | [`PageVec`] | a list of parts of pages | yes | no |
//! | [`SparsePages`] | consecutive pages of an index; a missing one ends the walk | yes | no |
//! | [`PageQueue`] | a queue of parts of pages, which can grow during a walk | yes | no |
//! | [`Discard`] | none: bytes are counted and discarded | - | no |
//!
//! A kind keeps only its place; the [`Cursor`](crate::Cursor) limits how much is walked.

mod any;
mod discard;
mod foreign_buf;
mod foreign_vec;
mod kind;
mod list;
mod own_vec;
mod page_queue;
mod page_segment;
mod page_vec;
mod sparse_pages;
pub(crate) mod walk;

pub use any::AnyKind;
pub use discard::Discard;
pub use foreign_buf::ForeignBuf;
pub use foreign_vec::ForeignVec;
pub use kind::Kind;
pub use own_vec::OwnVec;
pub use page_queue::{PageAppender, PageQueue, QueuedPages};
pub use page_segment::PageSegment;
pub use page_vec::PageVec;
pub use sparse_pages::{PageIndex, SparsePages};
