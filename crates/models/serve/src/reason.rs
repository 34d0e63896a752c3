//! Why a server refuses.

/// Why a server refuses, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The client speaks another version.
    Version,
    /// What was asked for is not served, or not to this client.
    NotServed,
    /// Nothing is held under that number, or it is no longer what is on disk.
    NotHeld,
    /// The files cannot be read, or are not of their format.
    Unreadable,
    /// A file changed while it was read.
    Changed,
    /// There is no memory for it.
    NoMemory,
    /// This client, its user or everyone has as much as is allowed.
    TooMany,
    /// What the client sent makes no sense.
    Misbehaved,
    /// The server ends.
    Stopping,
    /// Anything else, also what a later server may say.
    Other,
}

pub(crate) const REASONS: [Reason; 10] = [
    Reason::Other,
    Reason::Version,
    Reason::NotServed,
    Reason::NotHeld,
    Reason::Unreadable,
    Reason::Changed,
    Reason::NoMemory,
    Reason::TooMany,
    Reason::Misbehaved,
    Reason::Stopping,
];

impl Reason {
    pub(crate) fn number(self) -> u16 {
        REASONS.iter().position(|reason| *reason == self).unwrap_or(0) as u16
    }

    pub(crate) fn from_number(number: u16) -> Self {
        REASONS.get(usize::from(number)).copied().unwrap_or(Self::Other)
    }
}
