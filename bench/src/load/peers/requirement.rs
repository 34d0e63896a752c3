//! Pinned packages, one a line: `name==version`.

/// A package and the version it is measured in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Requirement {
    pub(super) package: &'static str,
    pub(super) version: &'static str,
}

impl Requirement {
    /// Whether an installed version is this one, whatever it was built for (`2.15.0+cpu`).
    pub(super) fn is_met_by(&self, installed: &str) -> bool {
        installed.split('+').next() == Some(self.version)
    }

    /// As `pip` takes it.
    pub(super) fn to_pip(self) -> String {
        format!("{}=={}", self.package, self.version)
    }
}

/// The packages of a requirements file.
pub(super) fn parse(text: &'static str) -> Vec<Requirement> {
    text.lines()
        .map(str::trim)
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once("=="))
        .map(|(package, version)| Requirement { package, version })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_and_compared_without_their_build() {
        let found = parse("# a comment==x\nnumpy==2.2.6\n\n torch==2.15.0 \n");
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].to_pip(), "torch==2.15.0");
        assert!(found[1].is_met_by("2.15.0+cpu") && found[1].is_met_by("2.15.0"));
        assert!(!found[1].is_met_by("2.15.1"));
    }

    #[test]
    fn every_committed_line_is_a_pin() {
        for text in [
            include_str!("../../../peers/requirements.txt"),
            include_str!("../../../peers/requirements-torch.txt"),
        ] {
            let lines =
                text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
            assert_eq!(parse(text).len(), lines);
        }
    }
}
