//! `/dev/udmabuf`: dma-bufs made of a memfd's pages (`linux/udmabuf.h`).
//!
//! The memfd must be sealed against shrinking but not against writing, and the range must consist of
//! whole pages. The pages are pinned until the dma-buf is closed. Punching a hole into the memfd
//! meanwhile would silently separate the two, so this crate never does that.
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use longshore_mem::{AddrRange, FileOffset};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::opcode;

/// The path of the udmabuf device.
pub const DEVICE: &str = "/dev/udmabuf";
const SIZE_LIMIT: &str = "/sys/module/udmabuf/parameters/size_limit_mb";
const FLAG_CLOEXEC: u32 = 1;

#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

const UDMABUF_CREATE: libc::Ioctl = opcode::write::<Create>(b'u', 0x42) as libc::Ioctl;

/// Returns `true` if the device exists.
pub fn is_present() -> bool {
    Path::new(DEVICE).exists()
}

/// Checks that this process may use the device.
///
/// # Errors
/// `ENOENT` if there is no device, `EACCES` without permission.
pub fn check_access() -> io::Result<()> {
    open().map(drop)
}

fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Returns the maximum size of a dma-buf in bytes (module parameter `size_limit_mb`).
///
/// # Errors
/// Those of reading the parameter; `NotFound` without the module.
pub fn size_limit_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string(SIZE_LIMIT)?;
    let limit_mib: u64 = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(limit_mib << 20)
}

/// Raises [`size_limit_bytes`] to at least `len_bytes`, for the whole machine.
///
/// # Errors
/// `EACCES` without root; `InvalidInput` if the parameter, an `int`, cannot hold the value.
pub fn raise_size_limit(len_bytes: u64) -> io::Result<()> {
    let limit_mib = i32::try_from(len_bytes.div_ceil(1 << 20))
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    std::fs::write(SIZE_LIMIT, limit_mib.to_string())
}

/// Makes a dma-buf of a range of a memfd.
///
/// # Errors
/// `ENOENT` without the device, `EACCES` without permission, `EINVAL` if the memfd does not have the
/// right seals, or if the range does not consist of whole pages or is larger than [`size_limit_bytes`].
pub fn create(memfd: impl AsFd, range: AddrRange<FileOffset>) -> io::Result<OwnedFd> {
    let device = open()?;
    let request = Create {
        memfd: memfd.as_fd().as_raw_fd().cast_unsigned(),
        flags: FLAG_CLOEXEC,
        offset: range.start().raw(),
        size: range.len(),
    };
    // SAFETY: UDMABUF_CREATE reads a `struct udmabuf_create`, whose layout `Create` has.
    let made = unsafe { libc::ioctl(device.as_raw_fd(), UDMABUF_CREATE, &raw const request) };
    if made < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: on success the ioctl returns a new descriptor, which has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
