//! The trait that a device implements to be served.

use std::io;

use crate::Errno;
use crate::description::DeviceDescription;
use crate::link::Link;
use crate::mappable::MappableFile;
use crate::migration::Migration;

/// A device that a client drives. The server calls it on the thread that serves the client.
///
/// A call must not wait for memory of the client that is accessed by messages ([`Link::read`]): the
/// client may answer them only after its own command is answered. Another thread may wait.
pub trait Device {
    /// Returns the regions and interrupts. The server calls this once, when it is made, and uses the
    /// result for all clients.
    fn description(&self) -> DeviceDescription;

    /// Returns the memory that the next client can map in the place of a region, or `None` for a region
    /// that is read and written by messages only. The server calls this for each region and each client,
    /// before [`connected`](Self::connected) and before it answers the client.
    ///
    /// A client keeps the file and its mappings after it has disconnected. So return a new file each time
    /// ([`MappableFile::new`]), and write the part of the device's state into it that the client may see. A
    /// file that a client was given before is refused. From then on the device uses a clone of the new file,
    /// also for messages that read and write the region, by [`MappableFile::read`] and
    /// [`MappableFile::write`]. It must not call `read(2)`, `write(2)`, `fallocate(2)`, `ftruncate(2)` or
    /// `fchmod(2)` on the file, nor add seals to it (`F_ADD_SEALS`): they can wait for ever
    /// ([`MappableFile`] says why).
    ///
    /// If the region is not [`writable`](crate::RegionDescription::writable), the client gets a
    /// read-only descriptor. A client with the user id of this process, or root, can still open the file
    /// for writing, by its name in `/proc`.
    ///
    /// # Errors
    /// If memory cannot be allocated. The client is not served, and
    /// [`Server::serve`](crate::Server::serve) fails with this error.
    fn mappable(&mut self, region: u32) -> io::Result<Option<MappableFile>> {
        let _ = region;
        Ok(None)
    }

    /// Reads `into.len()` bytes at `offset` of a region. The server has checked that they lie in a
    /// readable region, and that they are no more than the negotiated maximum.
    ///
    /// # Errors
    /// The error that is sent to the client.
    fn region_read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno>;

    /// Writes to a region, with the same checks.
    ///
    /// # Errors
    /// The error that is sent to the client.
    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), Errno>;

    /// Brings the device into its initial state, in which it runs
    /// ([`MigrationState::Running`](crate::MigrationState::Running)).
    fn reset(&mut self);

    /// Called when a client has connected and negotiated its capabilities. Until the client disconnects,
    /// `link` raises interrupts and accesses memory that has no descriptor, from any thread.
    fn connected(&mut self, link: &Link) {
        let _ = link;
    }

    /// Called when the client has disconnected; its memory is unmapped after this returns. The device's
    /// state stays for the next client, but a device whose migration had begun is [reset](Self::reset)
    /// after this.
    fn disconnected(&mut self) {}

    /// Returns the device's part in migration, or `None` if its state cannot be moved to another
    /// process.
    fn migration(&mut self) -> Option<&mut dyn Migration> {
        None
    }
}
