//! `/dev/udmabuf`: a dma-buf made of a memfd's pages (`linux/udmabuf.h`).
//!
//! The memfd must be sealed against shrinking and not against writing, and the range must be whole
//! pages. The pages are pinned until the dma-buf is gone; punching holes into the memfd meanwhile
//! silently separates the two, so nothing here ever does.
#![expect(unsafe_code, reason = "ioctl")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::path::Path;

use longshore_mem::{AddrRange, FileOffset};
use rustix::fs::{Mode, OFlags};
use rustix::ioctl::opcode;

/// The device.
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

/// Whether the device is there to be opened.
pub fn is_present() -> bool {
    Path::new(DEVICE).exists()
}

/// Whether this process may use the device.
///
/// # Errors
/// `ENOENT` without it, `EACCES` without the right to it.
pub fn check_access() -> io::Result<()> {
    open().map(drop)
}

fn open() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(DEVICE, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// The largest dma-buf that can be made, in bytes (module parameter `size_limit_mb`).
///
/// # Errors
/// Where the parameter cannot be read, as without the module.
pub fn size_limit_bytes() -> io::Result<u64> {
    let text = std::fs::read_to_string(SIZE_LIMIT)?;
    let limit_mib: u64 = text.trim().parse().map_err(|_| io::ErrorKind::InvalidData)?;
    Ok(limit_mib << 20)
}

/// Raises [`size_limit_bytes`] to at least `len_bytes`, for the whole machine.
///
/// # Errors
/// `EACCES` without root; `InvalidInput` past what the parameter, an `int`, can hold.
pub fn raise_size_limit(len_bytes: u64) -> io::Result<()> {
    let limit_mib = i32::try_from(len_bytes.div_ceil(1 << 20))
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    std::fs::write(SIZE_LIMIT, limit_mib.to_string())
}

/// Makes a dma-buf of a range of a memfd.
///
/// # Errors
/// `ENOENT` without the device, `EACCES` without the right to it, `EINVAL` for a memfd that is not
/// sealed as it must be, a range that is not whole pages, or one above [`size_limit_bytes`].
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
    // SAFETY: on success the ioctl returns a new descriptor, which nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(made) })
}
