//! The check that a load fits in memory, which is made before any memory is taken.

use std::sync::atomic::{AtomicU64, Ordering};

use longshore_heap::Heap;
use longshore_mem::Granule;
use longshore_sys::fork::Process;
use longshore_sys::huge_pages::{self, Pool};
use longshore_sys::memory::{self, Available};

use crate::error::{Error, Result};
use crate::fill::STAGING_MAX_BYTES;
use crate::reason::MemoryLimit;

/// The memory that a load takes in addition to the content: page tables, threads, the queue, digests,
/// and staging buffers.
const OVERHEAD_BYTES: u64 = (16 << 20) + STAGING_MAX_BYTES;

/// The memory that all running loads of this process will still take.
static TO_COME: ToCome = ToCome(AtomicU64::new(0));

/// A number of bytes that the kernel counts as available, but that running loads have claimed. The upper 16
/// bits are those of the process: a child of `fork(2)` has none of its parent's loads. It is not behind a
/// mutex, because a child that is forked while a mutex is locked can never lock it.
#[derive(Debug, Default)]
struct ToCome(AtomicU64);

/// The bits of [`ToCome`] that are a number of bytes.
const BYTES_MASK: u64 = (1 << 48) - 1;

/// The memory that one load will still take. Dropping the claim releases it.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    all: &'a ToCome,
    bytes: u64,
    process: u64,
}

impl ToCome {
    fn claim(&self) -> Claim<'_> {
        Claim { all: self, bytes: 0, process: Self::process() }
    }

    /// Returns the bits of this process.
    fn process() -> u64 {
        Process::current().number() << BYTES_MASK.count_ones()
    }

    /// Returns the claimed bytes in `packed`; none if another process has claimed them.
    fn bytes(packed: u64) -> u64 {
        if packed & !BYTES_MASK == Self::process() { packed & BYTES_MASK } else { 0 }
    }
}

impl Claim<'_> {
    /// Lowers the claim to `bytes`. It is never raised.
    pub(crate) fn lower_to(&mut self, bytes: u64) {
        let less = self.bytes.saturating_sub(bytes);
        self.bytes -= less;
        let process = ToCome::process();
        if process == self.process {
            let lower = |all| Some(process | ToCome::bytes(all).saturating_sub(less));
            // This always returns a number.
            let _ = self.all.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lower);
        }
    }

    /// Sets the claim to `bytes` if `check` succeeds, which gets the claims of the other loads. If those
    /// change meanwhile, `check` is called again. So if two loads do not fit together, one is refused.
    fn set_if(&mut self, bytes: u64, check: impl Fn(u64) -> Result<()>) -> Result<()> {
        let mut all = self.all.0.load(Ordering::Relaxed);
        loop {
            let others = ToCome::bytes(all).saturating_sub(self.bytes);
            check(others)?;
            let sum = others.saturating_add(bytes).min(BYTES_MASK);
            let new = ToCome::process() | sum;
            match self.all.0.compare_exchange(all, new, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => {
                    self.bytes = sum - others;
                    return Ok(());
                }
                Err(now) => all = now,
            }
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.lower_to(0);
    }
}

/// Checks that `content_bytes` fit in what the control group, the process's limits, its other loads
/// and `memory_max` leave, before anything is reserved. If the heap may take its pages from the hugetlb
/// pool, the memory that the machine has left is checked later: see [`check_pages`]. In all other cases
/// it is checked here, because `mmap` fails with `ENOMEM`, which does not say which limit was hit.
pub(crate) fn check(
    content_bytes: u64,
    heap: &Heap,
    memory_max: Option<u64>,
) -> Result<Claim<'static>> {
    if let Some(limit_bytes) = memory_max.filter(|limit| content_bytes > *limit) {
        return Err(Error::NotEnoughMemory {
            needed_bytes: content_bytes,
            limit_bytes,
            limit: MemoryLimit::Load,
        });
    }
    let may_be_pool = match heap {
        Heap::Hugetlb => true,
        Heap::Auto | Heap::Memfd => {
            pool_holds(content_bytes, &huge_pages::pool_2m().unwrap_or_default())
        }
        _ => false,
    };
    let mut claim = TO_COME.claim();
    let bytes = if may_be_pool { 0 } else { content_bytes };
    claim.set_if(bytes, |others_bytes| {
        check_against(content_bytes, may_be_pool, &memory::available(), others_bytes)
    })?;
    Ok(claim)
}

/// Returns `true` if the pool has enough pages for the whole buffer. The heap decides it in the same
/// way.
fn pool_holds(content_bytes: u64, pool: &Pool) -> bool {
    let page = Granule::SIZE_2M;
    page.is_aligned(content_bytes) && content_bytes / page.bytes() <= pool.available_pages
}

/// Checks that there is memory for the pages of a reservation. `heap` is the heap that was chosen. Pages
/// of the hugetlb pool are reserved already, and are not a part of the available memory.
pub(crate) fn check_pages(claim: &mut Claim<'_>, content_bytes: u64, heap: &Heap) -> Result<()> {
    // These heaps have taken their pages already, and `check` was called before.
    if matches!(heap, Heap::Hugetlb | Heap::DmaHeap(_)) {
        claim.lower_to(0);
        return Ok(());
    }
    claim.set_if(content_bytes, |others_bytes| {
        // The addresses are reserved already.
        let available = Available { address_space_bytes: None, ..memory::available() };
        check_against(content_bytes, false, &available, others_bytes)
    })
}

