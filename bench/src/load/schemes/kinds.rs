//! The kinds of memory that this machine has for the schemes.

use longshore_heap::Heap;
use longshore_sys::{dma_heap, udmabuf};

const SYSTEM_HEAP: &str = "system";

/// The available kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kinds {
    dma_heap: bool,
    udmabuf: bool,
}

impl Kinds {
    pub(crate) fn of_machine() -> Self {
        Self {
            dma_heap: dma_heap::names().iter().any(|name| name == SYSTEM_HEAP),
            udmabuf: udmabuf::check_access().is_ok(),
        }
    }

    /// Returns the heap whose memory the kernel allocates at once.
    pub(super) fn allocated(&self) -> Heap {
        self.dma_heap().unwrap_or(Heap::Memfd)
    }

    /// Returns a heap whose pages are populated on request, in a chosen size.
    pub(super) fn populated(&self) -> Heap {
        if self.udmabuf { Heap::Udmabuf } else { Heap::Memfd }
    }

    /// Returns a heap whose pages are allocated by the first write to them.
    pub(super) fn plain(&self) -> Heap {
        if self.udmabuf { Heap::Udmabuf } else { Heap::MemfdBasePages }
    }

    /// Returns a dma-heap, if there is one.
    pub(super) fn dma_heap(&self) -> Option<Heap> {
        self.dma_heap.then(|| Heap::DmaHeap(SYSTEM_HEAP.to_owned()))
    }

    /// Returns a heap whose buffers are dma-bufs, if there is one.
    pub(super) fn dma_buf(&self) -> Option<Heap> {
        self.dma_heap().or(self.udmabuf.then_some(Heap::Udmabuf))
    }

    /// Describes which kinds are missing and replaced, for tables and environments.
    pub(crate) fn describe(&self) -> String {
        let missing: Vec<&str> = [("dma-heap", self.dma_heap), ("udmabuf", self.udmabuf)]
            .into_iter()
            .filter(|(_, present)| !present)
            .map(|(name, _)| name)
            .collect();
        if missing.is_empty() {
            return "this kernel has dma-heap and udmabuf".to_owned();
        }
        format!("this kernel has no {}: a memfd replaces it", missing.join(" and no "))
    }
}
