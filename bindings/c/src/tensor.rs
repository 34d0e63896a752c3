//! The tensors of a buffer, as C sees them.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::Range;
use std::ptr;

use longshore_formats::TensorView;
use longshore_load::Opened;

use crate::buffer::longshore_buffer;
use crate::door;

/// A tensor in a buffer. It belongs to the buffer and lasts as long.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_tensor {
    /// With a NUL at its end, and perhaps others in it.
    name: Box<[u8]>,
    dtype: CString,
    shape: Box<[u64]>,
    range: Range<u64>,
    /// Which of the buffer's files it is in.
    file: usize,
    /// Where its bytes are in this process: an address, so that threads may share it.
    address: usize,
}

/// A tensor, its bytes in the buffer, and which of the buffer's files it is in.
pub(crate) struct Found<'a> {
    pub(crate) tensor: TensorView<'a>,
    pub(crate) range: Range<u64>,
    pub(crate) file: usize,
}

/// Those of files that were opened.
pub(crate) fn of_opened(opened: &Opened) -> impl Iterator<Item = Found<'_>> {
    let files = opened.plan.files();
    let mut file = 0;
    opened.placed_tensors().map(move |placed| {
        // They come file by file.
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
    /// Those that were found, in the order of the buffer, which begins at `address`.
    pub(crate) fn of<'a>(found: impl Iterator<Item = Found<'a>>, address: usize) -> Self {
        let tensor = |Found { tensor, range, file }: Found<'_>| longshore_tensor {
            name: [tensor.name.as_bytes(), b"\0"].concat().into(),
            dtype: CString::new(tensor.dtype.name()).unwrap_or_default(),
            shape: tensor.shape.into(),
            // It is in the buffer, which is in memory.
            address: address + range.start as usize,
            range,
            file,
        };
        let all: Vec<longshore_tensor> = found.map(tensor).collect();
        let mut by_name: Vec<usize> = (0..all.len()).collect();
        // Stable: of two with one name, the first in the buffer comes first.
        by_name.sort_by(|a, b| all[*a].name.cmp(&all[*b].name));
        Self { all, by_name }
    }

    /// The first tensor of this name, which has no NUL in it.
    fn find(&self, name: &CStr) -> Option<&longshore_tensor> {
        let name = name.to_bytes_with_nul();
        let at = self.by_name.partition_point(|index| *self.all[*index].name < *name);
        let found = &self.all[*self.by_name.get(at)?];
        (*found.name == *name).then_some(found)
    }
}

/// The number of tensors in a buffer.
///
/// @param buffer A buffer.
/// @return The number; 0 if its files have no tensors that are known, or `buffer` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_tensor_count(buffer: *const longshore_buffer) -> usize {
    // SAFETY: C passes NULL or a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(buffer, "buffer") }?.tensors.all.len()))
}

/// One of the tensors in a buffer, in the order of their files and of their data in them.
///
/// @param buffer A buffer.
/// @param index Which: 0 for the first.
/// @return The tensor, which lasts as long as the buffer; NULL if there are not so many or `buffer`
///   is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_tensor(
    buffer: *const longshore_buffer,
    index: usize,
) -> *const longshore_tensor {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a buffer that lives.
        let tensors = &unsafe { door::borrow(buffer, "buffer") }?.tensors;
        Ok(tensors.all.get(index).map_or(ptr::null(), ptr::from_ref))
    })
}

/// The tensor of a name, found in a time that grows with the logarithm of their number.
///
/// @param buffer A buffer.
/// @param name The name, as it is in the file.
/// @return The tensor, which lasts as long as the buffer: the first in the buffer, if several files
///   have one of this name; NULL if none has, or an argument is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_buffer_find_tensor(
    buffer: *const longshore_buffer,
    name: *const c_char,
) -> *const longshore_tensor {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a buffer that lives.
        let tensors = &unsafe { door::borrow(buffer, "buffer") }?.tensors;
        // SAFETY: C passes NULL or a string.
        let name = unsafe { door::string(name, "name") }?;
        Ok(tensors.find(name).map_or(ptr::null(), ptr::from_ref))
    })
}

