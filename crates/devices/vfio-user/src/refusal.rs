//! Why something asked for was not done.

use std::{error, fmt, io};

/// Why a command was not done: the errno that its reply carries.
///
/// Devices and what maps memory answer with one; the other end of the socket gets it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Refusal(u32);

// The kernel's numbers, the same on x86-64 and AArch64.
impl Refusal {
    /// `EPERM`: not allowed.
    pub const NOT_PERMITTED: Self = Self(1);
    /// `ENOENT`: there is no such thing.
    pub const NOT_FOUND: Self = Self(2);
    /// `EIO`: it went wrong.
    pub const IO: Self = Self(5);
    /// `ENOMEM`: no memory or no room for it.
    pub const NO_MEMORY: Self = Self(12);
    /// `EFAULT`: an address with nothing behind it.
    pub const FAULT: Self = Self(14);
    /// `EBUSY`: it is in use by whoever asks.
    pub const BUSY: Self = Self(16);
    /// `EEXIST`: something is there already.
    pub const EXISTS: Self = Self(17);
    /// `EINVAL`: the message does not say anything that makes sense.
    pub const INVALID: Self = Self(22);
    /// `ENOTTY`: the device does not have this feature.
    pub const NO_FEATURE: Self = Self(25);
    /// `ENOSPC`: as many as there may be are there.
    pub const NO_SPACE: Self = Self(28);
    /// `ENOSYS`: no such command.
    pub const UNKNOWN: Self = Self(38);
    /// `EMSGSIZE`: longer than was settled.
    pub const TOO_LONG: Self = Self(90);
    /// `EOPNOTSUPP`: a command that is known, and not done here.
    pub const UNSUPPORTED: Self = Self(95);

    /// The refusal with this errno; a reply may carry any.
    pub const fn from_errno(errno: u32) -> Self {
        Self(errno)
    }

    /// The errno.
    pub const fn errno(self) -> u32 {
        self.0
    }
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().and_then(|errno| u32::try_from(errno).ok());
        errno.map_or(Self::IO, Self)
    }
}

impl From<Refusal> for io::Error {
    fn from(refusal: Refusal) -> Self {
        Self::from_raw_os_error(i32::try_from(refusal.0).unwrap_or(5))
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "refused: {}", io::Error::from(*self))
    }
}

impl fmt::Debug for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Refusal({})", io::Error::from(*self))
    }
}

impl error::Error for Refusal {}
