//! DLPack: how frameworks take memory from each other.
//!
//! The structures are those of dlpack.h of DLPack 1.1 (<https://dmlc.github.io/dlpack/latest/c_api.html>),
//! the protocol that of <https://dmlc.github.io/dlpack/latest/python_spec.html>. A capsule that
//! nobody consumed frees what it holds; whoever consumed it renamed it, and calls the deleter, from
//! any thread.
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

/// What the elements of a tensor are (DLDataType).
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Element {
    code: u8,
    bits: u8,
    lanes: u16,
}

/// Who has the memory of a capsule.
pub(crate) struct Owner {
    holder: Holder,
    address: NonNull<u8>,
}

enum Holder {
    Lease(Lease),
    /// 64-byte chunks: what frameworks want memory aligned to.
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

/// What a capsule keeps alive.
struct Context {
    _holder: Holder,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
}

impl Element {
    /// That of a format's type, if DLPack has it.
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
            // Types of less than a byte are packed here; DLPack's readers mostly take them padded.
            _ => return None,
        };
        Some(Self { code, bits, lanes: 1 })
    }
}

impl Owner {
    /// Memory that is lent, from `address` on.
    pub(crate) fn lent(lease: Lease, address: NonNull<u8>) -> Self {
        Self { holder: Holder::Lease(lease), address }
    }

    /// A copy of a range of what is lent.
    ///
    /// # Errors
    /// `MemoryError`, `ValueError` for a range that is not there.
    pub(crate) fn copied(py: Python<'_>, lease: &Lease, range: &Range<u64>) -> PyResult<Self> {
        let from = lease.address_of(range)?;
        let len = (range.end - range.start) as usize;
        let mut chunks: Vec<Chunk> = Vec::new();
        // One at least, so that there is an address.
        let count = len.div_ceil(size_of::<Chunk>()).max(1);
        chunks.try_reserve_exact(count).map_err(|_| {
            PyMemoryError::new_err(format!("there is no memory for a copy of {len} bytes"))
        })?;
        chunks.resize(count, Chunk([0; 64]));
        let address = NonNull::from(&mut chunks[0]).cast::<u8>();
        let (from, to) = (from.as_ptr().expose_provenance(), address.as_ptr().expose_provenance());
        py.detach(|| {
            let (from, to) =
                (ptr::with_exposed_provenance(from), ptr::with_exposed_provenance_mut(to));
            // SAFETY: the lease keeps the source mapped, the destination is ours, has room for as
            // much and overlaps nothing.
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

/// A capsule of a tensor that lies densely in the memory of `owner`.
///
/// # Errors
/// `OverflowError` where a dimension does not fit, `MemoryError`.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    owner: Owner,
    element: Element,
    shape: &[u64],
    versioned: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let flags = owner.flags();
    let shape = shape.iter().map(|length| i64::try_from(*length)).collect::<Result<Box<_>, _>>();
    let shape = shape.map_err(|_| PyOverflowError::new_err("a dimension passes 2^63"))?;
    let strides = strides(&shape);
    let context = Box::into_raw(Box::new(Context { _holder: owner.holder, shape, strides }));
    // SAFETY: just made, and nobody else has it yet.
    let parts = unsafe { &mut *context };
    let tensor = DlTensor {
        data: owner.address.as_ptr().cast(),
        device: Device { kind: CPU.0, id: CPU.1 },
        // No format has more than 64.
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
        // SAFETY: the name is static, and the destructor is that of such a capsule.
        let capsule =
            unsafe { ffi::PyCapsule_New(managed.cast(), VERSIONED.as_ptr(), Some(drop_versioned)) };
        if capsule.is_null() {
            // SAFETY: just made, and nobody else has it.
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

/// By how many elements one is apart from the next in each dimension.
fn strides(shape: &[i64]) -> Box<[i64]> {
    let mut stride = 1i64;
    let mut strides: Box<[i64]> = shape.into();
    for (place, length) in strides.iter_mut().zip(shape).rev() {
        *place = stride;
        // Only where a dimension of zero follows can it be too large, and then nothing is there.
        stride = stride.saturating_mul(*length);
    }
    strides
}

/// # Safety
/// `managed` is of [`capsule`] and not deleted yet.
unsafe extern "C" fn delete(managed: *mut Managed) {
    // SAFETY: it was made of a box.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: so was its context.
    drop(unsafe { Box::<Context>::from_raw(managed.context.cast()) });
}

/// # Safety
/// As of [`delete`].
unsafe extern "C" fn delete_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: it was made of a box.
    let managed = unsafe { Box::from_raw(managed) };
    // SAFETY: so was its context.
    drop(unsafe { Box::<Context>::from_raw(managed.context.cast()) });
}

/// What a capsule still holds when it goes: its content under its first name, or null where
/// somebody consumed it and gave it another name.
///
/// # Safety
/// `capsule` is one of Python's, and Python is there.
unsafe fn unconsumed(capsule: *mut ffi::PyObject, name: &CStr) -> *mut c_void {
    // SAFETY: by contract.
    if unsafe { ffi::PyCapsule_IsValid(capsule, name.as_ptr()) } == 0 {
        return ptr::null_mut();
    }
    // SAFETY: it is valid under that name, so this does not fail.
    unsafe { ffi::PyCapsule_GetPointer(capsule, name.as_ptr()) }
}

unsafe extern "C" fn drop_legacy(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule.
    let managed = unsafe { unconsumed(capsule, LEGACY) };
    if !managed.is_null() {
        // SAFETY: nobody consumed it, so nobody else deletes it.
        unsafe { delete(managed.cast()) };
    }
}

unsafe extern "C" fn drop_versioned(capsule: *mut ffi::PyObject) {
    // SAFETY: Python calls this with the capsule.
    let managed = unsafe { unconsumed(capsule, VERSIONED) };
    if !managed.is_null() {
        // SAFETY: nobody consumed it, so nobody else deletes it.
        unsafe { delete_versioned(managed.cast()) };
    }
}

/// What a capsule keeps alive is dropped by whatever thread its consumer is on.
const fn dropped_on_any_thread<T: Send>() {}
const _: () = dropped_on_any_thread::<Context>();
