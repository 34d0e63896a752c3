//! Values that are their bytes.
#![expect(unsafe_code, reason = "what an implementation promises cannot be checked")]

/// A value of which any bytes are one, and which has no bytes that mean nothing: integers, arrays of
/// them, and structures of them without padding (`#[repr(C)]`, or `packed`).
///
/// What is read from a device's memory is in the device's byte order: VirtIO and NVMe are
/// little-endian, so there `u64::from_le` makes a number of it.
///
/// ```
/// /// A descriptor of a split virtqueue.
/// #[derive(Clone, Copy)]
/// #[repr(C)]
/// struct Descriptor {
///     address: u64,
///     len: u32,
///     flags: u16,
///     next: u16,
/// }
///
/// // SAFETY: four integers that fill 16 bytes.
/// unsafe impl longshore_access::Plain for Descriptor {}
/// ```
///
/// # Safety
/// Each sequence of `size_of::<Self>()` bytes must be a valid value, and a value must have no padding.
pub unsafe trait Plain: Copy + 'static {
    /// The value of which all bytes are zero.
    #[inline(always)]
    fn zeroed() -> Self {
        // SAFETY: any bytes are a value.
        unsafe { std::mem::zeroed() }
    }
}

macro_rules! plain {
    ($($type:ty)*) => {$(
        // SAFETY: an integer, or a float, has neither invalid values nor padding.
        unsafe impl Plain for $type {}
    )*};
}

plain! { u8 u16 u32 u64 u128 usize i8 i16 i32 i64 i128 isize f32 f64 }

// SAFETY: arrays have no padding between their elements.
unsafe impl<T: Plain, const N: usize> Plain for [T; N] {}
