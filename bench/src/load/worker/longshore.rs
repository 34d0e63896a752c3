//! The library's own load, from a path to a descriptor that can be given away.

use longshore_heap::{Heap, Sealing};
use longshore_load::{Engine, Loader, Plan, ReadMode, Report};

use super::{Finished, Prepared};
use crate::harness::Trouble;
use crate::load::data::DataFile;

pub(super) fn prepare(
    file: &DataFile,
    mode: &str,
    read_size: Option<(u64, u32)>,
) -> Result<Prepared, Trouble> {
    let mode: ReadMode = mode.parse()?;
    let file = file.clone();
    Ok(Box::new(move || {
        let plan = Plan::from_path(&file.path)?;
        let mut loader = Loader::new().heap(Heap::Memfd).mode(mode);
        if let Some((bytes, depth)) = read_size {
            loader = loader.read_size(bytes).depth(depth);
        }
        let loaded = loader.load(&plan)?;
        let note = describe(&loaded.report);
        let buffer = loaded.buffer.share(Sealing::Size)?;
        Ok(Finished::loaded(file, buffer, Some(note)))
    }))
}

/// The way the bytes took and the pages they came into, which decide the speed.
pub(crate) fn describe(report: &Report) -> String {
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
