//! The serial line for the guest's events.

use std::{
    fs::{File, OpenOptions},
    io::Write,
};

use longshore_vm_tests::protocol::{self, Event};
use rustix::termios::{OptionalActions, tcdrain, tcgetattr, tcsetattr};

use super::{Error, Result};

/// The second serial port. Kernel messages go to the first one, so none can land inside a report.
const PORT: &str = "/dev/ttyS1";

/// Numbers events and writes them.
#[derive(Debug)]
pub(super) struct Reports {
    port: File,
    next: u64,
}

impl Reports {
    /// Opens the port.
    pub(super) fn open() -> Result<Self> {
        let port = OpenOptions::new().write(true).open(PORT);
        let port = port.map_err(Error::system("opening", PORT))?;
        // In its default mode, a terminal adds carriage returns and interprets its input.
        let mut settings = tcgetattr(&port).map_err(Error::system("asking", PORT))?;
        settings.make_raw();
        tcsetattr(&port, OptionalActions::Now, &settings)
            .map_err(Error::system("setting", PORT))?;
        Ok(Self { port, next: 0 })
    }

    /// Writes one event.
    pub(super) fn send(&mut self, event: &Event) -> Result<()> {
        let line = protocol::encode(self.next, event);
        self.next += 1;
        self.port.write_all(line.as_bytes()).map_err(Error::system("writing", PORT))
    }

    /// Waits until everything is sent; powering off earlier would truncate it.
    pub(super) fn drain(&self) -> Result<()> {
        tcdrain(&self.port).map_err(Error::system("draining", PORT))
    }
}
