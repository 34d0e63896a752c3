//! Files that are mapped for clients, counted for the whole process and by user.
//!
//! Each is a mapping of this process. A process that has as many mappings as it may cannot start a thread,
//! which ends it, and clients of all users share the mappings and the addresses of one process. So
//! a half of both stays for the process itself, and one user can have a half of the rest:
//!
//! ```text
//!                one user      all users     the process (with the kernel's defaults)
//!   files          16,384         32,768       65,530
//!   addresses      32 TiB         64 TiB      128 TiB
//! ```

use std::os::fd::AsFd;
use std::sync::LazyLock;

use longshore_mem::FileOffset;
use longshore_sys::account::{Account, Limits, OverLimit, Permit};
use longshore_sys::closing::User;
use longshore_sys::mapping;

use crate::{Error, MapAccess, Region};

/// The addresses that a process has, at least.
const ADDRESS_BYTES: u64 = 1 << 47;
/// The kernel's default of `vm.max_map_count` is below a power of two by this.
const COUNT_MARGIN: u64 = 6;

static OF_PROCESS: LazyLock<Mapped> = LazyLock::new(|| {
    let count = mapping::count_max().saturating_add(COUNT_MARGIN);
    Mapped::new(a_quarter_for_each_user(count), a_quarter_for_each_user(ADDRESS_BYTES))
});

fn a_quarter_for_each_user(of: u64) -> Limits {
    Limits { per_user: of / 4, all_users: of / 2 }
}

/// The accounts, with their limits.
#[derive(Debug)]
pub(crate) struct Mapped {
    files: Account,
    bytes: Account,
    files_max: Limits,
    bytes_max: Limits,
}

impl Mapped {
    fn new(files_max: Limits, bytes_max: Limits) -> Self {
        let files = Account::new("mapped files of clients");
        let bytes = Account::new("bytes of addresses of mapped files of clients");
        Self { files, bytes, files_max, bytes_max }
    }
}

/// The user for whom files are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Owner {
    account: &'static Mapped,
    user: User,
}

/// A file that is mapped for a user, counted until this is dropped.
#[derive(Debug)]
pub(crate) struct MappedPermit {
    /// Only dropped.
    _file: Permit,
    bytes: Permit,
}

impl Owner {
    /// This process itself, as long as the user of a client is not known.
    pub(crate) fn unknown() -> Self {
        Self { account: &OF_PROCESS, user: User::own() }
    }

    /// The same account, for this user.
    pub(crate) fn with_user(self, user: User) -> Self {
        Self { user, ..self }
    }

    /// Counts one file, of which `len_bytes` are to be mapped.
    pub(crate) fn take(self, len_bytes: u64) -> Result<MappedPermit, OverLimit> {
        let Self { account, user } = self;
        let file = account.files.take(user, 1, account.files_max)?;
        let bytes = account.bytes.take(user, len_bytes, account.bytes_max)?;
        Ok(MappedPermit { _file: file, bytes })
    }

    /// Maps a file as [`Region::map_file`] does, if that is within the limits. It is counted until the
    /// memory is unmapped.
    pub(crate) fn map_file(
        self,
        file: impl AsFd,
        offset: FileOffset,
        len_bytes: u64,
        access: MapAccess,
    ) -> Result<Region, Error> {
        let mut permit = self.take(len_bytes)?;
        let region = Region::map_file(file, offset, len_bytes, access)?;
        // The rest of the huge pages at the ends.
        let more_bytes = region.address_bytes().saturating_sub(len_bytes);
        permit.bytes.extend(more_bytes, self.account.bytes_max)?;
        Ok(region.with_permit(permit))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;

    use longshore_sys::account::Whose;
    use longshore_sys::memfd;

    use super::*;

    const PAGE: u64 = 4096;
    const HUGE: u64 = 2 << 20;

    /// An account of its own with these limits for one user, and twice as much for all users.
    pub(crate) fn owner(files: u64, bytes: u64) -> Owner {
        let limits = |max| Limits { per_user: max, all_users: 2 * max };
        let account = Box::leak(Box::new(Mapped::new(limits(files), limits(bytes))));
        Owner { account, user: User::own() }
    }

    pub(crate) fn file(len_bytes: u64) -> OwnedFd {
        let file = memfd::create("client", memfd::Backing::Shmem).unwrap();
        memfd::set_len(&file, len_bytes).unwrap();
        file
    }

    fn map(owner: Owner, file: &OwnedFd, len_bytes: u64) -> Result<Region, Error> {
        owner.map_file(file, FileOffset::new(0), len_bytes, MapAccess::ReadWrite)
    }

    fn over_limit(mapped: Result<Region, Error>) -> OverLimit {
        match mapped {
            Err(Error::ClientLimit(over)) => over,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn files_are_counted_until_they_are_unmapped() {
        let (owner, file) = (owner(2, 1 << 40), file(PAGE));
        let one = Arc::new(map(owner, &file, PAGE).unwrap());
        let two = map(owner, &file, PAGE).unwrap();
        let over = over_limit(map(owner, &file, PAGE));
        assert_eq!((over.whose, over.held, over.max), (Whose::User, 2, 2));
        // A clone keeps the mapping.
        let clone = Arc::clone(&one);
        drop(one);
        over_limit(map(owner, &file, PAGE));
        drop(clone);
        let _one = map(owner, &file, PAGE).unwrap();
        drop(two);
        map(owner, &file, PAGE).unwrap();
    }

    #[test]
    fn addresses_are_counted_with_the_rest_of_their_huge_pages() {
        let (owner, file) = (owner(100, 3 * HUGE), file(4 * HUGE));
        let two = map(owner, &file, HUGE + PAGE).unwrap();
        let over = over_limit(map(owner, &file, HUGE + PAGE));
        // First by its length, which fits, and then by the addresses that it took.
        assert_eq!((over.whose, over.max), (Whose::User, 3 * HUGE));
        let one = map(owner, &file, PAGE).unwrap();
        over_limit(map(owner, &file, PAGE));
        drop((one, two));
        over_limit(map(owner, &file, 4 * HUGE));
        map(owner, &file, 3 * HUGE).unwrap();
    }

    #[test]
    fn maps_that_fail_count_nothing() {
        let (owner, file) = (owner(1, HUGE), file(PAGE));
        for _ in 0..3 {
            let refused = map(owner, &file, 2 * PAGE).unwrap_err();
            assert!(matches!(refused, Error::BeyondFile { .. }), "{refused}");
            over_limit(map(owner, &file, 2 * HUGE));
        }
        map(owner, &file, PAGE).unwrap();
    }

    #[test]
    fn the_limits_of_the_process_leave_half_of_its_mappings_and_addresses() {
        let Owner { account, .. } = Owner::unknown();
        let count = mapping::count_max();
        assert!(account.files_max.all_users <= count / 2 + COUNT_MARGIN);
        assert_eq!(account.files_max.per_user, (count + COUNT_MARGIN) / 4);
        assert_eq!(account.bytes_max, Limits { per_user: 1 << 45, all_users: 1 << 46 });
    }
}
