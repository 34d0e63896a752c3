//! The reasons for which a server refuses.

/// The reason for a refusal, for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The client uses another version of the protocol.
    Version,
    /// The requested file is not served, or not to this client.
    NotServed,
    /// No model has that number, or its files have changed.
    NotHeld,
    /// The files cannot be read.
    Unreadable,
    /// A file changed while it was read.
    Changed,
    /// There is not enough memory.
    NoMemory,
    /// This client, its user or all users together have reached a limit.
    TooMany,
    /// The client sent something that is not valid.
    Misbehaved,
    /// The server ends.
    Stopping,
    /// A file is not valid in its format.
    Malformed,
    /// A server of another machine has no such model or file.
    NoSuchFile,
    /// A server of another machine denies access to the server's credentials.
    Denied,
    /// A server of another machine failed, or did not answer in time.
    RemoteFailed,
    /// There is no model below this name.
    NoModel,
    /// There are several models below this name.
    SeveralModels,
    /// Any other reason, including those of later versions.
    Other,
}

pub(crate) const REASONS: [Reason; 16] = [
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
    Reason::Malformed,
    Reason::NoSuchFile,
    Reason::Denied,
    Reason::RemoteFailed,
    Reason::NoModel,
    Reason::SeveralModels,
];

impl Reason {
    pub(crate) fn number(self) -> u16 {
        REASONS.iter().position(|reason| *reason == self).unwrap_or(0) as u16
    }

    pub(crate) fn from_number(number: u16) -> Self {
        REASONS.get(usize::from(number)).copied().unwrap_or(Self::Other)
    }
}
