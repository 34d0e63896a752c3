//! Handles that make mappings, and their operations.

use std::time::{Duration, Instant};

use crate::policy::WhenFull;
use crate::pool::chunk::Slot;
use crate::pool::error::PoolError;
use crate::pool::kind::Kind;
use crate::pool::reclaim_thread::Reclaim as _;

/// A handle that makes mappings and takes them back: a [`Domain`](crate::Domain), or a thread's
/// [`Local`](crate::Local).
///
/// No other type can implement it, and its operations are not for other crates:
///
/// ```compile_fail,E0061
/// use longshore_domain::Handle;
/// use longshore_domain::iova::IovaRange;
///
/// fn free_the_addresses_of_a_mapping<D: Handle>(handle: &D, range: IovaRange) {
///     handle.give(range);
/// }
/// ```
pub trait Handle: sealed::Handle {}

/// Takes a slot when the pools are at their limit: takes slots back from the caches of other threads,
/// frees idle chunks, and waits for other transfers to end if the policy is [`WhenFull::Wait`].
#[cold]
pub(crate) fn await_slot<D: Handle>(
    handle: &D,
    kind: Kind,
    mut error: PoolError,
) -> Result<Slot, PoolError> {
    /// The interval at which slots in the caches of other threads are taken back.
    const ROUND: Duration = Duration::from_millis(1);
    let state = handle.state();
    let patience = match state.policy.when_full {
        WhenFull::Wait(time) => time,
        WhenFull::MapDirectly | WhenFull::Refuse => Duration::ZERO,
    };
    let began = Instant::now();
    while let PoolError::Limit { .. } = error {
        // A chunk that cannot be unmapped is leaked, and stays charged to the limit.
        let _ = state.shrink(Duration::ZERO);
        error = match handle.take_slot(kind) {
            Ok(slot) => return Ok(slot),
            Err(error) => error,
        };
        let left = patience.saturating_sub(began.elapsed());
        if left.is_zero() {
            break;
        }
        state.pools.wait(left.min(ROUND));
    }
    Err(error)
}

pub(crate) mod sealed {
    use crate::counters::Event;
    use crate::iova::{IovaError, IovaRange, Placement};
    use crate::pool::chunk::Slot;
    use crate::pool::error::PoolError;
    use crate::pool::kind::Kind;
    use crate::state::State;

    /// An argument that no other crate can make.
    ///
    /// Generic code of another crate can call the methods of [`Handle`] through the public trait, which
    /// has this one as its supertrait. It cannot make the arguments of most methods. But it can take an
    /// [`IovaRange`] from an allocator of its own, and free the addresses of a mapping with it.
    #[derive(Clone, Copy)]
    pub(crate) struct Seal;

    /// The operations that differ between a domain and a thread's handle to it.
    #[expect(private_interfaces, reason = "no other crate can name this trait")]
    pub trait Handle {
        fn state(&self) -> &State;
        /// Takes addresses. The error is boxed, because a larger result would not stay in registers.
        fn take(
            &self,
            _: Seal,
            len: u64,
            placement: Placement,
        ) -> Result<IovaRange, Box<IovaError>>;
        fn give(&self, _: Seal, range: IovaRange);
        fn take_slot(&self, kind: Kind) -> Result<Slot, PoolError>;
        fn give_slot(&self, slot: Slot);
        fn add(&self, event: Event, amount: u64);
    }
}
