//! `longshore_file`: the files of a buffer or a stream.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use longshore_load::{DigestKind, LoadedFile, SourceFile};
use longshore_serve::AttachedFile;

use crate::buffer::longshore_buffer;
use crate::ffi;
use crate::options::KINDS;

/// A file that a buffer was filled from, or that a stream reads. It belongs to the buffer or the
/// stream, and is valid as long as its owner.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_file {
    path: CString,
    offset: u64,
    len: u64,
    /// Each with its bit in `verify`. Those of a stream are computed while it exists.
    digests: OnceLock<Vec<(u32, CString)>>,
}

impl longshore_file {
    /// Stores the checksums, if that was not done before.
    pub(crate) fn set_digests(&self, digests: Vec<(DigestKind, String)>) {
        let bit = |kind| KINDS.iter().find(|(_, known)| *known == kind).map_or(0, |(bit, _)| *bit);
        let digest = |(kind, hex)| Some((bit(kind), CString::new(hex).ok()?));
        self.digests.get_or_init(|| digests.into_iter().filter_map(digest).collect());
    }
}

impl From<&SourceFile> for longshore_file {
    /// Makes a file of a stream.
    fn from(file: &SourceFile) -> Self {
        Self {
            path: c_path(file.path().to_owned()),
            offset: 0,
            len: file.len(),
            digests: OnceLock::new(),
        }
    }
}

impl From<LoadedFile> for longshore_file {
    fn from(file: LoadedFile) -> Self {
        let LoadedFile { path, buffer_offset, len_bytes, digests, .. } = file;
        let (path, digests_of) = (c_path(path), OnceLock::new());
        let file = Self { path, offset: buffer_offset, len: len_bytes, digests: digests_of };
        file.set_digests(digests);
        file
    }
}

impl From<AttachedFile> for longshore_file {
    fn from(file: AttachedFile) -> Self {
        Self {
            path: c_path(file.path),
            offset: file.buffer_offset,
            len: file.len_bytes,
            digests: OnceLock::new(),
        }
    }
}

/// Converts a path that was opened, which contains no NUL.
fn c_path(path: PathBuf) -> CString {
    CString::new(path.into_os_string().into_vec()).unwrap_or_default()
}

/// Returns the number of files that a buffer was filled from. An index counts as its shards, and
/// the first of several splits as all of them.
///
/// @param buffer A buffer.
/// @return The number; 0 if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_file_count(buffer: *const longshore_buffer) -> usize {
    // SAFETY: C passes NULL or a live buffer.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(buffer, "buffer") }?.files.len()))
}

/// Returns one of the files that a buffer was filled from, in the order of the buffer.
///
/// @param buffer A buffer.
/// @param index The index of the file; 0 for the first.
/// @return The file, which is valid as long as the buffer; NULL if `index` is out of bounds or
///   `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_file(
    buffer: *const longshore_buffer,
    index: usize,
) -> *const longshore_file {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live buffer.
        let files = &unsafe { ffi::borrow(buffer, "buffer") }?.files;
        Ok(files.get(index).map_or(ptr::null(), ptr::from_ref))
    })
}

/// Returns the path by which a file was opened.
///
/// @param file A file.
/// @return The path, which is valid as long as the file's owner; NULL if `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_path(file: *const longshore_file) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a file whose owner lives.
        Ok(unsafe { ffi::borrow(file, "file") }?.path.as_ptr())
    })
}

/// Returns the offset of a file in the buffer.
///
/// @param file A file.
/// @return The offset in bytes, a multiple of 4096 and of `align_bytes`; 0 for a file of a stream,
///   and if `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_offset(file: *const longshore_file) -> u64 {
    // SAFETY: C passes NULL or a file whose owner lives.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(file, "file") }?.offset))
}

/// Returns the length of a file: that of the file on the disk, or of its aligned layout in a buffer
/// if the tensors were aligned.
///
/// @param file A file.
/// @return The length in bytes; 0 if `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_len(file: *const longshore_file) -> u64 {
    // SAFETY: C passes NULL or a file whose owner lives.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(file, "file") }?.len))
}

/// Returns a checksum of a file as it is on the disk, computed while it was read.
/// `longshore_stream_file` documents when a stream has it.
///
/// @param file A file.
/// @param kind One of `LONGSHORE_VERIFY_*`.
/// @return Lower-case hexadecimal digits, which are valid as long as the file's owner; NULL if
///   neither `verify` nor the manifest requested this checksum, a stream has not computed it yet,
///   the buffer is attached, or `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_digest(
    file: *const longshore_file,
    kind: u32,
) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a file whose owner lives.
        let digests = unsafe { ffi::borrow(file, "file") }?.digests.get();
        let found = digests.into_iter().flatten().find(|(bit, _)| *bit == kind);
        Ok(found.map_or(ptr::null(), |(_, hex)| hex.as_ptr()))
    })
}
