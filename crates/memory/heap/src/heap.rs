//! The kinds of memory that buffers come from.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// The source of a buffer's memory.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Heap {
    /// The best heap available: [`Heap::Udmabuf`] if this process may use it, otherwise
    /// [`Heap::Memfd`]. If the kernel then refuses the dma-buf, the buffer is a [`Heap::Memfd`],
    /// too.
    #[default]
    Auto,
    /// A memfd in the largest pages available: the hugetlb pool if it has enough pages and the
    /// length is a multiple of 2 MiB, otherwise transparent huge pages, otherwise the kernel's
    /// default.
    Memfd,
    /// A memfd in base pages, as a plain `memfd_create` returns it.
    MemfdBasePages,
    /// A memfd in 2 MiB pages of the hugetlb pool, or an error. Its length is rounded up to 2 MiB.
    Hugetlb,
    /// A memfd in transparent huge pages if possible, in whole base pages, which is also exported
    /// as a dma-buf. If it is above the machine's `size_limit_mb`, this process raises the limit if
    /// it may.
    Udmabuf,
    /// A dma-buf of a kernel heap: `system`, a CMA area, or a heap of a vendor. The kernel refuses
    /// direct I/O into it.
    DmaHeap(String),
    /// A file without a name in a directory of a tmpfs, in the pages that this tmpfs gives: 2 MiB if
    /// it is mounted with `huge=always`. [`Buffer::link`](crate::Buffer::link) gives the complete
    /// file its name. It cannot be sealed, so [`Buffer::share`](crate::Buffer::share) fails.
    ///
    /// [`FromStr`] does not parse this heap.
    Tmpfs(PathBuf),
    /// Memory of this process without a descriptor, in transparent huge pages if possible. A child of
    /// `fork(2)` gets a copy. [`Buffer::share`](crate::Buffer::share) fails.
    ///
    /// [`FromStr`] does not parse this heap.
    Anonymous,
}

/// A word is not the name of a heap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "unknown heap '{0}' (expected auto, memfd, memfd:4k, hugetlb, udmabuf, dma-heap (short for \
     dma-heap:system) or dma-heap:NAME)"
)]
pub struct ParseHeapError(String);

impl Heap {
    /// Returns `true` if the content of this heap's buffers can be sealed against writes. It is
    /// `false` for [`Heap::Auto`], which may choose a heap that cannot.
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

/// Formats the name that [`FromStr`] parses, `tmpfs:DIRECTORY`, or `anonymous`.
impl fmt::Display for Heap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Memfd => f.write_str("memfd"),
            Self::MemfdBasePages => f.write_str("memfd:4k"),
            Self::Hugetlb => f.write_str("hugetlb"),
            Self::Udmabuf => f.write_str("udmabuf"),
            Self::DmaHeap(name) => write!(f, "dma-heap:{name}"),
            Self::Tmpfs(directory) => write!(f, "tmpfs:{}", directory.display()),
            Self::Anonymous => f.write_str("anonymous"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_to_the_heap_that_prints_them() {
        for word in ["auto", "memfd", "memfd:4k", "hugetlb", "udmabuf", "dma-heap:system"] {
            assert_eq!(word.parse::<Heap>().unwrap().to_string(), word);
        }
        assert_eq!("dma-heap".parse(), Ok(Heap::DmaHeap("system".into())));
        for word in
            ["", "shm", "dma-heap:", "dma-heap:../null", "memfd:1g", "tmpfs:/dev/shm", "anonymous"]
        {
            assert_eq!(word.parse::<Heap>(), Err(ParseHeapError(word.into())));
        }
    }
}
