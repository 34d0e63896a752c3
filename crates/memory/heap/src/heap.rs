//! Which memory a buffer is made of.

use std::fmt;
use std::str::FromStr;

/// Where a buffer comes from.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Heap {
    /// The best there is: [`Heap::Udmabuf`] where this process may use it, else [`Heap::Memfd`],
    /// also where the kernel refuses the dma-buf in the end.
    #[default]
    Auto,
    /// A memfd in the largest pages to be had: the hugetlb pool where it has enough and the length
    /// is a multiple of 2 MiB, else transparent huge pages, else what the kernel gives.
    Memfd,
    /// A memfd in base pages: what a plain `memfd_create` gives.
    MemfdBasePages,
    /// A memfd in 2 MiB pages of the hugetlb pool, or an error. Its length is rounded up to 2 MiB.
    Hugetlb,
    /// A memfd as [`Heap::Memfd`] in whole pages, exported as a dma-buf too. Where it is larger
    /// than the machine's `size_limit_mb` and this process may raise that, it does.
    Udmabuf,
    /// A dma-buf of a kernel heap: `system`, a CMA area, a vendor's. Direct I/O into it is refused
    /// by the kernel.
    DmaHeap(String),
}

/// A word that names no heap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{0}' is no heap; there are auto, memfd, memfd:4k, hugetlb, udmabuf, dma-heap (that is, \
     dma-heap:system) and dma-heap:NAME"
)]
pub struct ParseHeapError(String);

impl Heap {
    /// Whether the content of this heap's buffers can be sealed against writing. `auto` may choose
    /// one where it cannot.
    pub fn seals_content(&self) -> bool {
        matches!(self, Self::Memfd | Self::MemfdBasePages | Self::Hugetlb)
    }
}

impl FromStr for Heap {
    type Err = ParseHeapError;

    fn from_str(word: &str) -> Result<Self, ParseHeapError> {
        Ok(match word {
            "auto" => Self::Auto,
            "memfd" => Self::Memfd,
            "memfd:4k" => Self::MemfdBasePages,
            "hugetlb" => Self::Hugetlb,
            "udmabuf" => Self::Udmabuf,
            "dma-heap" => Self::DmaHeap("system".to_owned()),
            _ => match word.strip_prefix("dma-heap:") {
                Some(name) if !name.is_empty() && !name.contains('/') => {
                    Self::DmaHeap(name.to_owned())
                }
                _ => return Err(ParseHeapError(word.to_owned())),
            },
        })
    }
}

/// The word that [`FromStr`] reads back.
impl fmt::Display for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Memfd => f.write_str("memfd"),
            Self::MemfdBasePages => f.write_str("memfd:4k"),
            Self::Hugetlb => f.write_str("hugetlb"),
            Self::Udmabuf => f.write_str("udmabuf"),
            Self::DmaHeap(name) => write!(f, "dma-heap:{name}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_as_they_are_written() {
        for word in ["auto", "memfd", "memfd:4k", "hugetlb", "udmabuf", "dma-heap:system"] {
            assert_eq!(word.parse::<Heap>().unwrap().to_string(), word);
        }
        assert_eq!("dma-heap".parse(), Ok(Heap::DmaHeap("system".into())));
        for word in ["", "shm", "dma-heap:", "dma-heap:../null", "memfd:1g"] {
            assert_eq!(word.parse::<Heap>(), Err(ParseHeapError(word.into())));
        }
    }
}
