//! Ranges: a claim from outside, and the validated range that it becomes.

use core::fmt;

/// An address space that an [`AddrRange`] can be a range of.
///
/// The address types of this crate implement it, and other crates may implement it for their own.
pub trait Address: Copy + Ord + fmt::Debug {
    /// Returns the address as a number.
    fn raw(self) -> u64;
    /// Returns the address with the value `raw`.
    fn from_raw(raw: u64) -> Self;
}

/// A range that came from outside and has not been checked.
///
/// It can only be inspected and validated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeClaim<A> {
    /// The claimed first address.
    pub start: A,
    /// The claimed length in bytes.
    pub len_bytes: u64,
}

/// A half-open range `[start, start + len)` whose end is not above the top of its space.
///
/// It may be empty. A range that reaches the very top ends at 2^64, which is not an address, so
/// there is no method that returns the end; use [`AddrRange::last`].
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct AddrRange<A> {
    start: A,
    len_bytes: u64,
}

/// The reason why a [`RangeClaim`] is not a valid range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RangeError {
    /// `start + len` is above 2^64.
    Overflow {
        /// The claimed first address.
        start: u64,
        /// The claimed length in bytes.
        len_bytes: u64,
    },
    /// The range is not inside the required limits.
    Outside {
        /// The claimed first address.
        start: u64,
        /// The claimed length in bytes.
        len_bytes: u64,
        /// The first address of the limits.
        limit_start: u64,
        /// The length of the limits in bytes.
        limit_len_bytes: u64,
    },
}

impl<A: Address> RangeClaim<A> {
    /// Checks that the range does not wrap around the top of its space.
    ///
    /// # Errors
    /// [`RangeError::Overflow`] if it wraps.
    pub fn validate(self) -> Result<AddrRange<A>, RangeError> {
        AddrRange::new(self.start, self.len_bytes)
    }

    /// Checks that the range does not wrap and lies inside `limit`.
    ///
    /// # Errors
    /// [`RangeError::Overflow`] if it wraps, [`RangeError::Outside`] if it is not inside `limit`.
    pub fn validate_within(self, limit: AddrRange<A>) -> Result<AddrRange<A>, RangeError> {
        let range = self.validate()?;
        if limit.contains_range(range) {
            return Ok(range);
        }
        Err(RangeError::Outside {
            start: self.start.raw(),
            len_bytes: self.len_bytes,
            limit_start: limit.start.raw(),
            limit_len_bytes: limit.len_bytes,
        })
    }
}

impl<A: Address> AddrRange<A> {
    /// Returns the range of `len_bytes` bytes at `start`.
    ///
    /// # Errors
    /// [`RangeError::Overflow`] if its end is above 2^64.
    pub fn new(start: A, len_bytes: u64) -> Result<Self, RangeError> {
        let room = u64::MAX - start.raw();
        // The last byte of a range that is not empty is at start + len - 1.
        if len_bytes == 0 || len_bytes - 1 <= room {
            Ok(Self { start, len_bytes })
        } else {
            Err(RangeError::Overflow { start: start.raw(), len_bytes })
        }
    }

    /// Returns the first address.
    pub fn start(self) -> A {
        self.start
    }

    /// Returns the length in bytes.
    pub fn len(self) -> u64 {
        self.len_bytes
    }

    /// Returns `true` if the range has no bytes.
    pub fn is_empty(self) -> bool {
        self.len_bytes == 0
    }

    /// Returns the last address of the range, or `None` if it is empty.
    pub fn last(self) -> Option<A> {
        self.len_bytes.checked_sub(1).map(|span| A::from_raw(self.start.raw() + span))
    }

    /// Returns `true` if `address` is in the range.
    pub fn contains(self, address: A) -> bool {
        address.raw().checked_sub(self.start.raw()).is_some_and(|at| at < self.len_bytes)
    }

    /// Returns `true` if every byte of `inner` is in the range. An empty range is in every range
    /// that it touches, also at the start or the end.
    pub fn contains_range(self, inner: Self) -> bool {
        inner
            .start
            .raw()
            .checked_sub(self.start.raw())
            .is_some_and(|at| at <= self.len_bytes && inner.len_bytes <= self.len_bytes - at)
    }

    /// Returns the bytes that are in both ranges, or `None` if there are none.
    pub fn intersection(self, other: Self) -> Option<Self> {
        let first = self.start.max(other.start);
        let last = self.last()?.min(other.last()?);
        (first <= last)
            .then(|| Self { start: first, len_bytes: (last.raw() - first.raw()).saturating_add(1) })
    }
}

impl<A: Address> fmt::Debug for AddrRange<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} + {:#x}", self.start, self.len_bytes)
    }
}

impl fmt::Display for RangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Overflow { start, len_bytes } => {
                write!(f, "the range at {start:#x} of {len_bytes:#x} bytes passes 2^64")
            }
            Self::Outside { start, len_bytes, limit_start, limit_len_bytes } => write!(
                f,
                "the range at {start:#x} of {len_bytes:#x} bytes is not inside the one at \
                 {limit_start:#x} of {limit_len_bytes:#x} bytes"
            ),
        }
    }
}

impl core::error::Error for RangeError {}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Iova;

    fn range(start: u64, len_bytes: u64) -> AddrRange<Iova> {
        AddrRange::new(Iova::new(start), len_bytes).unwrap()
    }

    #[test]
    fn a_range_may_reach_the_top_but_not_pass_it() {
        assert_eq!(range(u64::MAX, 1).last(), Some(Iova::new(u64::MAX)));
        assert_eq!(
            AddrRange::new(Iova::new(u64::MAX), 2),
            Err(RangeError::Overflow { start: u64::MAX, len_bytes: 2 })
        );
        assert!(AddrRange::new(Iova::new(1), u64::MAX).is_ok());
    }

    #[test]
    fn a_claim_outside_its_limit_is_refused_with_both_ranges() {
        let claim = RangeClaim { start: Iova::new(0x1f00), len_bytes: 0x200 };
        let error = claim.validate_within(range(0x1000, 0x1000)).unwrap_err();
        assert_eq!(
            error,
            RangeError::Outside {
                start: 0x1f00,
                len_bytes: 0x200,
                limit_start: 0x1000,
                limit_len_bytes: 0x1000
            }
        );
    }

    proptest! {
        // The oracle: the same operations in 128-bit arithmetic, which does not wrap.
        #[test]
        fn operations_agree_with_wide_arithmetic(
            a in prop_oneof![0u64..64, (u64::MAX - 64)..],
            a_len in 0u64..64,
            b in prop_oneof![0u64..64, (u64::MAX - 64)..],
            b_len in 0u64..64,
        ) {
            let wide = |start: u64, len: u64| (u128::from(start), u128::from(start) + u128::from(len));
            let (a0, a1) = wide(a, a_len);
            let (b0, b1) = wide(b, b_len);
            let made = AddrRange::new(Iova::new(a), a_len);
            prop_assert_eq!(made.is_ok(), a1 <= 1 << 64);
            if let (Ok(x), Ok(y)) = (made, AddrRange::new(Iova::new(b), b_len)) {
                prop_assert_eq!(x.contains_range(y), a0 <= b0 && b1 <= a1);
                prop_assert_eq!(x.contains(Iova::new(b)), a0 <= b0 && b0 < a1);
                let (low, high) = (a0.max(b0), a1.min(b1));
                let shared = x.intersection(y).map(|i| (u128::from(i.start().raw()), u128::from(i.len())));
                prop_assert_eq!(shared, (low < high).then(|| (low, high - low)));
            }
        }
    }
}
