//! `longshore_file`: the files that a buffer was filled from.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::{CString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::ptr;

use longshore_load::LoadedFile;
use longshore_serve::AttachedFile;

use crate::buffer::longshore_buffer;
use crate::ffi;
use crate::options::KINDS;

/// A file that a buffer was filled from. It belongs to the buffer and is valid as long as it.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_file {
    path: CString,
    offset: u64,
    len: u64,
    /// Each with its bit in `verify`.
    digests: Vec<(u32, CString)>,
}

impl From<LoadedFile> for longshore_file {
    fn from(file: LoadedFile) -> Self {
        let bit = |kind| KINDS.iter().find(|(_, known)| *known == kind).map_or(0, |(bit, _)| *bit);
        let digest = |(kind, hex)| Some((bit(kind), CString::new(hex).ok()?));
        Self {
            // A path that was opened contains no NUL.
            path: CString::new(file.path.into_os_string().into_vec()).unwrap_or_default(),
            offset: file.buffer_offset,
            len: file.len_bytes,
            digests: file.digests.into_iter().filter_map(digest).collect(),
        }
    }
}

impl From<AttachedFile> for longshore_file {
    fn from(file: AttachedFile) -> Self {
        Self {
            path: CString::new(file.path.into_os_string().into_vec()).unwrap_or_default(),
            offset: file.buffer_offset,
            len: file.len_bytes,
            digests: Vec::new(),
        }
    }
}

/// Returns the number of files that a buffer was filled from. An index counts as its shards, and the
/// first of several splits as all of them.
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
/// @param file A file of a buffer.
/// @return The path, which is valid as long as the buffer; NULL if `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_path(file: *const longshore_file) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a file of a live buffer.
        Ok(unsafe { ffi::borrow(file, "file") }?.path.as_ptr())
    })
}

/// Returns the offset of a file in the buffer.
///
/// @param file A file of a buffer.
/// @return The offset in bytes, a multiple of 4096 and of `align_bytes`; 0 if `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_offset(file: *const longshore_file) -> u64 {
    // SAFETY: C passes NULL or a file of a live buffer.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(file, "file") }?.offset))
}

/// Returns the length of a file in the buffer: that of the file on the disk, or of its aligned layout
/// if the tensors were aligned.
///
/// @param file A file of a buffer.
/// @return The length in bytes; 0 if `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_len(file: *const longshore_file) -> u64 {
    // SAFETY: C passes NULL or a file of a live buffer.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(file, "file") }?.len))
}

/// Returns a checksum of a file as it is on the disk, computed while it was read.
///
/// @param file A file of a buffer.
/// @param kind One of `LONGSHORE_VERIFY_*`.
/// @return Lower-case hexadecimal digits, which are valid as long as the buffer; NULL if neither
///   `verify` nor the manifest requested this checksum, the buffer is attached, or `file` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_file_digest(
    file: *const longshore_file,
    kind: u32,
) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a file of a live buffer.
        let digests = &unsafe { ffi::borrow(file, "file") }?.digests;
        let found = digests.iter().find(|(bit, _)| *bit == kind);
        Ok(found.map_or(ptr::null(), |(_, hex)| hex.as_ptr()))
    })
}
