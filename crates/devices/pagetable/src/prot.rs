//! What a device may do with a page, and how the memory behind it behaves.

use core::fmt;
use core::ops::{BitOr, BitOrAssign};

/// Permissions and memory attributes of a mapping: a set of flags.
///
/// A format that cannot express a flag, or a set of them, refuses it
/// ([`Error::Prot`](crate::Error::Prot)); nothing is granted silently and nothing is dropped.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Prot(u8);

/// What an entry that leads to a table does to the permissions of everything below it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Narrowing {
    /// What is taken away.
    pub denied: Prot,
    /// What is demanded on top: [`Prot::PRIVILEGED`].
    pub demanded: Prot,
}

impl Narrowing {
    /// Nothing.
    pub const NONE: Self = Self { denied: Prot::NONE, demanded: Prot::NONE };

    /// What this and `below` do together.
    #[inline]
    #[must_use]
    pub const fn and(self, below: Self) -> Self {
        Self {
            denied: self.denied.union(below.denied),
            demanded: self.demanded.union(below.demanded),
        }
    }

    /// What is left of a leaf's permissions.
    #[inline]
    pub const fn apply(self, leaf: Prot) -> Prot {
        Prot(leaf.0 & !self.denied.0 | self.demanded.0)
    }
}

impl Prot {
    /// No access at all. No format maps it; unmapping says that better.
    pub const NONE: Self = Self(0);
    /// The device may read.
    pub const READ: Self = Self(1 << 0);
    /// The device may write.
    pub const WRITE: Self = Self(1 << 1);
    /// The device may fetch instructions.
    pub const EXECUTE: Self = Self(1 << 2);
    /// Only privileged transactions may use it.
    pub const PRIVILEGED: Self = Self(1 << 3);
    /// Accesses are coherent with the CPU's caches.
    pub const COHERENT: Self = Self(1 << 4);
    /// Registers of a device, not memory.
    pub const DEVICE: Self = Self(1 << 5);
    /// The device may read and write.
    pub const READ_WRITE: Self = Self(Self::READ.0 | Self::WRITE.0);

    /// Every flag with the letter it prints as.
    const LETTERS: [(Self, char); 6] = [
        (Self::READ, 'r'),
        (Self::WRITE, 'w'),
        (Self::EXECUTE, 'x'),
        (Self::PRIVILEGED, 'p'),
        (Self::COHERENT, 'c'),
        (Self::DEVICE, 'd'),
    ];

    /// Every set of flags, the empty one first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..1 << Self::LETTERS.len()).map(Self)
    }

    /// Whether all flags of `other` are set.
    #[inline]
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether any flag of `other` is set.
    #[inline]
    pub const fn intersects(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    /// Whether this and `other` differ in any of `flags`.
    #[inline]
    pub const fn differs_in(self, other: Self, flags: Self) -> bool {
        (self.0 ^ other.0) & flags.0 != 0
    }

    /// The flags of both.
    #[inline]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The flags of `self` that `other` has not.
    #[inline]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// `self` where `condition` holds, nothing where not.
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

/// A letter for each flag: `rw----`.
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
