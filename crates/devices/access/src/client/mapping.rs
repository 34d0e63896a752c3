//! Limits on what the clients of a device server make this process map.
//!
//! Each file of a client is a mapping of this process. A process without free mappings cannot start a
//! thread, which ends it, and the clients of all users share the mappings and the addresses of one process.
//! So half of both is kept for the process itself, and one user can have half of the rest:
//!
//! ```text
//!                one user      all users     the process (with the kernel's defaults)
//!   files          16,384         32,768       65,530
//!   addresses      32 TiB         64 TiB      128 TiB
//! ```

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::LazyLock;

use longshore_mem::FileOffset;
use longshore_sys::account::{Account, Limits, Permit};
use longshore_sys::answering::is_disposable;
use longshore_sys::closing::{Disposable, User};
use longshore_sys::kept_descriptors;
use longshore_sys::mapping;

use crate::client::quota_exceeded::QuotaExceeded;
use crate::{Error, Region, RegionAccess};

/// The addresses that a process has, at least.
const ADDRESS_BYTES: u64 = 1 << 47;
/// The kernel's default of `vm.max_map_count` is below a power of two by this.
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
    /// Makes accounts in which one user can have this many mapped files and bytes of addresses, and all
    /// users together twice as many.
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
    /// Only dropped.
    _file: Permit,
    bytes: Permit,
}

impl MappingQuota {
    /// Returns the quota of this process's own user in the accounts that all servers of the process share.
    /// It is for clients whose user is not known.
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

    /// Counts one file, of which `len_bytes` are to be mapped.
    ///
    /// # Errors
    /// [`QuotaExceeded`]; nothing is counted then.
    pub fn acquire(self, len_bytes: u64) -> Result<MappingPermit, QuotaExceeded> {
        let Self { accounts, user } = self;
        let file = accounts.files.take(user, 1, accounts.files_max).map_err(QuotaExceeded)?;
        let bytes = accounts.bytes.take(user, len_bytes, accounts.bytes_max);
        let bytes = bytes.map_err(QuotaExceeded)?;
        Ok(MappingPermit { _file: file, bytes })
    }

    /// Maps a file as [`Region::map_file`] does, if that is within the limits. It is counted until the
    /// memory is unmapped. Unmapping a DMA-buf does not wait, because a descriptor of it is kept until then
    /// and closed by another thread.
    ///
    /// # Errors
    /// [`Error::ClientLimit`] beyond a limit; those of [`Region::map_file`].
    pub fn map_file(
        self,
        file: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        access: RegionAccess,
    ) -> Result<Region, Error> {
        // Asked once: the file that is kept has to be the one that is mapped.
        let file = file.as_fd();
        let mut permit = self.acquire(len_bytes)?;
        let region = Region::map_file(file, offset, len_bytes, access)?;
        let kept = is_disposable(file).then(|| self.keep(file)).transpose()?;
        // The rest of the huge pages at the ends.
        let more_bytes = region.address_bytes().saturating_sub(len_bytes);
        permit.bytes.extend(more_bytes, self.accounts.bytes_max).map_err(QuotaExceeded)?;
        Ok(region.keeping((permit, kept)))
    }

    /// Keeps a descriptor of a file whose last close can wait.
    fn keep(self, file: BorrowedFd<'_>) -> Result<(Disposable<OwnedFd>, Permit), Error> {
        let permit = kept_descriptors::keep(self.user, 1).map_err(QuotaExceeded)?;
        let io = |source| Error::Io { operation: "keep a descriptor of a file", source };
        let file = file.try_clone_to_owned().map_err(io)?;
        Ok((Disposable::of_user(file, self.user), permit))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use longshore_sys::account::{OverLimit, Whose};
    use longshore_sys::memfd;

    use super::*;

    const PAGE: u64 = 4096;
    const HUGE: u64 = 2 << 20;

    /// Accounts of their own with these limits for one user, and twice as much for all users.
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

    #[test]
    fn addresses_are_counted_with_the_rest_of_their_huge_pages() {
        let (quota, file) = (quota(100, 3 * HUGE), file(4 * HUGE));
        let two = map(quota, &file, HUGE + PAGE).unwrap();
        let over = over_limit(map(quota, &file, HUGE + PAGE));
        // First by its length, which fits, and then by the addresses that it took.
        assert_eq!((over.whose, over.max), (Whose::User, 3 * HUGE));
        let one = map(quota, &file, PAGE).unwrap();
        over_limit(map(quota, &file, PAGE));
        drop((one, two));
        over_limit(map(quota, &file, 4 * HUGE));
        map(quota, &file, 3 * HUGE).unwrap();
    }

    #[test]
    fn maps_that_fail_count_nothing() {
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
