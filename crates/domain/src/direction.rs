//! Which way bytes go.

use longshore_pagetable::Prot;

/// Who reads and who writes the memory of a mapping, as in the kernel's DMA API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The device reads.
    ToDevice,
    /// The device writes. It may not read what was there, where the backend can forbid that: few
    /// IOMMUs can, or are driven so (see [`Backend`](crate::backend::Backend)).
    FromDevice,
    /// Both.
    Bidirectional,
}

impl Direction {
    /// What a device may do.
    pub const fn prot(self) -> Prot {
        match self {
            Self::ToDevice => Prot::READ,
            Self::FromDevice => Prot::WRITE,
            Self::Bidirectional => Prot::READ_WRITE,
        }
    }
}
