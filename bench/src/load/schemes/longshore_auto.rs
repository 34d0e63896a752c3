//! The library's own load, with nothing chosen for it.

use anyhow::Result;
use longshore_heap::{Sealing, SharedBuffer};
use longshore_load::{Loader, Plan};

use super::{Kinds, Scheme};
use crate::load::data::DataFile;

pub(super) struct LongshoreAuto;

impl Scheme for LongshoreAuto {
    fn name(&self) -> &'static str {
        "longshore auto"
    }

    fn published_name(&self) -> Option<&'static str> {
        None
    }

    fn fill(&self, file: &DataFile, _kinds: &Kinds) -> Result<SharedBuffer> {
        let loaded = Loader::new().load(&Plan::from_path(&file.path)?)?;
        Ok(loaded.buffer.share(Sealing::Size)?)
    }
}
