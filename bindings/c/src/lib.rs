//! The C library, which `include/longshore.h` declares.
//!
//! ```text
//!   C ──► entry points: one extern "C" function for each function of the header
//!           │      pointers checked, panics caught (ffi.rs)
//!           ▼
//!         safe code ──► longshore-load, longshore-heap, longshore-serve
//! ```
//!
//! The documentation of public items is written for C: cbindgen copies it into the header. Types have
//! their C names.

pub mod buffer;
pub mod error;
pub mod file;
pub mod load;
pub mod options;
pub mod serve;
pub mod servers;
pub mod stats;
pub mod stream;
pub mod tensor;
pub mod version;

mod ffi;
mod memory;
mod sized;

pub use buffer::longshore_buffer;
pub use error::{longshore_code, longshore_error};
pub use file::longshore_file;
pub use options::{longshore_load_options, longshore_progress};
pub use serve::{longshore_held, longshore_visit};
pub use servers::longshore_storage_option;
pub use stats::longshore_stats;
pub use stream::longshore_stream;
pub use stream::options::{longshore_rows, longshore_stream_options, longshore_waiting};
pub use stream::report::longshore_stream_report;
pub use stream::tensor::longshore_streamed_tensor;
pub use tensor::longshore_tensor;
