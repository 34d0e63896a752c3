//! The configuration of a kernel, and the comparison of the wanted options with the result.

use std::collections::BTreeMap;

/// The options of a kernel, by name, as in its `.config`.
#[derive(Debug)]
pub(super) struct Config<'a>(BTreeMap<&'a str, &'a str>);

impl<'a> Config<'a> {
    /// Parses lines of `CONFIG_X=value` and `# CONFIG_X is not set`; any other line is a comment.
    pub(super) fn parse(text: &'a str) -> Self {
        let option = |line: &'a str| match line.strip_prefix("# ") {
            Some(rest) => rest.strip_suffix(" is not set").map(|name| (name, "n")),
            None => line.split_once('='),
        };
        let options = text.lines().map(str::trim).filter_map(option);
        Self(options.filter(|(name, _)| name.starts_with("CONFIG_")).collect())
    }

    /// Returns a line for each of these options that `made` lacks or has with another value.
    pub(super) fn lost_in(&self, made: &Self) -> Vec<String> {
        let mut lost = Vec::new();
        for (name, wanted) in &self.0 {
            // An option with a missing dependency does not appear at all.
            let got = made.0.get(name).copied().unwrap_or("n");
            if got != *wanted {
                lost.push(format!("{name}={wanted} became {got}"));
            }
        }
        lost
    }

    /// Returns a hash (FNV-1a) of the options, which does not depend on comments or the order.
    pub(super) fn hash(&self) -> u64 {
        let mut hash = 0xcbf2_9ce4_8422_2325;
        for (name, value) in &self.0 {
            for byte in format!("{name}={value}\n").bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        }
        hash
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_option_that_was_dropped_or_changed_is_named() {
        let wanted = Config::parse("# Why.\nCONFIG_A=y\nCONFIG_B=y\nCONFIG_C=\"-x\"\nCONFIG_D=n\n");
        let whole = "CONFIG_A=y\nCONFIG_B=y\n# CONFIG_D is not set\nCONFIG_C=\"-x\"\nCONFIG_E=y\n";
        assert!(wanted.lost_in(&Config::parse(whole)).is_empty());
        assert_eq!(
            wanted.lost_in(&Config::parse("CONFIG_A=m\n# CONFIG_B is not set\nCONFIG_D=y\n")),
            [
                "CONFIG_A=y became m",
                "CONFIG_B=y became n",
                "CONFIG_C=\"-x\" became n",
                "CONFIG_D=n became y"
            ]
        );
    }

    #[test]
    fn the_hash_depends_only_on_the_options() {
        let hash = |text| Config::parse(text).hash();
        // Computed with other implementations of FNV-1a.
        assert_eq!(hash(""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(hash("CONFIG_A=y"), hash("# why\n\nCONFIG_A=y\n"));
        assert_eq!(hash("CONFIG_A=y\nCONFIG_B=y"), hash("CONFIG_B=y\nCONFIG_A=y"));
        assert_ne!(hash("CONFIG_A=y"), hash("CONFIG_A=m"));
        assert_ne!(hash("CONFIG_A=y"), hash("CONFIG_A=y\nCONFIG_B=y"));
    }
}
