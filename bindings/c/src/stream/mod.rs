//! `longshore_stream`: tensors one after the other, in bounded memory.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

pub mod options;
pub mod report;
pub mod tensor;

use std::ffi::{CStr, c_char};
use std::path::Path;
use std::ptr;

use longshore_load::{CancelToken, Loader, Manifest, PlannedFile, Stream, StreamedTensor};

use crate::error::{Failure, longshore_code, longshore_error};
use crate::ffi::{self, ErrorOut, Out};
use crate::file::longshore_file;
use options::{Request, Waiting, longshore_stream_options};
use report::longshore_stream_report;
use tensor::longshore_streamed_tensor;

/// The tensors of files, read one after the other into bounded memory. `longshore_stream_open`
/// creates it, and `longshore_stream_free` frees it. Any number of threads may use it at the same
/// time. A child process of `fork` keeps a copy of the tensors that the program has, and cannot get
/// others.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_stream {
    stream: Stream,
    cancel: CancelToken,
    waiting: Option<Waiting>,
    files: Vec<longshore_file>,
}

const _: () = {
    const fn threads_may_share<T: Send + Sync>() {}
    threads_may_share::<longshore_stream>();
};

impl longshore_stream {
    fn open(paths: &[&CStr], request: Request<'_>) -> Result<Self, Failure> {
        if paths.is_empty() {
            return Err(Failure::argument("path_count is 0: pass at least one path".to_owned()));
        }
        let paths: Vec<&Path> = paths.iter().map(|path| ffi::path(path)).collect();
        let opened = request.remote.open(&paths, request.format)?;
        let manifest = request.manifest.map(|path| Manifest::open(ffi::path(path))).transpose()?;
        let cancel = CancelToken::new();
        let mut loader =
            Loader::new().mode(request.mode).use_uring(!request.no_uring).cancel(&cancel);
        if let Some(count) = request.connections {
            loader = loader.connections(count);
        }
        for kind in request.verify {
            loader = loader.digest(kind);
        }
        if let Some(manifest) = &manifest {
            loader = loader.manifest(manifest);
        }
        let stream = loader.stream(opened, &request.selection, &request.stream)?;
        let files = stream.opened().plan.files();
        let files = files.iter().map(|file| file.source().into()).collect();
        Ok(Self { stream, cancel, waiting: request.waiting, files })
    }

    fn next(&self) -> Result<Option<StreamedTensor>, Failure> {
        let goes_on = || self.waiting.as_ref().is_none_or(Waiting::goes_on);
        Ok(self.stream.next_while(goes_on)?)
    }

    /// Returns a file, with its checksums if they are complete.
    fn file(&self, index: usize) -> Option<&longshore_file> {
        let file = self.files.get(index)?;
        let path = self.stream.opened().plan.files().get(index).map(PlannedFile::source)?.path();
        let digests = self.stream.digests().into_iter().find(|(of, _)| of == path);
        if let Some((_, digests)) = digests {
            file.set_digests(digests);
        }
        Some(file)
    }
}

/// Opens files, and begins to read tensors of them, with threads of its own. While the program uses
/// a tensor, the next ones are read, until the memory of the stream is full. Only the selected
/// tensors and rows are read.
///
/// @param paths Paths of safetensors or GGUF files, directories, and names of files on servers, as for
///   `longshore_load`.
/// @param path_count The number of paths, at least 1.
/// @param options The selection and the options, or NULL for all tensors and the defaults. Apart
///   from `waiting_data`, it is not used after the call.
/// @param stream Where to put the stream, which the caller frees with `longshore_stream_free`; NULL
///   on failure.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_INVALID_ARGUMENT` also if the selection does not fit the
///   files, for example because no tensor has a name of it; `LONGSHORE_NO_MEMORY` if `memory_bytes`
///   cannot hold the largest tensor, or is not available; or any other code.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_stream_open(
    paths: *const *const c_char,
    path_count: usize,
    options: *const longshore_stream_options,
    stream: *mut *mut longshore_stream,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a place for a pointer.
        let out = unsafe { Out::new(stream, "stream", ptr::null_mut()) }?;
        // SAFETY: C passes `path_count` strings, and does not change them during the call.
        let paths = unsafe { ffi::strings(paths, path_count, "paths") }?;
        // SAFETY: C passes NULL or options of the size in their first field, with strings and
        // arrays that are valid during the call, and a callback that is valid until the stream is
        // freed.
        let request = unsafe { options::read(options) }?;
        out.put(Box::into_raw(Box::new(longshore_stream::open(&paths, request)?)));
        Ok(())
    })
}

