//! The error numbers of the protocol.

use std::{error, fmt, io};

/// An error number (`errno`) of Linux: the reply to a command that failed carries one.
///
/// A [`Device`](crate::Device) and a [`DmaTarget`](crate::DmaTarget) return one, and the server sends it
/// to the client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(u32);

// The kernel's numbers, the same on x86-64 and AArch64.
impl Errno {
    /// `EPERM`: not allowed.
    pub const EPERM: Self = Self(1);
    /// `ENOENT`: there is no such thing.
    pub const ENOENT: Self = Self(2);
    /// `EIO`: it went wrong.
    pub const EIO: Self = Self(5);
    /// `ENOMEM`: no memory or no room for it.
    pub const ENOMEM: Self = Self(12);
    /// `EFAULT`: an address with nothing behind it.
    pub const EFAULT: Self = Self(14);
    /// `EBUSY`: it is in use by whoever asks.
    pub const EBUSY: Self = Self(16);
    /// `EEXIST`: something is there already.
    pub const EEXIST: Self = Self(17);
    /// `EINVAL`: the message does not say anything that makes sense.
    pub const EINVAL: Self = Self(22);
    /// `ENOTTY`: the device does not have this feature.
    pub const ENOTTY: Self = Self(25);
    /// `ENOSPC`: as many as there may be are there.
    pub const ENOSPC: Self = Self(28);
    /// `ENOSYS`: no such command.
    pub const ENOSYS: Self = Self(38);
    /// `EMSGSIZE`: longer than was settled.
    pub const EMSGSIZE: Self = Self(90);
    /// `EOPNOTSUPP`: a command that is known, and not done here.
    pub const EOPNOTSUPP: Self = Self(95);

    /// Returns the error with this number. A reply may carry any number.
    pub const fn from_raw(errno: u32) -> Self {
        Self(errno)
    }

    /// Returns the number.
    pub const fn raw(self) -> u32 {
        self.0
    }
}

impl From<io::Error> for Errno {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().and_then(|errno| u32::try_from(errno).ok());
        errno.map_or(Self::EIO, Self)
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> Self {
        Self::from_raw_os_error(i32::try_from(errno.0).unwrap_or(5))
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", io::Error::from(*self))
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({})", io::Error::from(*self))
    }
}

impl error::Error for Errno {}
