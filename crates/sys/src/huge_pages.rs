//! The hugetlb pool and the transparent huge page settings, as `/sys` tells them.

use std::fs;
use std::io;

use longshore_mem::Granule;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The pool of 2 MiB hugetlb pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Pages in the pool.
    pub total_pages: u64,
    /// Pages that nothing uses or has reserved.
    pub available_pages: u64,
    /// How many pages more the kernel may take from ordinary memory when the pool is empty.
    pub overcommit_pages: u64,
}

/// Reads the state of the 2 MiB pool.
///
/// # Errors
/// Where the kernel has no such pool.
pub fn pool_2m() -> io::Result<Pool> {
    let number = |name: &str| {
        let text = fs::read_to_string(format!("/sys/kernel/mm/hugepages/hugepages-2048kB/{name}"))?;
        text.trim().parse::<u64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    let surplus = number("surplus_hugepages")?;
    Ok(Pool {
        total_pages: number("nr_hugepages")?,
        available_pages: number("free_hugepages")?.saturating_sub(number("resv_hugepages")?),
        overcommit_pages: number("nr_overcommit_hugepages")?.saturating_sub(surplus),
    })
}

/// The setting that decides whether shared memory gets transparent huge pages: `always`,
/// `within_size`, `advise`, `never`, `deny` or `force`.
///
/// # Errors
/// Where the kernel has none.
pub fn shmem_setting() -> io::Result<String> {
    chosen(&format!("{THP}/shmem_enabled"))
}

/// The same for one folio size (Linux 6.11): `inherit` or one of the above.
///
/// # Errors
/// Where the kernel has no setting for that size.
pub fn shmem_setting_of(size: Granule) -> io::Result<String> {
    chosen(&format!("{THP}/hugepages-{}kB/shmem_enabled", size.bytes() / 1024))
}

/// The word in brackets, which is how `/sys` marks the one in force.
fn chosen(path: &str) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(word, _)| word.to_owned())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}
