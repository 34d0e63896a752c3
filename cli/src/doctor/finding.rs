//! A line of the report.

/// The availability of a feature.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It is available.
    Yes,
    /// It is available in part, or slower than possible.
    Limited,
    /// It is not available.
    No,
}

/// The use of a feature. Each has a heading.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Group {
    /// Loads of files, and memory for programs.
    Loading,
    /// Models on servers.
    Servers,
    /// Drivers and device models in processes.
    Devices,
}

impl Group {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Loading => "loading",
            Self::Servers => "servers",
            Self::Devices => "devices",
        }
    }

    pub(super) fn heading(self) -> &'static str {
        match self {
            Self::Loading => "Loading and sharing files",
            Self::Servers => {
                "Credentials for models on servers, which are not tried; other sources need none"
            }
            Self::Devices => {
                "Devices of processes, for drivers and device models; loading needs none of it"
            }
        }
    }
}

/// One line of the report.
pub(super) struct Finding {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) found: String,
    /// How to enable the feature, in one line.
    pub(super) advice: Option<String>,
}

impl Finding {
    pub(super) fn yes(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, state: State::Yes, found: found.into(), advice: None }
    }

    pub(super) fn limited(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        let advice = Some(advice.into());
        Self { name, state: State::Limited, found: found.into(), advice }
    }

    pub(super) fn no(
        name: &'static str,
        found: impl Into<String>,
        advice: impl Into<String>,
    ) -> Self {
        Self { name, state: State::No, found: found.into(), advice: Some(advice.into()) }
    }
}