/// The name of a tensor, as it is in the file: UTF-8, in which any character may be, also such as
/// a terminal obeys.
///
/// @param tensor A tensor.
/// @return The name, which lasts as long as the buffer; NULL if `tensor` is NULL. A NUL ends it;
///   where the name itself has one, `longshore_tensor_name_len` tells its whole length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_name(tensor: *const longshore_tensor) -> *const c_char {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor of a buffer that lives.
        Ok(unsafe { door::borrow(tensor, "tensor") }?.name.as_ptr().cast())
    })
}

/// The length of a tensor's name.
///
/// @param tensor A tensor.
/// @return The length in bytes, without the NUL at its end; 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_name_len(tensor: *const longshore_tensor) -> usize {
    // SAFETY: C passes NULL or a tensor of a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(tensor, "tensor") }?.name.len() - 1))
}

/// What the elements of a tensor are, in the words of its format: `BF16`, `F8_E4M3`, `Q4_K`.
///
/// @param tensor A tensor.
/// @return A string that lasts as long as the buffer; NULL if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_dtype(tensor: *const longshore_tensor) -> *const c_char {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor of a buffer that lives.
        Ok(unsafe { door::borrow(tensor, "tensor") }?.dtype.as_ptr())
    })
}

/// The number of dimensions of a tensor.
///
/// @param tensor A tensor.
/// @return The number; 0 for a scalar, and if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_ndim(tensor: *const longshore_tensor) -> usize {
    // SAFETY: C passes NULL or a tensor of a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(tensor, "tensor") }?.shape.len()))
}

/// The dimensions of a tensor, outermost first, also of a GGUF file, which has them the other way
/// round. If one is zero there is no data.
///
/// @param tensor A tensor.
/// @return As many numbers as `longshore_tensor_ndim` says, which last as long as the buffer; NULL
///   if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_shape(tensor: *const longshore_tensor) -> *const u64 {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor of a buffer that lives.
        Ok(unsafe { door::borrow(tensor, "tensor") }?.shape.as_ptr())
    })
}

/// Where the data of a tensor begins in the buffer, and so in the file behind its descriptor.
///
/// @param tensor A tensor.
/// @return The offset in bytes; 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_offset(tensor: *const longshore_tensor) -> u64 {
    // SAFETY: C passes NULL or a tensor of a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(tensor, "tensor") }?.range.start))
}

/// How long the data of a tensor is.
///
/// @param tensor A tensor.
/// @return The length in bytes; 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_len(tensor: *const longshore_tensor) -> u64 {
    door::guarded(0, || {
        // SAFETY: C passes NULL or a tensor of a buffer that lives.
        let range = &unsafe { door::borrow(tensor, "tensor") }?.range;
        Ok(range.end - range.start)
    })
}

/// The data of a tensor: `longshore_buffer_data` plus `longshore_tensor_offset`, and what is said
/// of the former. It is aligned to `align_bytes`, or as
/// the file has it, which may be not at all.
///
/// @param tensor A tensor.
/// @return The data, which lasts as long as the buffer; NULL if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_data(tensor: *const longshore_tensor) -> *const c_void {
    door::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a tensor of a buffer that lives.
        let address = unsafe { door::borrow(tensor, "tensor") }?.address;
        Ok(ptr::with_exposed_provenance(address))
    })
}

/// Which file a tensor is in: the `index` of `longshore_buffer_file`.
///
/// @param tensor A tensor.
/// @return The index; 0 if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_tensor_file_index(tensor: *const longshore_tensor) -> usize {
    // SAFETY: C passes NULL or a tensor of a buffer that lives.
    door::guarded(0, || Ok(unsafe { door::borrow(tensor, "tensor") }?.file))
}
