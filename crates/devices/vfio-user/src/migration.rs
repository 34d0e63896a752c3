//! Migration: moving a device's state to another process. The states, and the transitions between them.

use crate::Errno;

/// A device whose state can be moved to another process.
///
/// For each client, a device begins in [`MigrationState::Running`]. If a client disconnects while the
/// device is in another state, the device is reset ([`Device::reset`](crate::Device::reset)).
pub trait Migration {
    /// Returns `true` if state can be read while the device still runs ([`MigrationState::PreCopy`]).
    fn has_pre_copy(&self) -> bool {
        false
    }

    /// Moves the device from one state to a neighbour of it ([`MigrationState::is_neighbour`]).
    ///
    /// # Errors
    /// The error that is sent to the client. The device stays in state `from`, or is in
    /// [`MigrationState::Error`] if [`MigrationError::is_broken`] is set.
    fn set_state(&mut self, from: MigrationState, to: MigrationState)
    -> Result<(), MigrationError>;

    /// Reads the next bytes of the state. Fewer bytes than `into` has room for mean the end of the
    /// state.
    ///
    /// # Errors
    /// The error that is sent to the client.
    fn read_state(&mut self, into: &mut [u8]) -> Result<usize, Errno>;

    /// Takes the next bytes of a state that was read from another device.
    ///
    /// # Errors
    /// The error that is sent to the client.
    fn write_state(&mut self, from: &[u8]) -> Result<(), Errno>;
}

/// The error of a device that could not enter another state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MigrationError {
    /// The error that the client is sent.
    pub errno: Errno,
    /// `true` if the device cannot go on from its state without a reset.
    pub is_broken: bool,
}

impl From<Errno> for MigrationError {
    fn from(errno: Errno) -> Self {
        Self { errno, is_broken: false }
    }
}

/// The state of a device in a migration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
#[non_exhaustive]
pub enum MigrationState {
    /// The device failed and can only be reset. The server resets it when the client has disconnected.
    Error = 0,
    /// The device is stopped.
    Stop = 1,
    /// The device runs.
    #[default]
    Running = 2,
    /// The device is stopped, and its state is read.
    StopCopy = 3,
    /// The device is stopped, and is given a state.
    Resuming = 4,
    /// The device runs, and its state is read.
    PreCopy = 6,
}

impl MigrationState {
    const ALL: [Self; 6] =
        [Self::Error, Self::Stop, Self::Running, Self::StopCopy, Self::Resuming, Self::PreCopy];

    pub(crate) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|state| *state as u32 == number)
    }

    /// Returns `true` if the state can be read in it.
    pub fn is_saving(self) -> bool {
        matches!(self, Self::StopCopy | Self::PreCopy)
    }

    /// Returns `true` if a device goes from here to `to` without passing another state.
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

    /// Returns the shortest sequence of states that leads to `to`, which is the last of them. State is
    /// not read in any state between.
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
    fn paths_are_short_and_pass_no_state_that_saves() {
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
    fn no_path_leads_out_of_an_error_or_back_to_pre_copy() {
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
