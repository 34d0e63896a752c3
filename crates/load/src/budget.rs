//! Refusing what does not fit, before anything is taken.

use longshore_heap::Heap;
use longshore_mem::Granule;
use longshore_sys::huge_pages;
use longshore_sys::memory::{self, Available};

use crate::error::{Error, Result};

/// What the load itself takes beside the content: page tables, threads, the queue, digests.
const OVERHEAD_BYTES: u64 = 16 << 20;

/// Checks that `content_bytes` fit in what `heap`'s memory, the control group, the process's
/// limits and `memory_max` leave.
pub(crate) fn check(content_bytes: u64, heap: &Heap, memory_max: Option<u64>) -> Result<()> {
    if let Some(limit_bytes) = memory_max.filter(|limit| content_bytes > *limit) {
        return Err(Error::NotEnoughMemory {
            needed_bytes: content_bytes,
            limit_bytes,
            limit_name: "the limit given for this load".to_owned(),
            hint: "raise it, or load less",
        });
    }
    check_against(content_bytes, from_pool(content_bytes, heap), &memory::available())
}

/// Pages of the hugetlb pool are set aside already and no longer count as available.
fn from_pool(content_bytes: u64, heap: &Heap) -> bool {
    match heap {
        Heap::Hugetlb => true,
        Heap::Auto | Heap::Memfd => {
            let pages = huge_pages::pool_2m().unwrap_or_default().available_pages;
            Granule::SIZE_2M.is_aligned(content_bytes)
                && content_bytes / Granule::SIZE_2M.bytes() <= pages
        }
        _ => false,
    }
}

fn check_against(content_bytes: u64, from_pool: bool, available: &Available) -> Result<()> {
    let needed_bytes = content_bytes.saturating_add(OVERHEAD_BYTES);
    let refuse = |limit_bytes, limit_name, hint| {
        Err(Error::NotEnoughMemory { needed_bytes, limit_bytes, limit_name, hint })
    };
    // The mapping is rounded up to a huge page and placed at one.
    let addresses_bytes = needed_bytes.saturating_add(2 * Granule::SIZE_2M.bytes());
    if let Some(limit) = available.address_space_bytes.filter(|left| addresses_bytes > *left) {
        let name = "this process's address space limit (ulimit -v)".to_owned();
        return refuse(limit, name, "raise it, or load less");
    }
    if from_pool {
        return Ok(());
    }
    if let Some((limit, path)) = &available.control_group
        && needed_bytes > *limit
    {
        let name = format!("the control group's {}", path.display());
        return refuse(*limit, name, "raise it, or load less");
    }
    if let Some(limit) = available.machine_bytes.filter(|left| needed_bytes > *left) {
        let name = "this machine's available memory (MemAvailable)".to_owned();
        return refuse(limit, name, "free some, or load less");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn refused_by(available: &Available, from_pool: bool) -> Option<String> {
        match check_against(GIB, from_pool, available) {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        }
    }

    #[test]
    fn each_authority_is_named_when_it_refuses() {
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
            assert!(message.contains(name) && message.contains("1073741824"), "{message}");
        }
    }

    #[test]
    fn pages_of_the_pool_are_not_counted_twice() {
        let short = Available { machine_bytes: Some(0), ..Available::default() };
        assert_eq!(refused_by(&short, true), None);
        assert!(refused_by(&short, false).is_some());
    }

    #[test]
    fn the_callers_limit_comes_first() {
        let refused = check(GIB, &Heap::Memfd, Some(GIB - 1)).unwrap_err();
        assert!(
            matches!(refused, Error::NotEnoughMemory { limit_bytes, .. } if limit_bytes == GIB - 1)
        );
    }
}
