//! A newtype for each address space.
//!
//! All of them are 64 bits wide and differ only in meaning. Arithmetic is checked and stays within
//! one space. There is no conversion between two spaces, because only a mapping defines it.

use core::fmt;

use crate::granule::Granule;
use crate::range::Address;

macro_rules! address {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(u64);

        impl $name {
            /// Returns the address with the value `raw`.
            #[inline]
            pub const fn new(raw: u64) -> Self {
                Self(raw)
            }

            /// Returns the address as a number.
            #[inline]
            pub const fn raw(self) -> u64 {
                self.0
            }

            /// Returns the address `len_bytes` higher, or `None` if that is past 2^64 - 1.
            #[inline]
            pub const fn checked_add(self, len_bytes: u64) -> Option<Self> {
                match self.0.checked_add(len_bytes) {
                    Some(raw) => Some(Self(raw)),
                    None => None,
                }
            }

            /// Returns the number of bytes from `earlier` to `self`, or `None` if `earlier` is
            /// above `self`.
            #[inline]
            pub const fn checked_offset_from(self, earlier: Self) -> Option<u64> {
                self.0.checked_sub(earlier.0)
            }

            /// Returns `true` if the address is a multiple of `granule`.
            #[inline]
            pub const fn is_aligned(self, granule: Granule) -> bool {
                granule.is_aligned(self.0)
            }

            /// Returns the highest multiple of `granule` that is not above the address.
            #[inline]
            pub const fn align_down(self, granule: Granule) -> Self {
                Self(granule.round_down(self.0))
            }
        }

        impl Address for $name {
            #[inline]
            fn raw(self) -> u64 {
                self.0
            }

            #[inline]
            fn from_raw(raw: u64) -> Self {
                Self(raw)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:#x})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::LowerHex::fmt(&self.0, f)
            }
        }
    };
}

address!(
    /// An IO virtual address: the address that a device puts on the bus, before any translation.
    Iova
);
address!(
    /// The output of a leaf of an IO page table: the address after translation, up to 52 bits.
    ///
    /// It is not called physical, because in userspace it never is: below 2^48 it is an address in
    /// a mapping of this process, and above 2^48 it names a window of a region.
    BusAddr
);
address!(
    /// An address in this process, as a number without provenance.
    ///
    /// It is for reports and arithmetic only: access memory through views and pointers, never by a
    /// cast of this address.
    HostAddr
);
address!(
    /// A guest-physical address of a virtual machine.
    GuestPhys
);
address!(
    /// A byte offset into a file.
    FileOffset
);

#[cfg(test)]
mod tests {
    use std::format;

    use super::*;

    #[test]
    fn addition_is_checked_and_stays_in_its_space() {
        let top = Iova::new(u64::MAX);
        assert_eq!(top.checked_add(0), Some(top));
        assert_eq!(top.checked_add(1), None);
        assert_eq!(Iova::new(0x3000).checked_offset_from(Iova::new(0x1000)), Some(0x2000));
        assert_eq!(Iova::new(0x1000).checked_offset_from(Iova::new(0x3000)), None);
    }

    #[test]
    fn alignment_follows_the_granule() {
        let granule = Granule::new(0x1000).unwrap();
        assert!(FileOffset::new(0x2000).is_aligned(granule));
        assert!(!FileOffset::new(0x2001).is_aligned(granule));
        assert_eq!(FileOffset::new(0x2fff).align_down(granule), FileOffset::new(0x2000));
    }

    #[test]
    fn addresses_print_in_hexadecimal_with_their_space() {
        assert_eq!(format!("{:?}", GuestPhys::new(0xfee0_0000)), "GuestPhys(0xfee00000)");
        assert_eq!(format!("{}", BusAddr::new(0x1000)), "0x1000");
    }
}
