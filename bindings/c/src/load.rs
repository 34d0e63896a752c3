//! `longshore_load`.
#![expect(unsafe_code, reason = "a function that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::{cell::Cell, ptr};

use longshore_heap::Sealing;
use longshore_load::{CancelToken, Error, Loaded, Loader, Manifest};

use crate::buffer::longshore_buffer;
use crate::error::{Failure, longshore_code, longshore_error};
use crate::ffi::{self, ErrorOut, Out};
use crate::memory::Memory;
use crate::options::{self, Options, longshore_load_options};
use crate::tensor::{Tensors, of_opened};

/// Loads files into one new buffer, one after another, and returns when the buffer is complete, and
/// verified if that was requested. Its content is sealed unless `LONGSHORE_LOAD_WRITABLE` is set. By
/// default, resident pages are copied from the page cache, and the rest is read directly from the disk
/// into huge pages. A load that fails or is cancelled leaves nothing behind: neither memory nor a
/// descriptor nor a thread.
///
/// The call blocks and uses a few threads of its own. Any number of threads may load at once.
///
/// @param paths Paths of files. A directory stands for the model in it, `hf://ORG/NAME` for a
///   repository of the Hugging Face Hub, a `*.safetensors.index.json` for its shards, and the first of
///   several GGUF splits for all of them. `https://HOST/FILE` is a file of an HTTP server, and
///   `s3://BUCKET/KEY`, `gs://BUCKET/KEY` and `az://CONTAINER/KEY` are objects, or directories if they
///   end with `/`.
/// @param path_count The number of paths, at least 1.
/// @param options How to load, or NULL for the defaults.
/// @param buffer Where to put the buffer, which the caller frees with `longshore_buffer_free`; NULL
///   on failure.
/// @param error Where to put the error, which the caller frees with `longshore_error_free`, and which
///   is NULL on success; or NULL if only the code is needed.
/// @return `LONGSHORE_OK`, or any other code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_load(
    paths: *const *const c_char,
    path_count: usize,
    options: *const longshore_load_options,
    buffer: *mut *mut longshore_buffer,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a place for a pointer.
        let out = unsafe { Out::new(buffer, "buffer", ptr::null_mut()) }?;
        // SAFETY: C passes `path_count` strings, and does not change them during the call.
        let paths = unsafe { ffi::strings(paths, path_count, "paths") }?;
        // SAFETY: C passes NULL or options of the size in their first field, with strings and a
        // callback that are valid during the call.
        let options = unsafe { options::read(options) }?;
        out.put(Box::into_raw(Box::new(load(&paths, &options)?)));
        Ok(())
    })
}

fn load(paths: &[&CStr], options: &Options<'_>) -> Result<longshore_buffer, Failure> {
    if paths.is_empty() {
        return Err(Failure::argument("path_count is 0: pass at least one path".to_owned()));
    }
    if !options.writable && !options.heap.seals_content() {
        // Fail before anything is read.
        let heap = options.heap.clone();
        return Err(longshore_heap::Error::CannotSealContent { heap }.into());
    }
    let paths: Vec<&Path> = paths.iter().map(|path| ffi::path(path)).collect();
    let mut opened = options.remote.open(&paths, options.format)?;
    if let Some(alignment) = options.alignment {
        if opened.tensors.is_empty() {
            let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            let message = format!("align_bytes: no tensors were found in {}", names.join(", "));
            return Err(Failure::new(longshore_code::LONGSHORE_BAD_FORMAT, libc::EBADMSG, message));
        }
        opened = opened.align(alignment)?;
    }
    let manifest = options.manifest.map(|path| Manifest::open(ffi::path(path))).transpose()?;
    let Loaded { buffer, files, report, .. } = run(&opened, options, manifest.as_ref())?;

    let fd_len = buffer.file_len_bytes();
    let sealing = if options.writable { Sealing::Size } else { Sealing::Content };
    let shared = buffer.share(sealing)?;
    let mut buffer = longshore_buffer::new(Memory::Loaded(shared), fd_len, Some((&report).into()));
    buffer.tensors = Tensors::of(of_opened(&opened), buffer.address());
    buffer.files = files.into_iter().map(Into::into).collect();
    Ok(buffer)
}

/// Loads the opened files. It reports cancellation even if the callback cancels in its last call, when
/// the load is complete.
fn run(
    opened: &longshore_load::Opened,
    options: &Options<'_>,
    manifest: Option<&Manifest>,
) -> Result<Loaded, Failure> {
    let cancel = CancelToken::new();
    let stopped_at = Cell::new(None);
    let mut loader = Loader::new()
        .heap(options.heap.clone())
        .mode(options.mode)
        .use_uring(!options.no_uring)
        .cancel(&cancel);
    if let Some(callback) = &options.progress {
        loader = loader.observe(|now| {
            // A callback that cancelled is not called again.
            if stopped_at.get().is_none() && !callback.goes_on(now.done_bytes, now.total_bytes) {
                stopped_at.set(Some(now));
                cancel.cancel();
            }
        });
    }
    if let Some(bytes) = options.memory_max_bytes {
        loader = loader.memory_max(bytes);
    }
    if let Some(bytes) = options.populate_ahead_bytes {
        loader = loader.populate_ahead(bytes);
    }
    if let Some(count) = options.connections {
        loader = loader.connections(count);
    }
    for kind in &options.verify {
        loader = loader.digest(*kind);
    }
    if let Some(manifest) = manifest {
        loader = loader.manifest(manifest);
    }
    let loaded = loader.load(&opened.plan)?;
    match stopped_at.get() {
        Some(at) => {
            let (done_bytes, total_bytes) = (at.done_bytes, at.total_bytes);
            Err(Error::Cancelled { done_bytes, total_bytes }.into())
        }
        None => Ok(loaded),
    }
}
