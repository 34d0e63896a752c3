//! The sizes of slots.

/// The largest slot in granules: 256 KiB with granules of 4 KiB.
pub(crate) const LARGEST: u64 = 64;

/// The sizes in granules: four for each doubling, so that a transfer of whole granules occupies at most
/// a quarter more than its length, including the unused end of the chunk. Size 36 is an additional one:
/// without it, a chunk of 512 granules has room for 12 transfers of 33 (in slots of 40) and wastes 29%.
const SIZES: [u64; COUNT] =
    [1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 36, 40, 48, 56, LARGEST];

pub(crate) const COUNT: usize = 21;

/// One of the sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Class(u8);

impl Class {
    /// Returns the smallest class that this many granules fit into; `None` if there is none.
    #[inline]
    pub(crate) fn of(granules: u64) -> Option<Self> {
        match granules {
            0 => Some(Self(0)),
            1..=8 => Some(Self(granules as u8 - 1)),
            33..=36 => Some(Self(16)),
            9..=LARGEST => {
                // Between 2^n and 2^(n+1) there are steps of 2^(n-2).
                let log2 = (granules - 1).ilog2();
                let step = ((granules - 1) >> (log2 - 2)) & 3;
                let behind_the_one_more = u8::from(granules > 36);
                Some(Self((8 + (log2 - 3) * 4) as u8 + step as u8 + behind_the_one_more))
            }
            _ => None,
        }
    }

    /// Returns the smallest class that `len_bytes` fit into, in granules of `2^granule_log2` bytes.
    #[inline]
    pub(crate) fn of_bytes(len_bytes: u64, granule_log2: u8) -> Option<Self> {
        Self::of(len_bytes.div_ceil(1 << granule_log2))
    }

    /// Returns all classes, the smallest first.
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..COUNT as u8).map(Self)
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self.0)
    }

    pub(crate) fn granules(self) -> u64 {
        SIZES[self.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_class_it_fits() {
        for granules in 0..=LARGEST {
            let class = Class::of(granules).unwrap();
            let smallest = Class::all().find(|class| class.granules() >= granules).unwrap();
            assert_eq!(class, smallest, "{granules}");
            // A chunk of 2 MiB in granules of 4 KiB.
            let slots = 512 / class.granules();
            assert!(512 * 4 <= slots * granules.max(1) * 5, "{granules}");
        }
        assert_eq!(Class::of(LARGEST + 1), None);
        assert_eq!(Class::all().count(), COUNT);
    }
}
