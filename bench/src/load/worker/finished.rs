//! The result of a job.

use anyhow::Result;
use longshore_heap::SharedBuffer;

use crate::harness::subprocess::Streamed;
use crate::load::data::{self, DataFile};

/// The result of a job.
pub(crate) struct Finished {
    /// Compares the content with the expected content, and frees it.
    pub(crate) check: Box<dyn FnOnce() -> Result<()>>,
    pub(crate) note: Option<String>,
    pub(crate) streamed: Option<Streamed>,
}

/// A job that has been prepared.
pub(crate) type Prepared = Box<dyn FnOnce() -> Result<Finished>>;

impl Finished {
    /// Returns the result of a load: a buffer that must have the content of `file`.
    pub(crate) fn loaded(file: DataFile, buffer: SharedBuffer, note: Option<String>) -> Self {
        let check = Box::new(move || data::check(&file, buffer.view()?.bytes()));
        Self { check, note, streamed: None }
    }
}