/// Returns the next tensor, and waits until it is read. Each tensor goes to one of the threads that
/// call this.
///
/// A tensor of 1 MiB or more is in the memory of the stream. If that is full of tensors that the
/// program holds, the call waits until one is freed, but no longer than `wait_ms`.
///
/// @param stream A stream.
/// @param tensor Where to put the tensor, which the caller frees with
///   `longshore_streamed_tensor_free`; NULL after the last tensor, and on failure.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`, also after the last tensor. `LONGSHORE_STREAM_FULL` if the memory is
///   full, and `LONGSHORE_CANCELLED` if the callback of the options stopped the call: then the
///   stream can go on. Any other code ends the stream, and later calls fail with
///   `LONGSHORE_STREAM_FAILED`, or with `LONGSHORE_CANCELLED` after `longshore_stream_cancel`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_stream_next(
    stream: *mut longshore_stream,
    tensor: *mut *mut longshore_streamed_tensor,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a place for a pointer.
        let out = unsafe { Out::new(tensor, "tensor", ptr::null_mut()) }?;
        // SAFETY: C passes NULL or a live stream.
        let stream = unsafe { ffi::borrow(stream, "stream") }?;
        if let Some(next) = stream.next()? {
            out.put(Box::into_raw(Box::new(next.into())));
        }
        Ok(())
    })
}

/// Cancels a stream. It begins no other reads, and each call of `longshore_stream_next` fails with
/// `LONGSHORE_CANCELLED`; one that waits does so within about 20 ms. Any thread and any signal
/// handler may call this.
///
/// @param stream A stream. If it is NULL, this does nothing.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_stream_cancel(stream: *mut longshore_stream) {
    if !stream.is_null() {
        ffi::guarded((), || {
            // SAFETY: C passes a live stream.
            unsafe { ffi::borrow(stream, "stream") }?.cancel.cancel();
            Ok(())
        });
    }
}

/// Stores the state of a stream.
///
/// @param stream A stream.
/// @param report Where to put the state. Its `size` must be set to
///   `sizeof(longshore_stream_report)`, and is kept; fields that the library's version does not
///   have are set to zero. The numbers of bytes that were read are exact after the last tensor.
/// @param error Where to put the error, or NULL.
/// @return `LONGSHORE_OK`; `LONGSHORE_INVALID_ARGUMENT` for NULL or an invalid `size`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_stream_stats(
    stream: *const longshore_stream,
    report: *mut longshore_stream_report,
    error: *mut *mut longshore_error,
) -> longshore_code {
    // SAFETY: C passes NULL or a place for a pointer.
    unsafe { ErrorOut::new(error) }.guard(|| {
        // SAFETY: C passes NULL or a live stream.
        let known = unsafe { ffi::borrow(stream, "stream") }?.stream.report();
        // SAFETY: C passes NULL or a report of the size in its first field.
        unsafe { report::STRUCT.write(&longshore_stream_report::from(&known), report, "report") }
    })
}

/// Returns the number of files of a stream. An index counts as its shards, and the first of several
/// splits as all of them.
///
/// @param stream A stream.
/// @return The number; 0 if `stream` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_stream_file_count(stream: *const longshore_stream) -> usize {
    // SAFETY: C passes NULL or a live stream.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(stream, "stream") }?.files.len()))
}

/// Returns one of the files of a stream. If checksums were requested, `longshore_file_digest`
/// returns them after a call of this function that follows the last tensor of the file.
///
/// @param stream A stream.
/// @param index The index of the file, as `longshore_tensor_file_index` returns it.
/// @return The file, which is valid as long as the stream; NULL if `index` is out of bounds or
///   `stream` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_stream_file(
    stream: *const longshore_stream,
    index: usize,
) -> *const longshore_file {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live stream.
        let file = unsafe { ffi::borrow(stream, "stream") }?.file(index);
        Ok(file.map_or(ptr::null(), ptr::from_ref))
    })
}

/// Frees a stream, which need not be at its end. The call waits for the reads in flight, but no
/// longer than a second: if a disk does not answer a read, its thread ends later. The tensors of
/// the stream stay valid, and its files become invalid. No thread may be using the stream.
///
/// @param stream A stream that is not used any more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_stream_free(stream: *mut longshore_stream) {
    // SAFETY: C passes NULL or a stream that this library returned, and does not use it afterwards.
    unsafe { ffi::free(stream) }
}
