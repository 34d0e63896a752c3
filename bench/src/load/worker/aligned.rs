//! The library's load of a model whose tensors are placed at multiples of something.

use anyhow::ensure;
use longshore_heap::{Heap, Sealing};
use longshore_load::FormatChoice;
use longshore_load::Loader;
use longshore_mem::Granule;

use super::longshore::describe;
use super::{Finished, Prepared};
use crate::harness::Trouble;
use crate::load::data::{self, DataFile};

pub(super) fn prepare(file: &DataFile, alignment_bytes: u64) -> Result<Prepared, Trouble> {
    let alignment = Granule::new(alignment_bytes).map_err(anyhow::Error::from)?;
    let file = file.clone();
    Ok(Box::new(move || {
        let as_it_is = longshore_load::open(&[&file.path], FormatChoice::Safetensors)?;
        let before: Vec<_> = as_it_is
            .placed_tensors()
            .map(|placed| (placed.tensor.name.to_owned(), placed.tensor.data.start))
            .collect();
        let opened = as_it_is.align(alignment)?;
        let loaded = Loader::new().heap(Heap::Memfd).load(&opened.plan)?;
        let note = describe(&loaded.report);
        let buffer = loaded.buffer.share(Sealing::Size)?;
        let check = Box::new(move || {
            let view = buffer.view()?;
            let mut seen = 0;
            for placed in opened.placed_tensors() {
                let range = placed.buffer_range;
                ensure!(alignment.is_aligned(range.start), "{} is not aligned", placed.tensor.name);
                let of_file = before.iter().find(|(name, _)| *name == placed.tensor.name);
                let Some((_, offset)) = of_file else { continue };
                let (start, len) = (range.start as usize, (range.end - range.start) as usize);
                data::check_part(&file, view.bytes().subslice(start, len)?, *offset)?;
                seen += 1;
            }
            ensure!(seen == before.len(), "{seen} tensors came of {}", before.len());
            Ok(())
        });
        Ok(Finished { check, note: Some(note) })
    }))
}
