//! The error numbers of the protocol.

use std::{error, fmt, io};

/// A Linux error number (`errno`), which the reply to a failed command carries.
///
/// A [`Device`](crate::Device) and a [`DmaTarget`](crate::DmaTarget) return one, and the server sends it
/// to the client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(u32);

// The kernel's numbers, the same on x86-64 and AArch64.
impl Errno {
    /// `EPERM`: not allowed.
    pub const EPERM: Self = Self(1);
    /// `ENOENT`: no such entry, for example no map with these addresses.
    pub const ENOENT: Self = Self(2);
    /// `EIO`: input or output failed.
    pub const EIO: Self = Self(5);
    /// `ENOMEM`: out of memory or addresses.
    pub const ENOMEM: Self = Self(12);
    /// `EFAULT`: nothing is mapped at the address.
    pub const EFAULT: Self = Self(14);
    /// `EBUSY`: the resource is in use by the caller.
    pub const EBUSY: Self = Self(16);
    /// `EEXIST`: something is mapped there already.
    pub const EEXIST: Self = Self(17);
    /// `EINVAL`: the message is not valid.
    pub const EINVAL: Self = Self(22);
    /// `ENOTTY`: the device does not have this feature.
    pub const ENOTTY: Self = Self(25);
    /// `ENOSPC`: a limit is reached.
    pub const ENOSPC: Self = Self(28);
    /// `ENOSYS`: no such command.
    pub const ENOSYS: Self = Self(38);
    /// `EMSGSIZE`: longer than the negotiated maximum.
    pub const EMSGSIZE: Self = Self(90);
    /// `EOPNOTSUPP`: a command of the protocol that is not supported here.
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
