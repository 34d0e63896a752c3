//! Limits on the files that a device server maps for its clients.
//!
//! Each file of a client is a mapping of this process. The clients of all users share the mappings and
//! addresses of the process. A process without free mappings cannot start a thread, and then it aborts.
//! So half of both is kept for the process itself, and one user can have half of the rest:
//!
//! ```text
//!                one user      all users     the process (with the kernel's defaults)
//!   files          16,384         32,768       65,530
//!   addresses      32 TiB         64 TiB      128 TiB
//! ```
//!
//! The descriptor of each mapped file is kept. So `RLIMIT_NOFILE` limits the number of files, too: one user
//! can have an eighth of it, and all users a quarter.

use std::os::fd::OwnedFd;
use std::sync::LazyLock;

use longshore_mem::FileOffset;
use longshore_sys::account::{Account, Limits, Permit};
use longshore_sys::answering::is_disposable;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::kept_descriptors;
use longshore_sys::mapping;

use crate::client::quota_exceeded::QuotaExceeded;
use crate::{Error, Region, RegionAccess};

/// The minimum address space of a process in bytes.
const ADDRESS_BYTES: u64 = 1 << 47;
/// The difference between a power of two and the kernel's default of `vm.max_map_count`.
const COUNT_MARGIN: u64 = 6;

static OF_PROCESS: LazyLock<MappingAccounts> = LazyLock::new(|| {
    let count = mapping::count_max().saturating_add(COUNT_MARGIN);
    MappingAccounts::new(count / 4, ADDRESS_BYTES / 4)
});

/// The files and addresses that are mapped for clients, with their limits.
#[derive(Debug)]
pub struct MappingAccounts {
    files: Account,
    bytes: Account,
    files_max: Limits,
    bytes_max: Limits,
}

impl MappingAccounts {
    /// Makes accounts in which one user can have `files_per_user` mapped files and `bytes_per_user`
    /// bytes of addresses, and all users together twice as many.
    pub const fn new(files_per_user: u64, bytes_per_user: u64) -> Self {
        let files_max = limits(files_per_user);
        let bytes_max = limits(bytes_per_user);
        let files = Account::new("mapped files of clients");
        let bytes = Account::new("bytes of addresses of mapped files of clients");
        Self { files, bytes, files_max, bytes_max }
    }
}

const fn limits(per_user: u64) -> Limits {
    Limits { per_user, all_users: per_user.saturating_mul(2) }
}

/// The share of one user in [`MappingAccounts`].
#[derive(Clone, Copy, Debug)]
pub struct MappingQuota {
    accounts: &'static MappingAccounts,
    user: User,
}

/// A mapped file, counted until this is dropped.
#[derive(Debug)]
pub struct MappingPermit {
    /// Kept only to be dropped.
    _file: Permit,
    bytes: Permit,
}

impl MappingQuota {
    /// Returns the quota of this process's own user in the accounts that all servers of the process
    /// share. Use it for clients whose user is unknown.
    pub fn of_process() -> Self {
        Self { accounts: &OF_PROCESS, user: User::own() }
    }

    /// Returns the quota of the user with id `uid` in `accounts`.
    pub const fn new(accounts: &'static MappingAccounts, uid: u32) -> Self {
        Self { accounts, user: User::from_uid(uid) }
    }

    /// Returns the quota of the user with id `uid` in the same accounts.
    #[must_use]
    pub const fn with_uid(self, uid: u32) -> Self {
        Self::new(self.accounts, uid)
    }

    /// Counts one file and `len_bytes` of addresses to map.
    ///
    /// # Errors
    /// [`QuotaExceeded`]. Nothing is counted then.
    pub fn acquire(self, len_bytes: u64) -> Result<MappingPermit, QuotaExceeded> {
        let Self { accounts, user } = self;
        let file = accounts.files.take(user, 1, accounts.files_max).map_err(QuotaExceeded)?;
        let bytes = accounts.bytes.take(user, len_bytes, accounts.bytes_max);
        let bytes = bytes.map_err(QuotaExceeded)?;
        Ok(MappingPermit { _file: file, bytes })
    }

