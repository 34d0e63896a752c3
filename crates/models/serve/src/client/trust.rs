//! The users whose servers a client trusts.
//!
//! A client sends the server a file that it opened, and a model that is named by its number is a
//! file that the server chose. So a client sends nothing before it has checked the user of the
//! process that listens (`SO_PEERCRED`).

use std::collections::BTreeSet;
use std::{env, fs};

use crate::error::{Error, Result};
use crate::passwd;

/// The variable with further user ids to trust, separated by commas.
pub const TRUST_VARIABLE: &str = "LONGSHORE_TRUST_UID";

/// The system user whose server every client trusts.
const SYSTEM_USER: &str = "longshore";
/// No user has this id: it means "none" to the kernel.
const NO_UID: u32 = u32::MAX;
/// The id that a user has in a user namespace that does not map it, unless
/// `/proc/sys/kernel/overflowuid` says otherwise.
const OVERFLOW_UID: u32 = 65534;

/// The users whose servers a client trusts with every file that it can open.
///
/// In a user namespace that does not map all users, every other user appears as the overflow id
/// (65534), so that id is trusted only if it is named explicitly.
///
/// A model can be attached by its number or by the end of its path. The server then says which file
/// that is, and could name any file that the client can open. So the user `longshore` is trusted with
/// this only if it is named explicitly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trust {
    uids: BTreeSet<u32>,
    /// The trusted user whose server is sent only files whose paths the caller gave.
    by_path_only: Option<u32>,
}

impl Trust {
    /// Returns the default: root, the effective user of this process, the user `longshore` of
    /// `/etc/passwd` if there is one, and the users of `$LONGSHORE_TRUST_UID`.
    ///
    /// A user `longshore` that is defined elsewhere, such as in a directory service, has to be named
    /// by its id.
    ///
    /// # Errors
    /// [`Error::NotAUserId`] if the variable is not a list of numbers.
    pub fn from_env() -> Result<Self> {
        let listed = env::var_os(TRUST_VARIABLE).unwrap_or_default();
        let listed = parse_list(&listed.to_string_lossy())?;
        let ambiguous = ambiguous_uid(
            &fs::read_to_string("/proc/self/uid_map").unwrap_or_default(),
            &fs::read_to_string("/proc/sys/kernel/overflowuid").unwrap_or_default(),
        );
        let own = longshore_sys::effective_uid();
        Ok(Self::default_of(own, &passwd::text(), ambiguous).and(listed))
    }

    /// Returns the default of the user `own` without the variable. `passwd` is the text of `/etc/passwd`;
    /// `ambiguous` is the id that may stand for several users, which is not trusted.
    fn default_of(own: u32, passwd: &str, ambiguous: Option<u32>) -> Self {
        let system = passwd::uid_of(SYSTEM_USER, passwd);
        let default = [Some(0), Some(own), system];
        let default = default.into_iter().flatten().filter(|uid| Some(*uid) != ambiguous);
        let by_path_only = system.filter(|uid| ![0, own].contains(uid));
        Self { by_path_only, ..Self::only(default) }
    }

    /// Returns the trust in these users, and in no other.
    pub fn only(uids: impl IntoIterator<Item = u32>) -> Self {
        let uids = uids.into_iter().filter(|uid| *uid != NO_UID).collect();
        Self { uids, by_path_only: None }
    }

    /// Returns this trust, extended by `uids`.
    #[must_use]
    pub fn and(self, uids: impl IntoIterator<Item = u32>) -> Self {
        let named = Self::only(uids).uids;
        let by_path_only = self.by_path_only.filter(|uid| !named.contains(uid));
        Self { uids: &self.uids | &named, by_path_only }
    }

    /// Returns `true` if servers of this user are trusted.
    pub fn contains(&self, uid: u32) -> bool {
        self.uids.contains(&uid)
    }

