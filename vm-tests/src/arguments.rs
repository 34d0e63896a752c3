//! The arguments that cargo and users pass to a test program, as far as this harness supports them.

/// The parsed arguments.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Arguments {
    /// `true` to list the tests instead of running them.
    pub list: bool,
    /// `true` to show the output of the tests.
    pub show_output: bool,
    exact: bool,
    only_ignored: bool,
    filters: Vec<String>,
    skips: Vec<String>,
}

impl Arguments {
    /// Reads the arguments after the program's name.
    ///
    /// # Errors
    ///
    /// Returns a message if an option is unknown or lacks its value.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
        let mut parsed = Self::default();
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let (name, mut value) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            let mut value =
                || value.take().or_else(|| args.next()).ok_or(format!("{name} needs a value"));
            match name {
                "--list" => parsed.list = true,
                "--exact" => parsed.exact = true,
                "--nocapture" | "--no-capture" | "--show-output" => parsed.show_output = true,
                // No guest test is ignored by default.
                "--ignored" => parsed.only_ignored = true,
                "--skip" => parsed.skips.push(value()?),
                // These choose output and scheduling of a test program, which do not apply here.
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => drop(value()?),
                "--include-ignored" | "--quiet" | "-q" | "--report-time" => {}
                // `-Zoption`, without a space.
                _ if name.starts_with("-Z") => {}
                _ if name.starts_with('-') => return Err(format!("{name} is not supported here")),
                _ => parsed.filters.push(arg),
            }
        }
        Ok(parsed)
    }

    /// Returns `true` if an argument selects only some of the tests.
    #[must_use]
    pub fn is_filtering(&self) -> bool {
        self.only_ignored || !self.filters.is_empty() || !self.skips.is_empty()
    }

    /// Returns `true` if the test called `name` is to run.
    #[must_use]
    pub fn selects(&self, name: &str) -> bool {
        let matches = |pattern: &String| {
            if self.exact { name == pattern } else { name.contains(pattern.as_str()) }
        };
        !self.only_ignored
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Arguments {
        Arguments::parse(line.split_whitespace().map(str::to_owned)).unwrap()
    }

    #[test]
    fn without_filters_everything_is_selected() {
        assert!(parsed("").selects("load::any"));
        assert!(!parsed("").is_filtering());
        assert!(
            !parsed(
                "--nocapture --test-threads 1 --color=never -q -Zunstable-options --report-time"
            )
            .is_filtering()
        );
    }

    #[test]
    fn filters_match_a_part_of_a_name_and_exact_ones_all_of_it() {
        let some = parsed("load:: heap::auto");
        assert!(some.is_filtering());
        assert!(some.selects("load::any") && some.selects("heap::auto_takes"));
        assert!(!some.selects("kernel::any"));
        let exact = parsed("--exact load::a --nocapture");
        assert!(exact.selects("load::a") && !exact.selects("load::ab") && exact.show_output);
    }

    #[test]
    fn skips_win_over_filters_and_nothing_is_ignored() {
        let some = parsed("load:: --skip slow --skip=tmpfs");
        assert!(some.selects("load::ext4"));
        assert!(!some.selects("load::slow") && !some.selects("load::tmpfs"));
        assert!(!parsed("--ignored").selects("load::ext4"));
        assert!(parsed("--list --format terse").list);
    }

    #[test]
    fn unknown_options_are_refused() {
        let refused = |arg: &str| Arguments::parse([arg.to_owned()]).unwrap_err();
        assert!(refused("--bench").contains("--bench"));
        assert!(refused("--skip").contains("needs a value"));
    }
}
