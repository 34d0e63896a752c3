//! What can go wrong.

use std::io;
use std::time::Duration;

use crate::command::{CommandError, What};
use crate::data::DataError;
use crate::registers::ControllerStatus;

/// Why something was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Memory for the device, or its mapping.
    #[error(transparent)]
    Domain(#[from] longshore_domain::Error),
    /// The controller cannot do what this driver needs.
    #[error("the controller cannot be used: {what}")]
    Unsupported {
        /// What it has, or has not.
        what: String,
    },
    /// It did not become what it was to become in the time that it asks for.
    #[error("the controller did not {wanted} within {waited:?} (CSTS is {:#x})", status.0)]
    NotReady {
        /// What it was to do.
        wanted: &'static str,
        /// How long it had.
        waited: Duration,
        /// What it said last.
        status: ControllerStatus,
    },
    /// CSTS.CFS: it must be reset.
    #[error("the controller has met a fatal error (CSTS is {:#x}), and must be reset", status.0)]
    Fatal {
        /// What it said.
        status: ControllerStatus,
    },
    /// Registers read as ones.
    #[error("the controller does not answer on the bus any more")]
    Gone,
    /// The controller was stopped, by whomever.
    #[error("the controller was stopped; commands that were in flight will not end")]
    Stopped,
    /// The controller could not be stopped, and may still reach memory.
    #[error("the controller could not be stopped, so memory it was given is never freed: {0}")]
    Lost(#[source] Box<Error>),
    /// A command was refused, or failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A command did not end.
    #[error("{what} did not end within {waited:?}")]
    TimedOut {
        /// The one that has waited, or one of them.
        what: What,
        /// How long nothing ended.
        waited: Duration,
    },
    /// There is nothing to wait for.
    #[error("no command is in flight")]
    Idle,
    /// It says that a command ended which it did not have.
    #[error("the controller says that command {id} of queue {queue} ended, which it does not have")]
    Unasked {
        /// The queue.
        queue: u16,
        /// The command.
        id: u16,
    },
    /// Data that cannot be described to the controller.
    #[error(transparent)]
    Data(#[from] DataError),
    /// More than one command can transfer.
    #[error(
        "{len_bytes:#x} bytes are more than a command of this controller takes: {max_bytes:#x}"
    )]
    TooLong {
        /// How many were to be transferred.
        len_bytes: u64,
        /// The most.
        max_bytes: u64,
    },
    /// Not whole blocks.
    #[error("{bytes:#x} bytes are not whole blocks of {block_bytes}")]
    NotBlocks {
        /// A length, or a place.
        bytes: u64,
        /// What it must be a multiple of.
        block_bytes: u64,
    },
    /// The queue has as many commands in flight as it can.
    #[error("{depth} commands are in flight, and the queue is no deeper")]
    Full {
        /// Its depth.
        depth: u16,
    },
    /// There are no more queues, or none as deep.
    #[error("no queue of depth {depth}: {reason}")]
    NoQueue {
        /// What was asked for.
        depth: u16,
        /// Why not.
        reason: String,
    },
    /// There is no such namespace, or it cannot be used.
    #[error("namespace {id}: {reason}")]
    Namespace {
        /// Its number.
        id: u32,
        /// Why not.
        reason: String,
    },
    /// A range that the namespace does not have.
    #[error(
        "{len_bytes:#x} bytes at {offset:#x} are not in the namespace, which has {namespace_bytes:#x}"
    )]
    Beyond {
        /// Where it begins.
        offset: u64,
        /// How many bytes.
        len_bytes: u64,
        /// How many there are.
        namespace_bytes: u64,
    },
    /// A list of extents that cannot be right.
    #[error("the list of extents: {reason}")]
    Extents {
        /// What is wrong with it.
        reason: String,
    },
    /// Memory for what is read.
    #[error(transparent)]
    Memory(#[from] longshore_heap::Error),
    /// A file, or the kernel.
    #[error("{operation}: {source}")]
    Io {
        /// What was asked for.
        operation: String,
        /// What it said.
        #[source]
        source: io::Error,
    },
}

impl Error {
    pub(crate) fn io(operation: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation: operation.into(), source }
    }
}

/// A command that was not given to the controller, with what was to be kept until it ends.
#[derive(thiserror::Error)]
#[error("{error}")]
pub struct Refused<T> {
    /// Why.
    #[source]
    pub error: Error,
    /// What the caller had.
    pub payload: T,
}

impl<T> std::fmt::Debug for Refused<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T> From<Refused<T>> for Error {
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}
