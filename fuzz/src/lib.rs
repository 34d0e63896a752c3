//! What the fuzz targets check.

pub mod checks;
pub mod cursor;
pub mod gguf;
pub mod manifest;
/// The memory that the cursors' own tests walk.
#[path = "../../crates/memory/iov/tests/memory/mod.rs"]
mod memory;
pub mod page_table;
pub mod serve_protocol;
pub mod vfio_user;
pub mod vhost_user;
