//! Permissions and memory attributes.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// Permissions and memory attributes of a mapping: a set of flags.
///
/// A format returns [`Error::Prot`](crate::Error::Prot) for a set of flags that it cannot express.
/// It never grants more than it was asked for, and never drops a flag.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Prot(u8);

/// The permissions that an entry which leads to a table removes from, or requires for, everything
/// below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Narrowing {
    /// The permissions that are removed.
    pub denied: Prot,
    /// The flag that is added: [`Prot::PRIVILEGED`] or none.
    pub demanded: Prot,
}

impl Narrowing {
    /// No change.
    pub const NONE: Self = Self { denied: Prot::NONE, demanded: Prot::NONE };

    /// Returns the combination of this and `below`.
    #[inline]
    #[must_use]
    pub const fn and(self, below: Self) -> Self {
        Self {
            denied: self.denied.union(below.denied),
            demanded: self.demanded.union(below.demanded),
        }
    }

    /// Returns the permissions that remain of a leaf's.
    #[inline]
    pub const fn apply(self, leaf: Prot) -> Prot {
        Prot(leaf.0 & !self.denied.0 | self.demanded.0)
    }
}

impl Prot {
    /// No access at all. No format can map it; unmap the page instead.
    pub const NONE: Self = Self(0);
    /// The device may read.
    pub const READ: Self = Self(1 << 0);
    /// The device may write.
    pub const WRITE: Self = Self(1 << 1);
    /// The device may fetch instructions.
    pub const EXECUTE: Self = Self(1 << 2);
    /// Only privileged transactions may use the page.
    pub const PRIVILEGED: Self = Self(1 << 3);
    /// Accesses are coherent with the CPU's caches.
    pub const COHERENT: Self = Self(1 << 4);
    /// The page holds registers of a device, not memory.
    pub const DEVICE: Self = Self(1 << 5);
    /// The device may read and write.
    pub const READ_WRITE: Self = Self(Self::READ.0 | Self::WRITE.0);

    /// All flags, with the letters that they are printed as.
    const LETTERS: [(Self, char); 6] = [
        (Self::READ, 'r'),
        (Self::WRITE, 'w'),
        (Self::EXECUTE, 'x'),
        (Self::PRIVILEGED, 'p'),
        (Self::COHERENT, 'c'),
        (Self::DEVICE, 'd'),
    ];

    /// Returns every set of flags, the empty one first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..1 << Self::LETTERS.len()).map(Self)
    }

    /// Returns `true` if all flags of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns `true` if any flag of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns `true` if this and `other` differ in any of `flags`.
    #[inline]
    pub const fn differs_in(self, other: Self, flags: Self) -> bool {
        (self.0 ^ other.0) & flags.0 != 0
    }

    /// Returns the flags that are set in `self`, in `other` or in both.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Returns the flags of `self` that are not set in `other`.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns `self` if `condition` is true, and no flags otherwise.
    #[inline]
    pub(crate) const fn when(self, condition: bool) -> Self {
        if condition { self } else { Self::NONE }
    }
}

impl BitOr for Prot {
    type Output = Self;

    #[inline]
    fn bitor(self, other: Self) -> Self {
        self.union(other)
    }
}

impl BitOrAssign for Prot {
    #[inline]
    fn bitor_assign(&mut self, other: Self) {
        *self = self.union(other);
    }
}

/// Writes a letter for each flag: `rw----`.
impl fmt::Display for Prot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use fmt::Write;
        Self::LETTERS.into_iter().try_for_each(|(flag, letter)| {
            f.write_char(if self.contains(flag) { letter } else { '-' })
        })
    }
}

impl fmt::Debug for Prot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Prot({self})")
    }
}