    /// Returns `true` if servers of this user may choose which file they are sent, for a number or the
    /// end of a path.
    pub fn may_choose_files(&self, uid: u32) -> bool {
        self.contains(uid) && self.by_path_only != Some(uid)
    }
}

fn parse_list(list: &str) -> Result<Vec<u32>> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    words
        .map(|word| {
            let refused = || Error::NotAUserId { word: word.to_owned(), variable: TRUST_VARIABLE };
            word.parse().map_err(|_| refused())
        })
        .collect()
}

/// Returns the overflow id, unless the user namespace maps every id, as the initial one does. Then no
/// other user can appear as the user with this id.
fn ambiguous_uid(uid_map: &str, overflow_uid: &str) -> Option<u32> {
    let count = |line: &str| line.split_whitespace().nth(2)?.parse::<u64>().ok();
    let mapped: u64 = uid_map.lines().filter_map(count).sum();
    (mapped < u64::from(u32::MAX)).then(|| overflow_uid.trim().parse().unwrap_or(OVERFLOW_UID))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_a_list_of_numbers() {
        assert!(parse_list("").unwrap().is_empty());
        assert_eq!(parse_list("7, 1000,").unwrap(), [7, 1000]);
        for wrong in ["longshore", "7 8", "-1", "4294967296", "7,x"] {
            assert!(matches!(parse_list(wrong), Err(Error::NotAUserId { .. })), "{wrong}");
        }
    }

    #[test]
    fn the_overflow_id_is_ambiguous_unless_all_ids_are_mapped() {
        let initial = "         0          0 4294967295\n";
        assert_eq!(ambiguous_uid(initial, "65534\n"), None);
        assert_eq!(ambiguous_uid("0 1000 1\n1 100000 65536\n", "65534\n"), Some(65534));
        assert_eq!(ambiguous_uid("65534 65534 1\n", "77\n"), Some(77));
        assert_eq!(ambiguous_uid("", ""), Some(65534), "without /proc nothing is known");
    }

    #[test]
    fn root_the_own_user_and_the_system_user_are_trusted_and_no_other() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\n\
                      alice:x:1001:1001::/:/bin/sh\n\
                      notlongshore:x:5:5::/:/bin/sh\n\
                      longshore:x:993:990::/var/lib/longshore:/usr/sbin/nologin\n";
        let uids = |trust: &Trust| trust.uids.iter().copied().collect::<Vec<_>>();
        let trust = Trust::default_of(1000, passwd, None);
        assert_eq!(uids(&trust), [0, 993, 1000]);
        assert!([0, 1000].iter().all(|uid| trust.may_choose_files(*uid)));
        assert!(!trust.may_choose_files(993), "only files whose paths the caller gave");
        assert_eq!(uids(&Trust::default_of(1000, "", None)), [0, 1000]);
        // A server of its own user, and one in a user namespace that maps no other.
        let own = Trust::default_of(993, passwd, None);
        assert_eq!((uids(&own), own.may_choose_files(993)), (vec![0, 993], true));
        assert_eq!(uids(&Trust::default_of(65534, passwd, Some(65534))), [0, 993]);
    }

    #[test]
    fn the_system_user_chooses_files_only_if_it_is_named() {
        let trust = Trust { by_path_only: Some(993), ..Trust::only([0, 993]) };
        assert!(trust.contains(993) && !trust.may_choose_files(993));
        assert!(trust.may_choose_files(0) && !trust.may_choose_files(5));
        let named = trust.clone().and([5, 993]);
        assert!(named.may_choose_files(993) && named.may_choose_files(5));
        assert!(!trust.and([5]).may_choose_files(993));
    }

    #[test]
    fn the_id_that_means_no_user_is_never_trusted() {
        let trust = Trust::only([5, u32::MAX]).and([6, u32::MAX]);
        assert!(trust.contains(5) && trust.contains(6));
        assert!(!trust.contains(u32::MAX) && !trust.contains(0));
    }
}
