//! `longshore_streamed_tensor`: a tensor that a stream has yielded.
#![expect(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "the documentation is the header's")]

use std::ffi::c_void;
use std::ptr;

use longshore_load::StreamedTensor;

use crate::ffi;
use crate::tensor::longshore_tensor;

/// A tensor, or rows of it, that a stream has yielded. Its data is in memory that no other code
/// has. `longshore_stream_next` creates it, and `longshore_streamed_tensor_free` frees it. It may
/// outlive its stream.
#[derive(Debug)]
#[allow(non_camel_case_types, reason = "C's name")]
pub struct longshore_streamed_tensor {
    /// The owner of the data.
    tensor: StreamedTensor,
    view: longshore_tensor,
}

const _: () = {
    const fn threads_may_share<T: Send + Sync>() {}
    threads_may_share::<longshore_streamed_tensor>();
};

impl From<StreamedTensor> for longshore_streamed_tensor {
    fn from(tensor: StreamedTensor) -> Self {
        Self { view: (&tensor).into(), tensor }
    }
}

/// Returns the name, type, shape and data of a tensor, for the functions `longshore_tensor_*`.
///
/// @param tensor A tensor of a stream.
/// @return The description, which is valid until the tensor is freed; NULL if `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_streamed_tensor_view(
    tensor: *const longshore_streamed_tensor,
) -> *const longshore_tensor {
    ffi::guarded(ptr::null(), || {
        // SAFETY: C passes NULL or a live tensor.
        Ok(ptr::from_ref(&unsafe { ffi::borrow(tensor, "tensor") }?.view))
    })
}

/// Returns the data of a tensor for writing. A change of it is lost when the tensor is freed. The
/// program must not write while another thread accesses the data.
///
/// @param tensor A tensor of a stream.
/// @return The data, at the address of `longshore_tensor_data` and valid until the tensor is freed;
///   NULL if `tensor` is NULL. Do not access it if the length is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_streamed_tensor_data_mut(
    tensor: *mut longshore_streamed_tensor,
) -> *mut c_void {
    ffi::guarded(ptr::null_mut(), || {
        // SAFETY: C passes NULL or a live tensor.
        Ok(unsafe { ffi::borrow(tensor, "tensor") }?.tensor.host().as_ptr().cast())
    })
}

/// Returns the first row that was read of a tensor. The number of rows is the first dimension of
/// its shape.
///
/// @param tensor A tensor of a stream.
/// @return The index of the row; 0 if all rows were read or `tensor` is NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_streamed_tensor_first_row(
    tensor: *const longshore_streamed_tensor,
) -> u64 {
    ffi::guarded(0, || {
        // SAFETY: C passes NULL or a live tensor.
        let rows = unsafe { ffi::borrow(tensor, "tensor") }?.tensor.rows();
        Ok(rows.map_or(0, |rows| rows.start))
    })
}

/// Frees a tensor, and gives the memory of its data back to the stream. Its view and pointers to
/// its data become invalid. No thread may be using any of them.
///
/// @param tensor A tensor that is not used any more, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn longshore_streamed_tensor_free(tensor: *mut longshore_streamed_tensor) {
    // SAFETY: C passes NULL or a tensor that this library returned, and does not use it afterwards.
    unsafe { ffi::free(tensor) }
}
