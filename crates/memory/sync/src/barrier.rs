//! The barriers between the rare side and the frequent side of a protocol.

use std::io;

use crate::primitives::{Ordering, fence};

/// The kind of barrier that orders the two sides of a protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Barrier {
    /// The rare side calls `membarrier(2)`, and the frequent side executes no fence.
    Expedited,
    /// Both sides execute a full fence, the frequent side in each step.
    Fence,
    /// No barrier, for tests that show what breaks without one.
    #[cfg(loom)]
    None,
}

impl Barrier {
    /// Registers the process for `membarrier`, and returns [`Expedited`](Self::Expedited).
    ///
    /// # Errors
    /// `ENOSYS` or `EINVAL` if the kernel has no `membarrier` (before Linux 4.14), `EPERM` if a filter
    /// of system calls forbids it, `Unsupported` under Miri, which makes no system calls.
    pub fn expedited() -> io::Result<Self> {
        if cfg!(miri) {
            return Err(io::ErrorKind::Unsupported.into());
        }
        longshore_sys::membarrier::register()?;
        Ok(Self::Expedited)
    }

    /// Returns [`Expedited`](Self::Expedited) if the kernel supports it, otherwise
    /// [`Fence`](Self::Fence).
    #[cfg(not(loom))]
    pub fn best() -> Self {
        static BEST: std::sync::OnceLock<Barrier> = std::sync::OnceLock::new();
        *BEST.get_or_init(|| Self::expedited().unwrap_or(Self::Fence))
    }

    /// Executes a full barrier on this thread and, if it is [`Expedited`](Self::Expedited), on
    /// every other thread.
    ///
    /// # Panics
    /// If it is [`Expedited`](Self::Expedited) and the kernel refuses, which it may do if the value
    /// was not returned by [`expedited`](Self::expedited). To continue would free memory that other
    /// threads use.
    pub(crate) fn execute(self) {
        match self {
            #[cfg(not(loom))]
            Self::Expedited => longshore_sys::membarrier::all_threads()
                .expect("a registered process may call membarrier"),
            #[cfg(loom)]
            Self::Expedited => fence(Ordering::SeqCst),
            Self::Fence => fence(Ordering::SeqCst),
            #[cfg(loom)]
            Self::None => {}
        }
    }

    /// Executes the barrier of the frequent side, between its store and its load.
    #[inline(always)]
    pub(crate) fn light(self) {
        match self {
            Self::Expedited => light_barrier(),
            Self::Fence => fence(Ordering::SeqCst),
            #[cfg(loom)]
            Self::None => {}
        }
    }
}

/// The barrier of the frequent side if the rare side calls `membarrier`: it only keeps the compiler
/// from reordering.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn light_barrier() {
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

/// For loom, `membarrier` is a full fence on both sides.
#[cfg(loom)]
pub(crate) fn light_barrier() {
    fence(Ordering::SeqCst);
}
