//! The hugetlb pool and the transparent huge page settings, read from `/sys`.

use std::fs;
use std::io;
use std::path::Path;

use longshore_mem::Granule;

const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const POOLS: &str = "/sys/kernel/mm/hugepages";

/// A pool of hugetlb pages of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// The number of pages in the pool.
    pub total_pages: u64,
    /// The number of pages that are neither used nor reserved.
    pub available_pages: u64,
    /// The number of additional pages that the kernel may take from ordinary memory when the pool is
    /// empty.
    pub overcommit_pages: u64,
}

/// Returns the state of the 2 MiB pool.
///
/// # Errors
/// `NotFound` if the kernel has no such pool; those of reading `/sys`.
pub fn pool_2m() -> io::Result<Pool> {
    pool(&Path::new(POOLS).join("hugepages-2048kB"))
}

/// Returns the pools of all page sizes, each with its page size in bytes, the smallest first. Returns
/// none if the kernel has no hugetlb pages.
pub fn pools() -> Vec<(u64, Pool)> {
    pools_in(Path::new(POOLS))
}

fn pools_in(folder: &Path) -> Vec<(u64, Pool)> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut pools: Vec<(u64, Pool)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let kib = name.to_str()?.strip_prefix("hugepages-")?.strip_suffix("kB")?;
            Some((kib.parse::<u64>().ok()?.checked_mul(1024)?, pool(&entry.path()).ok()?))
        })
        .collect();
    pools.sort_unstable_by_key(|(page_bytes, _)| *page_bytes);
    pools
}

fn pool(folder: &Path) -> io::Result<Pool> {
    let number = |name: &str| {
        let text = fs::read_to_string(folder.join(name))?;
        text.trim().parse::<u64>().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    };
    let surplus = number("surplus_hugepages")?;
    Ok(Pool {
        total_pages: number("nr_hugepages")?,
        available_pages: number("free_hugepages")?.saturating_sub(number("resv_hugepages")?),
        overcommit_pages: number("nr_overcommit_hugepages")?.saturating_sub(surplus),
    })
}

/// Returns the setting that determines whether shared memory gets transparent huge pages: `always`,
/// `within_size`, `advise`, `never`, `deny` or `force`.
///
/// # Errors
/// `NotFound` if the kernel has no such setting; those of reading `/sys`.
pub fn shmem_setting() -> io::Result<String> {
    chosen(&format!("{THP}/shmem_enabled"))
}

/// Returns the same setting for one folio size (Linux 6.11): `inherit` or one of the values of
/// [`shmem_setting`].
///
/// # Errors
/// `NotFound` if the kernel has no setting for that size; those of reading `/sys`.
pub fn shmem_setting_of(size: Granule) -> io::Result<String> {
    chosen(&format!("{THP}/hugepages-{}kB/shmem_enabled", size.bytes() / 1024))
}

/// Returns the word in brackets, which marks the current setting in `/sys`.
fn chosen(path: &str) -> io::Result<String> {
    let text = fs::read_to_string(path)?;
    text.split_once('[')
        .and_then(|(_, rest)| rest.split_once(']'))
        .map(|(word, _)| word.to_owned())
        .ok_or_else(|| io::ErrorKind::InvalidData.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_of_every_size_are_read_in_order() {
        let dir = tempfile::tempdir().unwrap();
        assert!(pools_in(&dir.path().join("absent")).is_empty());
        for (name, [total, free, reserved, overcommit, surplus]) in
            [("hugepages-1048576kB", [4, 3, 1, 0, 0]), ("hugepages-2048kB", [8, 5, 9, 7, 2])]
        {
            let folder = dir.path().join(name);
            fs::create_dir(&folder).unwrap();
            for (file, value) in [
                ("nr_hugepages", total),
                ("free_hugepages", free),
                ("resv_hugepages", reserved),
                ("nr_overcommit_hugepages", overcommit),
                ("surplus_hugepages", surplus),
            ] {
                fs::write(folder.join(file), format!("{value}\n")).unwrap();
            }
        }
        fs::create_dir(dir.path().join("hugepages-xkB")).unwrap();
        let pool = |total_pages, available_pages, overcommit_pages| Pool {
            total_pages,
            available_pages,
            overcommit_pages,
        };
        assert_eq!(
            pools_in(dir.path()),
            [(2 << 20, pool(8, 0, 5)), (1 << 30, pool(4, 2, 0))],
            "a pool that grows on demand has more reserved pages than free ones"
        );
    }
}
