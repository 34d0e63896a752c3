//! Users of `/etc/passwd`.

use std::fs;

/// Returns the text of `/etc/passwd`, or an empty string if it cannot be read.
///
/// The file is read directly: `getpwnam` would load the modules of the name service switch into
/// every process, and a static binary cannot.
pub(crate) fn text() -> String {
    fs::read_to_string("/etc/passwd").unwrap_or_default()
}

/// Returns the user id of `name` in the text of `/etc/passwd`.
pub(crate) fn uid_of(name: &str, passwd: &str) -> Option<u32> {
    let mut entries = passwd.lines().map(|line| line.split(':'));
    let mut entry =
        entries.find_map(|mut fields| (fields.next() == Some(name)).then_some(fields))?;
    entry.nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\n\
                          notlongshore:x:5:5::/:/bin/sh\n\
                          longshore:x:993:990::/var/lib/longshore:/usr/sbin/nologin\n\
                          longshore:x:6:6::/:/bin/sh\n\
                          broken:x\n";

    #[test]
    fn the_first_entry_of_a_user_has_its_id() {
        assert_eq!(uid_of("longshore", PASSWD), Some(993));
        assert_eq!(uid_of("root", PASSWD), Some(0));
        for absent in ["long", "broken", "", "x"] {
            assert_eq!(uid_of(absent, PASSWD), None, "{absent}");
        }
        for broken in ["longshore", "longshore:x", "longshore:x:", "longshore:x:-1:0"] {
            assert_eq!(uid_of("longshore", broken), None, "{broken}");
        }
    }
}
