//! The kinds of memory that a cursor walks.
//!
//! | kind | memory | others may change it | it can fault |
//! | --- | --- | --- | --- |
//! | [`ForeignBuf`] | one foreign range | yes | yes |
//! | [`ForeignVec`] | a list of foreign ranges | yes | yes |
//! | [`OwnVec`] | a list of own slices | no | no |
//! | [`PageVec`] | a list of parts of pages | yes | no |
//! | [`SparsePages`] | pages by index, from one on; a missing one ends the walk | yes | no |
//! | [`PageQueue`] | batches of pages that may be appended to meanwhile | yes | no |
//! | [`Discard`] | none: bytes are counted | - | no |
//!
//! A kind keeps its place and nothing else; how much may be walked is the
//! [`Cursor`](crate::Cursor)'s affair.

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
