//! Counts events, and prints them if requested.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use longshore::access::Fault;
use longshore::mem::Iova;
use longshore::vhost_user::Event;

use crate::status::Status;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident)*) => {
        #[derive(Debug, Default)]
        struct Inner {
            is_printed: AtomicBool,
            is_logging: AtomicBool,
            $($name: AtomicU64,)*
        }

        /// A snapshot of the counts.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Snapshot {
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// Returns a snapshot of the counts.
            pub fn snapshot(&self) -> Snapshot {
                Snapshot { $($name: self.0.$name.load(Ordering::Acquire),)* }
            }
        }

        /// Writes each count as `name=number`, separated by spaces, for people and programs.
        impl fmt::Display for Snapshot {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let counts = [$((stringify!($name), self.$name),)*];
                for (at, (name, count)) in counts.into_iter().enumerate() {
                    write!(f, "{}{name}={count}", if at == 0 { "" } else { " " })?;
                }
                Ok(())
            }
        }
    };
}

counts! {
    /// Front-ends that connected.
    clients
    /// Messages that were received.
    messages
    /// Messages that were refused, including those that ended a connection.
    refused
    /// Memory tables that were set.
    tables
    /// Translations that the front-end sent.
    updates
    /// Translations that the front-end invalidated.
    invalidations
    /// Translations that were requested.
    misses
    /// Read requests that succeeded.
    reads
    /// The bytes of these read requests.
    read_bytes
    /// Write requests that succeeded.
    writes
    /// The bytes of these write requests.
    written_bytes
    /// Flush requests.
    flushes
    /// Requests for the serial number.
    ids
    /// Requests that ended with an error.
    failed
    /// Requests whose memory could not be accessed.
    data_faults
    /// Rings that broke.
    ring_errors
    /// The number of times that logging of writes began.
    logs
    /// Read requests that succeeded while writes were logged.
    logged_reads
    /// The maximum size of the page tables after a message, in bytes.
    page_table_bytes_max
}

/// The counts of events. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Counts(Arc<Inner>);

impl Counts {
    /// Prints a line for each event from now on, except for requests.
    pub fn print(&self) {
        self.0.is_printed.store(true, Ordering::Relaxed);
    }

    pub(crate) fn event(&self, event: &Event<'_>) {
        let counts = &self.0;
        match event {
            Event::Connected => self.count(&counts.clients, format_args!("front-end connected")),
            Event::Message(request) => self.count(&counts.messages, format_args!("{request:x?}")),
            Event::Refused(reason) => {
                self.count(&counts.refused, format_args!("refused: {reason}"));
            }
            Event::TableSet => self.add(&counts.tables, 1),
            Event::TableBytes(bytes) => {
                counts.page_table_bytes_max.fetch_max(*bytes, Ordering::Release);
            }
            Event::IotlbUpdated => self.add(&counts.updates, 1),
            Event::IotlbInvalidated => self.add(&counts.invalidations, 1),
            Event::Logging(is_on) => self.logging(*is_on),
            Event::QueueBroken { index, reason } => self.ring_error(*index, *reason),
            _ => {}
        }
    }

    pub(crate) fn miss(&self, iova: Iova, is_write: bool) {
        let what = if is_write { "write" } else { "read" };
        self.count(&self.0.misses, format_args!("miss at {iova:#x} to {what}"));
    }

    pub(crate) fn read(&self, len_bytes: u64) {
        self.add(&self.0.reads, 1);
        self.add(&self.0.read_bytes, len_bytes);
        self.add(&self.0.logged_reads, self.0.is_logging.load(Ordering::Relaxed).into());
    }

    pub(crate) fn write(&self, len_bytes: u64) {
        self.add(&self.0.writes, 1);
        self.add(&self.0.written_bytes, len_bytes);
    }

    pub(crate) fn flush(&self) {
        self.add(&self.0.flushes, 1);
    }

    pub(crate) fn get_id(&self) {
        self.add(&self.0.ids, 1);
    }

    pub(crate) fn failed(&self, status: Status) {
        self.count(&self.0.failed, format_args!("a request failed: {status:?}"));
    }

    pub(crate) fn data_fault(&self, fault: &Fault) {
        self.count(&self.0.data_faults, format_args!("memory of a request: {fault}"));
    }

    pub(crate) fn ring_error(&self, index: usize, error: &dyn fmt::Display) {
        self.count(&self.0.ring_errors, format_args!("ring {index} is broken: {error}"));
    }

    /// Records that the front-end turned logging of writes on or off.
    fn logging(&self, is_on: bool) {
        if is_on && !self.0.is_logging.swap(is_on, Ordering::Relaxed) {
            self.count(&self.0.logs, format_args!("writes are logged"));
        }
        self.0.is_logging.store(is_on, Ordering::Relaxed);
    }

    fn add(&self, count: &AtomicU64, more: u64) {
        count.fetch_add(more, Ordering::AcqRel);
    }

    fn count(&self, count: &AtomicU64, what: fmt::Arguments<'_>) {
        self.add(count, 1);
        if self.0.is_printed.load(Ordering::Relaxed) {
            println!("{what}");
        }
    }
}