fn check_against(
    content_bytes: u64,
    from_pool: bool,
    available: &Available,
    others_bytes: u64,
) -> Result<()> {
    let needed_bytes = content_bytes.saturating_add(OVERHEAD_BYTES);
    let refuse =
        |limit_bytes, limit| Err(Error::NotEnoughMemory { needed_bytes, limit_bytes, limit });
    // Other loads will take a part of the available memory.
    let left = |limit_bytes: u64| limit_bytes.saturating_sub(others_bytes);
    // The mapping is rounded up to a huge page, and begins at a multiple of one.
    let addresses_bytes = needed_bytes.saturating_add(2 * Granule::SIZE_2M.bytes());
    if let Some(limit) = available.address_space_bytes.filter(|left| addresses_bytes > *left) {
        return refuse(limit, MemoryLimit::AddressSpace);
    }
    if from_pool {
        return Ok(());
    }
    if let Some((limit, path)) = &available.control_group
        && needed_bytes > left(*limit)
    {
        let (path, available_bytes) = (path.clone(), *limit);
        let group = MemoryLimit::ControlGroup { path, available_bytes, others_bytes };
        return refuse(left(*limit), group);
    }
    let machine_bytes = available.machine_bytes.filter(|limit| needed_bytes > left(*limit));
    if let Some(available_bytes) = machine_bytes {
        return refuse(
            left(available_bytes),
            MemoryLimit::Machine { available_bytes, others_bytes },
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn refused_by(available: &Available, from_pool: bool) -> Option<String> {
        match check_against(GIB, from_pool, available, 0) {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    #[test]
    fn the_error_names_the_limit() {
        let plenty = Available {
            machine_bytes: Some(2 * GIB),
            control_group: Some((2 * GIB, "/sys/fs/cgroup/memory.max".into())),
            address_space_bytes: Some(2 * GIB),
        };
        assert_eq!(refused_by(&plenty, false), None);
        let cases = [
            (Available { machine_bytes: Some(GIB), ..plenty.clone() }, "MemAvailable"),
            (Available { address_space_bytes: Some(GIB), ..plenty.clone() }, "ulimit -v"),
            (
                Available { control_group: Some((GIB, "/g/memory.max".into())), ..plenty },
                "/g/memory.max",
            ),
        ];
        for (available, name) in cases {
            let message = refused_by(&available, false).unwrap();
            assert!(message.contains(name) && message.contains("leaves 1.07 GB"), "{message}");
        }
    }

    #[test]
    fn pages_of_the_pool_need_no_available_memory() {
        let short = Available { machine_bytes: Some(0), ..Available::default() };
        assert_eq!(refused_by(&short, true), None);
        assert!(refused_by(&short, false).is_some());
    }

    #[test]
    fn memory_claimed_by_other_loads_is_not_available() {
        let all = ToCome::default();
        let available = Available { machine_bytes: Some(3 * GIB), ..Available::default() };
        let check = |claim: &mut Claim<'_>, bytes| {
            claim.set_if(bytes, |others| check_against(bytes, false, &available, others))
        };
        let (mut first, mut second) = (all.claim(), all.claim());
        check(&mut first, 2 * GIB).unwrap();
        // A load's own claim does not reduce the memory that is available to it.
        check(&mut first, 2 * GIB).unwrap();
        let refused = check(&mut second, GIB + GIB / 2).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains("2.15 GB that other loads are to take, leaves 1.07 GB"));
        assert_eq!(second.bytes, 0);
        first.lower_to(GIB / 2);
        check(&mut second, GIB + GIB / 2).unwrap();
        let claimed = || ToCome::bytes(all.0.load(Ordering::Relaxed));
        assert_eq!(claimed(), 2 * GIB);
        drop(first);
        drop(second);
        assert_eq!(claimed(), 0);
    }

    #[test]
    fn a_child_has_no_claims_of_its_parent() {
        let (process, mask) = (ToCome::process(), !BYTES_MASK);
        let all = ToCome(AtomicU64::new((process ^ mask) & mask | GIB));
        let of_parent = Claim { all: &all, bytes: GIB, process: process ^ mask };
        let mut own = all.claim();
        own.set_if(5, |others| {
            assert_eq!(others, 0);
            Ok(())
        })
        .unwrap();
        drop(of_parent);
        assert_eq!(ToCome::bytes(all.0.load(Ordering::Relaxed)), 5);
    }

    #[test]
    fn a_pool_holds_whole_huge_pages_and_no_more_than_it_has() {
        let pool = Pool { available_pages: 512, ..Pool::default() };
        assert!(pool_holds(GIB, &pool) && pool_holds(0, &Pool::default()));
        for refused in [GIB + 1, GIB - 4096, GIB + (2 << 20)] {
            assert!(!pool_holds(refused, &pool), "{refused}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri does not emulate resource limits")]
    fn available_memory_is_checked_unless_the_pool_is_large_enough() {
        // More than the address space, as a multiple of huge pages and not.
        for heap in [Heap::Auto, Heap::Memfd, Heap::MemfdBasePages] {
            for content_bytes in [1 << 48, (1 << 48) + 1] {
                let refused = check(content_bytes, &heap, None).unwrap_err();
                assert!(matches!(refused, Error::NotEnoughMemory { .. }), "{heap}: {refused}");
            }
        }
    }

    #[test]
    fn the_callers_limit_comes_first() {
        let refused = check(GIB, &Heap::Memfd, Some(GIB - 1)).unwrap_err();
        assert!(
            matches!(refused, Error::NotEnoughMemory { limit_bytes, .. } if limit_bytes == GIB - 1)
        );
    }
}
