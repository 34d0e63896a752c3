//! The library's stream of tensors.

use std::collections::HashMap;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use longshore_load::{FormatChoice, Loader, Rows, Selection, Stream, StreamOptions};
use longshore_mem::VolatileSlice;

use super::finished::{Finished, Prepared};
use crate::harness::subprocess::Streamed;
use crate::load::data::{self, DataFile};

pub(super) fn prepare(file: &DataFile, memory_bytes: u64, ranks: u64) -> Prepared {
    let file = file.clone();
    Box::new(move || {
        let began = Instant::now();
        let stream = begin(&file, memory_bytes, ranks)?;
        let mut first = None;
        while stream.next_tensor()?.is_some() {
            first.get_or_insert_with(|| began.elapsed());
        }
        let report = stream.report();
        let streamed = Streamed {
            first_seconds: first.context("the model has no tensors")?.as_secs_f64(),
            selected_bytes: report.selected_bytes,
            read_bytes: report.read_bytes,
            memory_bytes: report.memory_bytes,
        };
        // The content is gone, so the check reads it once more.
        let check = Box::new(move || check(&file, &begin(&file, memory_bytes, ranks)?));
        Ok(Finished { check, note: None, streamed: Some(streamed) })
    })
}

fn begin(file: &DataFile, memory_bytes: u64, ranks: u64) -> Result<Stream> {
    let opened = longshore_load::open(&[&file.path], FormatChoice::Safetensors)?;
    let selection = match ranks {
        1 => Selection::all(),
        count => Selection::all().rows(Rows::Share { index: 0, count }),
    };
    let options = StreamOptions::new().memory(memory_bytes);
    Ok(Loader::new().stream(opened, &selection, &options)?)
}

/// Compares each tensor, which begins with its first row, with the file.
fn check(file: &DataFile, stream: &Stream) -> Result<()> {
    let headers = stream.opened().tensors.iter().map(|of_file| &of_file.header);
    let tensors = headers.flat_map(longshore_formats::Header::tensors);
    let offsets: HashMap<String, u64> =
        tensors.map(|tensor| (tensor.name.to_owned(), tensor.data.start)).collect();
    let mut seen = 0;
    while let Some(tensor) = stream.next_tensor()? {
        let offset = *offsets.get(tensor.name()).context("the tensor is not in the file")?;
        #[expect(unsafe_code, reason = "a view of memory that this function owns")]
        // SAFETY: the tensor outlives the view, and no code writes to it.
        let view = unsafe { VolatileSlice::from_raw_parts(tensor.host().cast(), tensor.len()) };
        data::check_part(file, view, offset)?;
        seen += 1;
    }
    ensure!(seen == offsets.len(), "{seen} of {} tensors were read", offsets.len());
    Ok(())
}
