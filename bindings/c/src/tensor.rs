//! `longshore_tensor`: the tensors of a buffer or a stream.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::Range;
use std::ptr;

use longshore_formats::TensorView;
use longshore_load::{Opened, StreamedTensor};

use crate::buffer::longshore_buffer;
use crate::ffi;

/// A tensor. It belongs to a `longshore_buffer` or a `longshore_streamed_tensor`, and is valid as
/// long as its owner.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_tensor {
    /// Ends with a NUL, and may contain others.
    name: Box<[u8]>,
    dtype: CString,
    shape: Box<[u64]>,
    /// Its bytes in the buffer; from 0 if it belongs to no buffer.
    range: Range<u64>,
    /// The index of its file in the buffer or the stream.
    file: usize,
    /// The address of its data in this process, as an integer, which threads can share.
    address: usize,
}

impl From<&StreamedTensor> for longshore_tensor {
    /// Describes a tensor that a stream has yielded, and exposes the provenance of its address.
    fn from(tensor: &StreamedTensor) -> Self {
        Self {
            name: c_name(tensor.name()),
            dtype: CString::new(tensor.dtype().name()).unwrap_or_default(),
            shape: tensor.shape().into(),
            range: 0..tensor.host().len() as u64,
            file: tensor.file_index(),
            address: tensor.host().as_ptr().cast::<u8>().expose_provenance(),
        }
    }
}

/// Returns a name with a NUL at its end.
fn c_name(name: &str) -> Box<[u8]> {
    [name.as_bytes(), b"\0"].concat().into()
}

/// A tensor, its byte range in the buffer, and the index of its file.
pub(crate) struct Found<'a> {
    pub(crate) tensor: TensorView<'a>,
    pub(crate) range: Range<u64>,
    pub(crate) file: usize,
}

/// Returns the tensors of opened files.
pub(crate) fn of_opened(opened: &Opened) -> impl Iterator<Item = Found<'_>> {
    let files = opened.plan.files();
    let mut file = 0;
    opened.placed_tensors().map(move |placed| {
        // The tensors are in the order of the files.
        while !ptr::eq(placed.file, &raw const files[file]) {
            file += 1;
        }
        Found { tensor: placed.tensor, range: placed.buffer_range, file }
    })
}

/// The tensors of a buffer, and their order by name.
#[derive(Debug, Default)]
pub(crate) struct Tensors {
    all: Vec<longshore_tensor>,
    by_name: Vec<usize>,
}

impl Tensors {
    /// Collects tensors in the order of the buffer, which begins at `address`.
    pub(crate) fn of<'a>(found: impl Iterator<Item = Found<'a>>, address: usize) -> Self {
        let tensor = |Found { tensor, range, file }: Found<'_>| longshore_tensor {
            name: c_name(tensor.name),
            dtype: CString::new(tensor.dtype.name()).unwrap_or_default(),
            shape: tensor.shape.into(),
            // The offset fits, because the buffer is mapped.
            address: address + range.start as usize,
            range,
            file,
        };
        let all: Vec<longshore_tensor> = found.map(tensor).collect();
        let mut by_name: Vec<usize> = (0..all.len()).collect();
        // A stable sort: of two tensors with the same name, the first in the buffer comes first.
        by_name.sort_by(|a, b| all[*a].name.cmp(&all[*b].name));
        Self { all, by_name }
    }

    /// Returns the first tensor of this name, which contains no NUL.
    fn find(&self, name: &CStr) -> Option<&longshore_tensor> {
        let name = name.to_bytes_with_nul();
        let at = self.by_name.partition_point(|index| *self.all[*index].name < *name);
        let found = &self.all[*self.by_name.get(at)?];
        (*found.name == *name).then_some(found)
    }
}

/// Returns the number of tensors in a buffer.
///
/// @param buffer A buffer.
/// @return The number; 0 if the files are raw or have no tensors, or if `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_tensor_count(buffer: *const longshore_buffer) -> usize {
    // SAFETY: C passes NULL or a live buffer.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(buffer, "buffer") }?.tensors.all.len()))
}

/// Returns one of the tensors in a buffer, in the order of their files and of their data.
///
/// @param buffer A buffer.
/// @param index The index of the tensor; 0 for the first.
/// @return The tensor, which is valid as long as the buffer; NULL if `index` is out of bounds or
///   `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_tensor(
    buffer: *const longshore_buffer,
    index: usize,
) -> *const longshore_tensor {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live buffer.
        let tensors = &unsafe { ffi::borrow(buffer, "buffer") }?.tensors;
        Ok(tensors.all.get(index).map_or(ptr::null(), ptr::from_ref))
    })
}

