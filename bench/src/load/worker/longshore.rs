//! The library's own load, from a path to a descriptor for another process: of a model as it is, or with
//! aligned tensors.

use anyhow::ensure;
use longshore_heap::{Heap, Sealing};
use longshore_load::{Engine, FormatChoice, Loader, Plan, ReadMode, Report};
use longshore_mem::Granule;

use super::finished::{Finished, Prepared};
use crate::harness::Trouble;
use crate::load::data::{self, DataFile};

pub(super) fn prepare(file: &DataFile, direct: bool, read_size: Option<(u64, u32)>) -> Prepared {
    let mode = if direct { ReadMode::Direct } else { ReadMode::Auto };
    let file = file.clone();
    Box::new(move || {
        let plan = Plan::from_path(&file.path)?;
        let mut loader = Loader::new().heap(Heap::Memfd).mode(mode);
        if let Some((bytes, depth)) = read_size {
            loader = loader.read_size(bytes).depth(depth);
        }
        let loaded = loader.load(&plan)?;
        let note = describe(&loaded.report);
        let buffer = loaded.buffer.share(Sealing::Size)?;
        Ok(Finished::loaded(file, buffer, Some(note)))
    })
}

pub(super) fn prepare_aligned(file: &DataFile, alignment_bytes: u64) -> Result<Prepared, Trouble> {
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
            ensure!(seen == before.len(), "{seen} of {} tensors were loaded", before.len());
            Ok(())
        });
        Ok(Finished { check, note: Some(note), streamed: None })
    }))
}

/// Describes the routes of the bytes and the page sizes, which determine the speed.
fn describe(report: &Report) -> String {
    let route = report.by_route;
    let ways = [
        ("direct", route.direct),
        ("staged", route.staged),
        ("from the page cache", route.page_cache),
        ("uncached", route.uncached),
        ("buffered", route.buffered),
    ];
    let ways: Vec<String> = ways
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(way, bytes)| match u128::from(bytes) * 100 / u128::from(report.content_bytes) {
            100 => way.to_owned(),
            share => format!("{way} {share}%"),
        })
        .collect();
    let engine = match &report.engine {
        Engine::Uring => "io_uring",
        _ => "threads",
    };
    format!("{} in {} pages, read {} by {engine}", report.heap, report.pages, ways.join(", "))
}
