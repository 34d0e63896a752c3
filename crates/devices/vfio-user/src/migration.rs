//! Moving a device's state to another process: the states, and which lead to which.

use crate::Errno;

/// A device whose state can be moved.
///
/// A device begins in [`MigrationState::Running`] for each client. If a client goes while the device is in
/// another state, the device is reset ([`Device::reset`](crate::Device::reset)).
pub trait Migration {
    /// Whether state can be read while the device still runs ([`MigrationState::PreCopy`]).
    fn has_pre_copy(&self) -> bool {
        false
    }

    /// Goes from one state to a neighbour of it ([`MigrationState::is_neighbour`]).
    ///
    /// # Errors
    /// What the client is told; the device is then in the state it was in, or in
    /// [`MigrationState::Error`] if it says so.
    fn set_state(&mut self, from: MigrationState, to: MigrationState)
    -> Result<(), MigrationError>;

    /// Reads the next bytes of the state; fewer than there is room for only at its end.
    ///
    /// # Errors
    /// What the client is told.
    fn read_state(&mut self, into: &mut [u8]) -> Result<usize, Errno>;

    /// Takes the next bytes of a state that was read elsewhere.
    ///
    /// # Errors
    /// What the client is told.
    fn write_state(&mut self, from: &[u8]) -> Result<(), Errno>;
}

/// The error of a device that did not go to another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationError {
    /// The error that the client is sent.
    pub errno: Errno,
    /// Whether the device is now in no state that it could go on from.
    pub is_broken: bool,
}

impl From<Errno> for MigrationError {
    fn from(errno: Errno) -> Self {
        Self { errno, is_broken: false }
    }
}

/// How far a device is in being moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum MigrationState {
    /// It failed; only a reset helps. The server does one when the client is gone.
    Error = 0,
    /// It stands still.
    Stop = 1,
    /// It runs.
    #[default]
    Running = 2,
    /// It stands still, and its state is read.
    StopCopy = 3,
    /// It stands still, and takes a state.
    Resuming = 4,
    /// It runs, and its state is read.
    PreCopy = 6,
}

impl MigrationState {
    const ALL: [Self; 6] =
        [Self::Error, Self::Stop, Self::Running, Self::StopCopy, Self::Resuming, Self::PreCopy];

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == number)
    }

    /// Whether state can be read in it.
    pub fn is_saving(self) -> bool {
        matches!(self, Self::StopCopy | Self::PreCopy)
    }

    /// Whether a device goes from here to `to` without passing another state.
    pub fn is_neighbour(self, to: Self) -> bool {
        use MigrationState as S;
        matches!(
            (self, to),
            (S::Running | S::StopCopy | S::Resuming, S::Stop)
                | (S::PreCopy | S::Stop, S::Running)
                | (S::Running, S::PreCopy)
                | (S::Stop | S::PreCopy, S::StopCopy)
                | (S::Stop, S::Resuming)
        )
    }

    /// The states to pass to get to `to`, which is the last of them: as few as can be, and none
    /// between in which state is read.
    pub(crate) fn path(self, to: Self, has_pre_copy: bool) -> Result<Vec<Self>, Errno> {
        let is_allowed = |state: Self| has_pre_copy || state != Self::PreCopy;
        let leads_back = (self, to) == (Self::StopCopy, Self::PreCopy);
        if self == Self::Error || to == Self::Error || !is_allowed(to) || leads_back {
            return Err(Errno::EINVAL);
        }
        let mut paths = vec![vec![]];
        // No path is longer than there are states.
        for _ in Self::ALL {
            let at = |path: &Vec<Self>| path.last().copied().unwrap_or(self);
            if let Some(path) = paths.iter().position(|path| at(path) == to) {
                return Ok(paths.swap_remove(path));
            }
            let further = |path: &Vec<Self>| {
                let from = at(path);
                let may_pass = path.is_empty() || !from.is_saving();
                let next = Self::ALL
                    .into_iter()
                    .filter(move |next| may_pass && is_allowed(*next) && from.is_neighbour(*next));
                let path = path.clone();
                next.map(move |next| [path.as_slice(), &[next]].concat()).collect::<Vec<_>>()
            };
            paths = paths.iter().flat_map(further).collect();
        }
        Err(Errno::EINVAL)
    }
}

#[cfg(test)]
mod tests {
    use super::MigrationState as S;

    #[test]
    fn ways_are_short_and_pass_no_state_that_saves() {
        for (from, to, path) in [
            (S::Running, S::Running, &[][..]),
            (S::Running, S::Stop, &[S::Stop]),
            (S::Running, S::StopCopy, &[S::Stop, S::StopCopy]),
            (S::PreCopy, S::StopCopy, &[S::StopCopy]),
            (S::StopCopy, S::Running, &[S::Stop, S::Running]),
            (S::StopCopy, S::Resuming, &[S::Stop, S::Resuming]),
            (S::Resuming, S::PreCopy, &[S::Stop, S::Running, S::PreCopy]),
            (S::PreCopy, S::Resuming, &[S::Running, S::Stop, S::Resuming]),
        ] {
            assert_eq!(from.path(to, true).as_deref(), Ok(path), "{from:?} to {to:?}");
        }
    }

    #[test]
    fn there_is_no_way_out_of_an_error_or_back_to_pre_copy() {
        for state in S::ALL {
            assert!(S::Error.path(state, true).is_err());
            assert!(state.path(S::Error, true).is_err());
            assert!(state.path(S::PreCopy, false).is_err());
            assert_eq!(S::from_number(state as u32), Some(state));
        }
        assert!(S::StopCopy.path(S::PreCopy, true).is_err());
        assert_eq!(S::from_number(5), None);
    }
}