/// Finds a tensor by its name, by a binary search.
///
/// @param buffer A buffer.
/// @param name The name, as it is in the file.
/// @return The tensor, which is valid as long as the buffer; the first in the buffer if several
///   files have one of this name; NULL if there is none, or if an argument is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_find_tensor(
    buffer: *const longshore_buffer,
    name: *const c_char,
) -> *const longshore_tensor {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live buffer.
        let tensors = &unsafe { ffi::borrow(buffer, "buffer") }?.tensors;
        // SAFETY: C passes NULL or a string.
        let name = unsafe { ffi::string(name, "name") }?;
        Ok(tensors.find(name).map_or(ptr::null(), ptr::from_ref))
    })
}

/// Returns the name of a tensor, as it is in the file. It is UTF-8 and may contain any character,
/// including control characters and terminal escape sequences.
///
/// @param tensor A tensor.
/// @return The name, which ends with a NUL and is valid as long as the tensor; NULL if `tensor` is
///   NULL. The name itself may contain a NUL: `longshore_tensor_name_len` returns its whole length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_name(tensor: *const longshore_tensor) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor whose owner lives.
        Ok(unsafe { ffi::borrow(tensor, "tensor") }?.name.as_ptr().cast())
    })
}

/// Returns the length of a tensor's name.
///
/// @param tensor A tensor.
/// @return The length in bytes, without the NUL at its end; 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_name_len(tensor: *const longshore_tensor) -> usize {
    // SAFETY: C passes NULL or a tensor whose owner lives.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(tensor, "tensor") }?.name.len() - 1))
}

/// Returns the type of a tensor's elements by its name in the format, such as `BF16`, `F8_E4M3` or
/// `Q4_K`.
///
/// @param tensor A tensor.
/// @return A string that is valid as long as the tensor; NULL if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_dtype(tensor: *const longshore_tensor) -> *const c_char {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor whose owner lives.
        Ok(unsafe { ffi::borrow(tensor, "tensor") }?.dtype.as_ptr())
    })
}

/// Returns the number of dimensions of a tensor.
///
/// @param tensor A tensor.
/// @return The number; 0 for a scalar, and if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_ndim(tensor: *const longshore_tensor) -> usize {
    // SAFETY: C passes NULL or a tensor whose owner lives.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(tensor, "tensor") }?.shape.len()))
}

/// Returns the dimensions of a tensor, outermost first, even for GGUF files, which store them
/// innermost first. If a stream reads only some rows, the first dimension is their number. If a
/// dimension is zero, there is no data.
///
/// @param tensor A tensor.
/// @return An array of `longshore_tensor_ndim` numbers, which is valid as long as the tensor; NULL
///   if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_shape(tensor: *const longshore_tensor) -> *const u64 {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor whose owner lives.
        Ok(unsafe { ffi::borrow(tensor, "tensor") }?.shape.as_ptr())
    })
}

/// Returns the offset of a tensor's data in the buffer, and so in the file behind its descriptor.
///
/// @param tensor A tensor.
/// @return The offset in bytes; 0 for a tensor of a stream, and if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_offset(tensor: *const longshore_tensor) -> u64 {
    // SAFETY: C passes NULL or a tensor whose owner lives.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(tensor, "tensor") }?.range.start))
}

/// Returns the length of a tensor's data.
///
/// @param tensor A tensor.
/// @return The length in bytes; 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_len(tensor: *const longshore_tensor) -> u64 {
    ffi::guarded(0, || {
        // SAFETY: C passes NULL or a tensor whose owner lives.
        let range = &unsafe { ffi::borrow(tensor, "tensor") }?.range;
        Ok(range.end - range.start)
    })
}

/// Returns the data of a tensor. In a buffer it is `longshore_buffer_data` plus
/// `longshore_tensor_offset`, with the same rules for access. It is aligned to `align_bytes` if
/// that was set; if not, it may be unaligned, as in the file. Do not read it if the length is 0.
///
/// @param tensor A tensor.
/// @return The data, which is valid as long as the tensor; NULL if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_data(tensor: *const longshore_tensor) -> *const c_void {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor whose owner lives.
        let address = unsafe { ffi::borrow(tensor, "tensor") }?.address;
        Ok(ptr::with_exposed_provenance(address))
    })
}

/// Returns the file that a tensor is in, as an `index` of `longshore_buffer_file` or
/// `longshore_stream_file`.
///
/// @param tensor A tensor.
/// @return The index; 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_file_index(tensor: *const longshore_tensor) -> usize {
    // SAFETY: C passes NULL or a tensor whose owner lives.
    ffi::guarded(0, || Ok(unsafe { ffi::borrow(tensor, "tensor") }?.file))
}
