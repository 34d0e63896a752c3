//! The direction of a transfer.

use longshore_pagetable::Prot;

/// The direction of a transfer, as in the kernel's DMA API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The device reads.
    ToDevice,
    /// The device writes. It cannot read the memory if the IOMMU enforces write-only mappings,
    /// which few do (see [`Backend`](crate::backend::Backend)).
    FromDevice,
    /// The device reads and writes.
    Bidirectional,
}

impl Direction {
    /// Returns the access that a device has.
    pub const fn prot(self) -> Prot {
        match self {
            Self::ToDevice => Prot::READ,
            Self::FromDevice => Prot::WRITE,
            Self::Bidirectional => Prot::READ_WRITE,
        }
    }
}
