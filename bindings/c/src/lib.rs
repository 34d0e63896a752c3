//! The C library: what `include/longshore.h` declares.
//!
//! ```text
//!   C ──► doors: extern "C" functions, one for each line of the header
//!           │      pointers checked, panics caught (door.rs)
//!           ▼
//!         safe code ──► longshore-load, longshore-heap, longshore-serve
//! ```
//!
//! Documentation here is written for the header, which cbindgen makes of it. Types are named as C
//! sees them.

pub mod buffer;
pub mod error;
pub mod file;
pub mod load;
pub mod options;
pub mod serve;
pub mod stats;
pub mod tensor;
pub mod version;

mod door;
mod memory;

pub use buffer::longshore_buffer;
pub use error::{longshore_code, longshore_error};
pub use file::longshore_file;
pub use options::{longshore_load_options, longshore_progress};
pub use serve::{longshore_held, longshore_visit};
pub use stats::longshore_stats;
pub use tensor::longshore_tensor;
