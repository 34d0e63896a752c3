//! Sizes that are powers of two and known only at run time.

use core::fmt;

/// A power-of-two unit of mapping or transfer: a page, a block, a disk sector.
///
/// It is stored as its base-2 logarithm, so every value of the type is a power of two.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granule {
    log2: u8,
}

/// A size is zero or not a power of two, so it is not a [`Granule`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotAPowerOfTwo(pub u64);

impl Granule {
    /// 4 KiB, the smallest page size of every machine that Longshore runs on.
    pub const SIZE_4K: Self = Self { log2: 12 };
    /// 64 KiB, a folio size of memfd pages between 4 KiB and 2 MiB.
    pub const SIZE_64K: Self = Self { log2: 16 };
    /// 2 MiB, the huge page size of x86-64, and of aarch64 with 4 KiB pages.
    pub const SIZE_2M: Self = Self { log2: 21 };

    /// Returns the granule of `size_bytes`.
    ///
    /// # Errors
    /// [`NotAPowerOfTwo`] if `size_bytes` is zero or not a power of two.
    #[inline]
    pub const fn new(size_bytes: u64) -> Result<Self, NotAPowerOfTwo> {
        if size_bytes.is_power_of_two() {
            Ok(Self { log2: size_bytes.trailing_zeros() as u8 })
        } else {
            Err(NotAPowerOfTwo(size_bytes))
        }
    }

    /// Returns the size in bytes.
    #[inline]
    pub const fn bytes(self) -> u64 {
        1 << self.log2
    }

    /// Returns the base-2 logarithm of the size.
    #[inline]
    pub const fn log2(self) -> u8 {
        self.log2
    }

    /// Returns `true` if `value` is a multiple of the granule.
    #[inline]
    pub const fn is_aligned(self, value: u64) -> bool {
        value & (self.bytes() - 1) == 0
    }

    /// Returns the highest multiple that is not above `value`.
    #[inline]
    pub const fn round_down(self, value: u64) -> u64 {
        value & !(self.bytes() - 1)
    }

    /// Returns the lowest multiple that is not below `value`, or `None` if that is past 2^64 - 1.
    #[inline]
    pub const fn checked_round_up(self, value: u64) -> Option<u64> {
        match value.checked_add(self.bytes() - 1) {
            Some(sum) => Some(self.round_down(sum)),
            None => None,
        }
    }

    /// Returns the largest granule that `value` is a multiple of, or `None` for zero, which is a
    /// multiple of every granule.
    #[inline]
    pub const fn from_value(value: u64) -> Option<Self> {
        if value == 0 { None } else { Some(Self { log2: value.trailing_zeros() as u8 }) }
    }
}

impl fmt::Debug for Granule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Granule({self})")
    }
}

/// Formats the size with a binary unit: `4 KiB`, `2 MiB`, `512 B`.
impl fmt::Display for Granule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        write!(f, "{} {}", 1u64 << (self.log2 % 10), UNITS[usize::from(self.log2 / 10)])
    }
}

impl fmt::Display for NotAPowerOfTwo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not a power of two", self.0)
    }
}

impl core::error::Error for NotAPowerOfTwo {}

#[cfg(test)]
mod tests {
    use std::format;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn only_powers_of_two_are_granules() {
        assert_eq!(Granule::new(0), Err(NotAPowerOfTwo(0)));
        assert_eq!(Granule::new(4095), Err(NotAPowerOfTwo(4095)));
        assert_eq!(Granule::new(4096), Ok(Granule::SIZE_4K));
        assert_eq!(Granule::new(1 << 63).unwrap().bytes(), 1 << 63);
    }

    #[test]
    fn rounding_up_past_the_top_returns_none() {
        assert_eq!(Granule::SIZE_4K.checked_round_up(u64::MAX - 4095), Some(u64::MAX - 4095));
        assert_eq!(Granule::SIZE_4K.checked_round_up(u64::MAX - 4094), None);
    }

    #[test]
    fn sizes_print_with_binary_units() {
        assert_eq!(format!("{}", Granule::new(512).unwrap()), "512 B");
        assert_eq!(format!("{}", Granule::SIZE_64K), "64 KiB");
        assert_eq!(format!("{}", Granule::SIZE_2M), "2 MiB");
        assert_eq!(format!("{}", Granule::new(1 << 63).unwrap()), "8 EiB");
    }

    proptest! {
        #[test]
        fn rounding_encloses_every_value(value: u64, log2 in 0u32..64) {
            let granule = Granule::new(1 << log2).unwrap();
            let down = granule.round_down(value);
            prop_assert!(down <= value && value - down < granule.bytes());
            prop_assert!(granule.is_aligned(down));
            match granule.checked_round_up(value) {
                Some(up) => {
                    prop_assert!(up >= value && up - value < granule.bytes());
                    prop_assert!(granule.is_aligned(up));
                }
                None => prop_assert!(u128::from(down) + u128::from(granule.bytes()) > u128::from(u64::MAX)),
            }
        }

        #[test]
        fn the_granule_of_a_value_is_the_largest_divisor(value in 1u64..) {
            let granule = Granule::from_value(value).unwrap();
            prop_assert!(granule.is_aligned(value));
            if granule.log2() < 63 {
                prop_assert!(!Granule::new(granule.bytes() * 2).unwrap().is_aligned(value));
            }
        }
    }
}
