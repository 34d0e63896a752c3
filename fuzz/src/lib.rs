//! The checks of the fuzz targets.

pub mod checks;
pub mod cursor;
pub mod gguf;
pub mod http;
pub mod manifest;
/// The memory that the tests of cursors use.
#[path = "../../crates/memory/iov/tests/memory/mod.rs"]
mod memory;
pub mod page_table;
pub mod serve_protocol;
pub mod vfio_user;
pub mod vhost_user;
pub mod xet;
