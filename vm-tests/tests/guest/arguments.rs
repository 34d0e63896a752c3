//! The arguments that cargo and people pass to a test program, as far as they make sense here.

/// What was asked for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Arguments {
    pub(crate) list: bool,
    pub(crate) show_output: bool,
    exact: bool,
    only_ignored: bool,
    filters: Vec<String>,
    skips: Vec<String>,
}

impl Arguments {
    /// Reads the arguments after the program's name.
    pub(crate) fn parse(args: impl IntoIterator<Item = String>) -> Result<Self, String> {
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
                // No guest test is marked to be ignored.
                "--ignored" => parsed.only_ignored = true,
                "--skip" => parsed.skips.push(value()?),
                // They say how a test program prints and schedules: nothing to choose here.
                "--test-threads" | "--color" | "--format" | "--logfile" | "-Z" => drop(value()?),
                "--include-ignored" | "--quiet" | "-q" => {}
                _ if name.starts_with('-') => return Err(format!("{name} is not known here")),
                _ => parsed.filters.push(arg),
            }
        }
        Ok(parsed)
    }

    /// Whether anything narrows the tests down.
    pub(crate) fn is_filtering(&self) -> bool {
        self.only_ignored || !self.filters.is_empty() || !self.skips.is_empty()
    }

    /// Whether the test called `name` is to run.
    pub(crate) fn selects(&self, name: &str) -> bool {
        let matches = |pattern: &String| {
            if self.exact { name == pattern } else { name.contains(pattern.as_str()) }
        };
        !self.only_ignored
            && (self.filters.is_empty() || self.filters.iter().any(matches))
            && !self.skips.iter().any(matches)
    }
}
