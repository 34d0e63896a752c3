//! DLPack: exports tensors to frameworks without a copy.
//!
//! The structures are those of dlpack.h of DLPack 1.1 (<https://dmlc.github.io/dlpack/latest/c_api.html>),
//! and the protocol is that of <https://dmlc.github.io/dlpack/latest/python_spec.html>. A consumer
//! renames the capsule and calls the deleter later, on any thread. A capsule that was not consumed
//! frees its memory itself.
#![expect(unsafe_code, reason = "hands memory to frameworks in a C structure")]

use std::ffi::{CStr, c_void};
use std::ops::Range;
use std::ptr::{self, NonNull};

use pyo3::exceptions::{PyMemoryError, PyOverflowError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::memory::Lease;

/// The memory of the CPU: device type kDLCPU, device 0.
pub(crate) const CPU: (i32, i32) = (1, 0);

/// The version of the structures.
pub(crate) const MAJOR: u32 = 1;
const MINOR: u32 = 1;

const READ_ONLY: u64 = 1;
const IS_COPIED: u64 = 1 << 1;

const LEGACY: &CStr = c"dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";

/// The type of a tensor's elements (DLDataType).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// The memory of a capsule, and what keeps it alive.
pub(crate) struct Owner {
    holder: Holder,
    address: NonNull<u8>,
}

enum Holder {
    Lease(Lease),
    /// A copy in 64-byte chunks, because frameworks require this alignment.
    Copy(#[expect(dead_code, reason = "freed with the capsule")] Vec<Chunk>),
}

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Chunk([u8; 64]);

#[repr(C)]
struct Device {
    kind: i32,
    id: i32,
}

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: Device,
    dimensions: i32,
    element: Element,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
}

/// DLManagedTensor.
#[repr(C)]
struct Managed {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// DLManagedTensorVersioned.
#[repr(C)]
struct ManagedVersioned {
    major: u32,
    minor: u32,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// The values that a capsule keeps alive.
struct Context {
    _holder: Holder,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
}

impl Element {
    /// Returns the DLPack type for the name of a format's type, or `None` if DLPack has none.
    pub(crate) fn of(dtype: &str) -> Option<Self> {
        let (code, bits) = match dtype {
            "I8" => (0, 8),
            "I16" => (0, 16),
            "I32" => (0, 32),
            "I64" => (0, 64),
            "U8" => (1, 8),
            "U16" => (1, 16),
            "U32" => (1, 32),
            "U64" => (1, 64),
            "F16" => (2, 16),
            "F32" => (2, 32),
            "F64" => (2, 64),
            "BF16" => (4, 16),
            "C64" => (5, 64),
            "BOOL" => (6, 8),
            "F8_E4M3" => (10, 8),
            "F8_E4M3FNUZ" => (11, 8),
            "F8_E5M2" => (12, 8),
            "F8_E5M2FNUZ" => (13, 8),
            "F8_E8M0" => (14, 8),
            // Elements smaller than a byte are packed here, but most consumers expect them padded.
            _ => return None,
        };
        Some(Self { code, bits, lanes: 1 })
    }
}

impl Owner {
    /// Creates an owner of leased memory that begins at `address`.
    pub(crate) fn lent(lease: Lease, address: NonNull<u8>) -> Self {
        Self { holder: Holder::Lease(lease), address }
    }

    /// Copies a range of leased memory.
    ///
    /// # Errors
    /// `MemoryError` if the allocation fails, `ValueError` if the range is out of bounds.
    pub(crate) fn copied(py: Python<'_>, lease: &Lease, range: &Range<u64>) -> PyResult<Self> {
        let from = lease.address_of(range)?;
        let len = (range.end - range.start) as usize;
        let mut chunks: Vec<Chunk> = Vec::new();
        // At least one chunk, so that there is an address.
        let count = len.div_ceil(size_of::<Chunk>()).max(1);
        chunks.try_reserve_exact(count).map_err(|_| {
            PyMemoryError::new_err(format!("not enough memory for a copy of {len} bytes"))
        })?;
        chunks.resize(count, Chunk([0; 64]));
        let address = NonNull::from(&mut chunks[0]).cast::<u8>();
        let (from, to) = (from.as_ptr().expose_provenance(), address.as_ptr().expose_provenance());
        py.detach(|| {
            let (from, to) =
                (ptr::with_exposed_provenance(from), ptr::with_exposed_provenance_mut(to));
            // SAFETY: the lease keeps the source mapped, and the destination is a new allocation of
            // at least that length.
            unsafe { ptr::copy_nonoverlapping::<u8>(from, to, len) };
        });
        Ok(Self { holder: Holder::Copy(chunks), address })
    }

    fn flags(&self) -> u64 {
        match &self.holder {
            Holder::Lease(lease) if lease.memory().is_writable() => 0,
            Holder::Lease(_) => READ_ONLY,
            Holder::Copy(_) => IS_COPIED,
        }
    }
}

/// Creates a capsule of a tensor that is contiguous in the memory of `owner`.
///
/// # Errors
/// `OverflowError` if a dimension does not fit into 63 bits, `MemoryError`.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    owner: Owner,
    element: Element,
    shape: &[u64],
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let flags = owner.flags();
    let shape = shape.iter().map(|length| i64::try_from(*length)).collect::<Result<Box<_>, _>>();
    let shape = shape.map_err(|_| PyOverflowError::new_err("a dimension is 2^63 or more"))?;
    let strides = strides(&shape);
    let context = Box::into_raw(Box::new(Context { _holder: owner.holder, shape, strides }));
    // SAFETY: it was just allocated, and there is no other reference.
    let parts = unsafe { &mut *context };
    let tensor = DlTensor {
        data: owner.address.as_ptr().cast(),
        device: Device { kind: CPU.0, id: CPU.1 },
        // No format has more than 64 dimensions.
        dimensions: parts.shape.len() as i32,
        element,
        shape: parts.shape.as_mut_ptr(),
        strides: parts.strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let context = context.cast();
    if versioned {
        let deleter = Some(delete_versioned as unsafe extern "C" fn(*mut ManagedVersioned));
        let managed =
            ManagedVersioned { major: MAJOR, minor: MINOR, context, deleter, flags, tensor };
        let managed = Box::into_raw(Box::new(managed));
        // SAFETY: the name is static, and the destructor is for this kind of capsule.
        let capsule =
            unsafe { ffi::PyCapsule_New(managed.cast(), VERSIONED.as_ptr(), Some(drop_versioned)) };
        if capsule.is_null() {
            // SAFETY: it was just allocated, and there is no other pointer to it.
            unsafe { delete_versioned(managed) };
        }
        // SAFETY: a new reference, or null with an exception set.
        return unsafe { Bound::from_owned_ptr_or_err(py, capsule) };
    }
    let deleter = Some(delete as unsafe extern "C" fn(*mut Managed));
    let managed = Box::into_raw(Box::new(Managed { tensor, context, deleter }));
    // SAFETY: as above.
    let capsule = unsafe { ffi::PyCapsule_New(managed.cast(), LEGACY.as_ptr(), Some(drop_legacy)) };
    if capsule.is_null() {
        // SAFETY: as above.
        unsafe { delete(managed) };
    }
    // SAFETY: as above.
    unsafe { Bound::from_owned_ptr_or_err(py, capsule) }
}

/// Computes the strides of a contiguous row-major tensor, in elements.
fn strides(shape: &[i64]) -> Box<[i64]> {
    let mut stride = 1i64;
    let mut strides: Box<[i64]> = shape.into();
    for (place, length) in strides.iter_mut().zip(shape).rev() {
        *place = stride;
        // It saturates only if some dimension is zero, and then the tensor has no elements.
        stride = stride.saturating_mul(*length);
    }
    strides
}

/// # Safety
/// [`capsule`] made `managed`, and it was not deleted yet.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: `capsule` took it from a box.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: the same holds for its context.
    drop(unsafe { Box::<Context>::from_raw(managed.context.cast()) });
}

/// # Safety
/// The same as for [`delete`].
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: `capsule` took it from a box.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: the same holds for its context.
    drop(unsafe { Box::<Context>::from_raw(managed.context.cast()) });
}

/// Returns the pointer of a capsule that still has its first name, or null if a consumer renamed it.
///
/// # Safety
/// `capsule` is a valid object, and this thread holds the GIL.
unsafe fn unconsumed(capsule: *mut ffi::PyObject, name: &CStr) -> *mut c_void {
    // SAFETY: by contract.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return ptr::null_mut();
    }
    // SAFETY: the capsule is valid under that name, so this does not fail.
    unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) }
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule.
    let managed = unsafe { unconsumed(capsule, LEGACY) };
    if !managed.is_null() {
        // SAFETY: the capsule was not consumed, so no consumer calls the deleter.
        unsafe { delete(managed.cast()) };
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule.
    let managed = unsafe { unconsumed(capsule, VERSIONED) };
    if !managed.is_null() {
        // SAFETY: the capsule was not consumed, so no consumer calls the deleter.
        unsafe { delete_versioned(managed.cast()) };
    }
}

/// Checks that a type can be dropped on any thread, because consumers call the deleter on any.
const fn dropped_on_any_thread<T: Send>() {}
const _: () = dropped_on_any_thread::<Context>();
