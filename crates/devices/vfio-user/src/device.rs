//! The trait that a device implements to be served.

use std::io;

use crate::Errno;
use crate::description::DeviceDescription;
use crate::link::Link;
use crate::mappable::MappableFile;
use crate::migration::Migration;

/// A device, as its client sees it. The server calls it from the thread that serves the client.
///
/// A call must not wait for the client's memory where that is read by messages ([`Link::read`]):
/// a client may answer nothing before its own command is answered. Another thread may.
pub trait Device {
    /// Returns what the device is. It is asked once, when the server is made, and is the same for all clients.
    fn description(&self) -> DeviceDescription;

    /// Returns the memory that the next client can map in the place of a region, or `None` for a region that
    /// is read and written by messages only. It is asked for each region and each client, before
    /// [`connected`](Self::connected) and before the client is answered.
    ///
    /// A client keeps the file and its mappings after it has disconnected. So return a new file each time
    /// ([`MappableFile::new`]), and write the part of the device's state into it that the client may see. A
    /// file that a client was given before is refused. From then on the device uses the new file, also for
    /// messages that read and write the region.
    ///
    /// The client gets a descriptor for reading only if the region is not
    /// [`writable`](crate::RegionDescription::writable). A client with the user id of this process, or of root,
    /// can open the file for writing nevertheless, by its name in `/proc`.
    ///
    /// # Errors
    /// If there is no memory. The client is not served, and [`Server::serve`](crate::Server::serve) fails
    /// with this error.
    fn mappable(&mut self, region: u32) -> io::Result<Option<MappableFile>> {
        let _ = region;
        Ok(None)
    }

    /// Reads `into.len()` bytes at `offset` of a region. The server has checked that they lie in a
    /// region that may be read, and that they are no more than was settled.
    ///
    /// # Errors
    /// What the client is told.
    fn region_read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes to a region, with the same checks.
    ///
    /// # Errors
    /// What the client is told.
    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), Errno>;

    /// Brings the device into the state it begins with, in which it runs
    /// ([`MigrationState::Running`](crate::MigrationState::Running)).
    fn reset(&mut self);

    /// A client has come and settled what both ends take. The link raises interrupts and reaches
    /// memory that has no descriptor, from any thread, until the client is gone.
    fn connected(&mut self, link: &Link) {
        let _ = link;
    }

    /// The client is gone; its memory is taken back after this returns. The device's state stays for the
    /// next client, except that a device which was being moved is [reset](Self::reset) after this.
    fn disconnected(&mut self) {}

    /// How the device's state is moved to another process; `None` where it cannot be.
    fn migration(&mut self) -> Option<&mut dyn Migration> {
        None
    }
}
