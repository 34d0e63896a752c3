//! The private data of a session.
#![expect(unsafe_code, reason = "addresses that may be used in any thread")]

use std::cell::{Cell, RefCell};
use std::ptr::NonNull;

use longshore_mem::isa::IsaToken;

use crate::tlb::{self, Tlb};
use longshore_sync::grace::SessionState;

/// The private data that a session keeps in its slot.
pub(crate) struct Private {
    pub(super) seen: SessionState,
    pub(super) token: IsaToken,
    pub(super) tlb: Tlb,
    /// The extents of all pins. The list is reused, so that a pin need not allocate.
    pub(crate) arena: RefCell<Vec<Extent>>,
    /// The leases that the first of these extents have, because the slot was left meanwhile.
    pub(crate) leased: RefCell<Vec<u64>>,
    /// The number of open scopes whose translations are not recorded. The slot cannot be left within
    /// them.
    pub(super) untold: Cell<u32>,
}

// SAFETY: the addresses in it are valid in every thread, and only one session uses it at a time.
unsafe impl Send for Private {}

/// A run of pinned memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    pub(super) host: NonNull<u8>,
    pub(crate) len: usize,
    pub(crate) iova: u64,
    /// The TLB entry that it came from, for the log.
    pub(crate) entry: tlb::Entry,
    pub(crate) is_written: bool,
}

/// Adds `value` to the end of `list`. The list is not borrowed while memory is allocated or freed,
/// because the program's allocator can pin by this session.
#[inline]
pub(super) fn push<T>(list: &RefCell<Vec<T>>, value: T) {
    loop {
        let mut borrowed = list.borrow_mut();
        if borrowed.len() < borrowed.capacity() {
            return borrowed.push(value);
        }
        drop(borrowed);
        grow(list);
    }
}

/// Makes room for one more, unless the allocator has done so meanwhile.
#[cold]
fn grow<T>(list: &RefCell<Vec<T>>) {
    let capacity = (2 * list.borrow().capacity()).max(4);
    let mut larger = Vec::with_capacity(capacity);
    let mut borrowed = list.borrow_mut();
    if borrowed.capacity() < capacity {
        larger.append(&mut borrowed);
        std::mem::swap(&mut *borrowed, &mut larger);
    }
    drop(borrowed);
}