    /// Maps a file like [`Region::map_file`], if that is within the limits. The file counts against them
    /// until the memory is unmapped. The descriptor is kept until then, and another thread closes it. So
    /// the last close of the file, which can block, delays neither this call nor the unmapping.
    ///
    /// For regular files of one user, at most an eighth of the descriptors of this process
    /// (`RLIMIT_NOFILE`) are kept, and a quarter for all users. A file beyond that is refused, because
    /// unmapping would close it.
    ///
    /// # Errors
    /// [`Error::ClientLimit`] if a limit would be exceeded; those of [`Region::map_file`].
    pub fn map_file(
        self,
        file: OwnedFd,
        offset: FileOffset,
        len_bytes: u64,
        access: RegionAccess,
    ) -> Result<Region, Error> {
        let file = Disposable::of_user(file, self.user);
        let mut permit = self.acquire(len_bytes)?;
        let kept = match is_disposable(&file) {
            true => kept_descriptors::keep(self.user, 1),
            false => kept_descriptors::keep_file(self.user),
        };
        let kept = kept.map_err(QuotaExceeded)?;
        let region = Region::map_file(&file, offset, len_bytes, access)?;
        // The rest of the huge pages at both ends.
        let more_bytes = region.address_bytes().saturating_sub(len_bytes);
        permit.bytes.extend(more_bytes, self.accounts.bytes_max).map_err(QuotaExceeded)?;
        Ok(region.keeping((permit, file, kept)))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::{Duration, Instant};
    use std::{fs, thread};

    use longshore_sys::account::{OverLimit, Whose};
    use longshore_sys::{closing, memfd};

    use super::*;

    const PAGE: u64 = 4096;
    const HUGE: u64 = 2 << 20;

    /// Makes new accounts with these limits for one user, and twice as much for all users.
    fn quota(files: u64, bytes: u64) -> MappingQuota {
        let accounts = Box::leak(Box::new(MappingAccounts::new(files, bytes)));
        MappingQuota::new(accounts, User::own().uid())
    }

    fn file(len_bytes: u64) -> OwnedFd {
        let file = memfd::create("client", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&file, len_bytes).unwrap();
        file
    }

    fn map(quota: MappingQuota, file: &OwnedFd, len_bytes: u64) -> Result<Region, Error> {
        let file = file.try_clone().unwrap();
        quota.map_file(file, FileOffset::new(0), len_bytes, RegionAccess::ReadWrite)
    }

    fn over_limit(mapped: Result<Region, Error>) -> OverLimit {
        match mapped {
            Err(Error::ClientLimit(QuotaExceeded(over))) => over,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_are_counted_until_they_are_unmapped() {
        let (quota, file) = (quota(2, 1 << 40), file(PAGE));
        let one = Arc::new(map(quota, &file, PAGE).unwrap());
        let two = map(quota, &file, PAGE).unwrap();
        let over = over_limit(map(quota, &file, PAGE));
        assert_eq!((over.whose, over.held, over.max), (Whose::User, 2, 2));
        // A clone keeps the mapping.
        let clone = Arc::clone(&one);
        drop(one);
        over_limit(map(quota, &file, PAGE));
        drop(clone);
        let _one = map(quota, &file, PAGE).unwrap();
        drop(two);
        map(quota, &file, PAGE).unwrap();
    }

    /// Returns the number of descriptors of this process whose files have this name.
    fn count_of(name: &str) -> usize {
        let entries = fs::read_dir("/proc/self/fd").unwrap();
        let links = entries.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok());
        links.filter(|link| link.to_string_lossy().contains(name)).count()
    }

    fn wait_until(mut is_done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !is_done() {
            assert!(begin.elapsed() < Duration::from_secs(60), "it does not happen");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_file_whose_descriptor_cannot_be_kept_is_refused() {
        const UID: u32 = 4_000_000_052;
        let (quota, file) = (quota(1 << 20, 1 << 46).with_uid(UID), file(PAGE));
        let mut kept = Vec::new();
        while let Ok(permit) = kept_descriptors::keep_file(User::from_uid(UID)) {
            kept.push(permit);
        }
        let over = over_limit(map(quota, &file, PAGE));
        assert_eq!((over.whose, over.held), (Whose::User, kept.len() as u64));
        kept.pop();
        let one = map(quota, &file, PAGE).unwrap();
        over_limit(map(quota, &file, PAGE));
        drop(one);
        wait_until(|| map(quota, &file, PAGE).is_ok());
    }

    /// Without a descriptor of the file, unmapping would close the file, which can block.
    #[test]
    fn unmapping_is_not_the_last_close_of_a_file() {
        const UID: u32 = 4_000_000_051;
        let quota = quota(2, 1 << 40).with_uid(UID);
        let file = memfd::create("last-close", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&file, PAGE).unwrap();
        let region = map(quota, &file, PAGE).unwrap();
        drop(file);
        wait_until(|| !closing::has_files(User::from_uid(UID)));
        assert_eq!(count_of("memfd:last-close"), 1);
        drop(region);
        wait_until(|| count_of("memfd:last-close") == 0);
    }

    #[test]
    fn a_file_that_is_not_mapped_is_closed() {
        let quota = quota(0, 1 << 40);
        let file = memfd::create("not-mapped", memfd::Backing::Shmem).unwrap();
        let access = RegionAccess::ReadWrite;
        over_limit(quota.map_file(file, FileOffset::new(0), PAGE, access));
        wait_until(|| count_of("memfd:not-mapped") == 0);
    }

    #[test]
    fn addresses_are_counted_with_the_rest_of_their_huge_pages() {
        let (quota, file) = (quota(100, 3 * HUGE), file(4 * HUGE));
        let two = map(quota, &file, HUGE + PAGE).unwrap();
        let over = over_limit(map(quota, &file, HUGE + PAGE));
        // Its length fits, but not the addresses that it needs.
        assert_eq!((over.whose, over.max), (Whose::User, 3 * HUGE));
        let one = map(quota, &file, PAGE).unwrap();
        over_limit(map(quota, &file, PAGE));
        drop((one, two));
        over_limit(map(quota, &file, 4 * HUGE));
        map(quota, &file, 3 * HUGE).unwrap();
    }

    #[test]
    fn failed_mappings_are_not_counted() {
        let (quota, file) = (quota(1, HUGE), file(PAGE));
        for _ in 0..3 {
            let refused = map(quota, &file, 2 * PAGE).unwrap_err();
            assert!(matches!(refused, Error::BeyondFile { .. }), "{refused}");
            over_limit(map(quota, &file, 2 * HUGE));
        }
        map(quota, &file, PAGE).unwrap();
    }

    #[test]
    fn the_limits_of_the_process_leave_half_of_its_mappings_and_addresses() {
        let MappingQuota { accounts, .. } = MappingQuota::of_process();
        let count = mapping::count_max();
        assert!(accounts.files_max.all_users <= count / 2 + COUNT_MARGIN);
        assert_eq!(accounts.files_max.per_user, (count + COUNT_MARGIN) / 4);
        assert_eq!(accounts.bytes_max, Limits { per_user: 1 << 45, all_users: 1 << 46 });
    }
}
