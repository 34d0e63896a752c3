//! Loads from the disk into a buffer, and stores from a buffer to the disk.

use longshore_domain::{Direction, Error as DomainError};
use longshore_heap::Buffer;

use crate::command::Opcode;
use crate::controller::{Controller, Namespace};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::stream::{DiskRange, transfer};

/// Reads `ranges` into `buffer`, which is mapped once, and returns the buffer when the device cannot access
/// it any more. Bytes outside the ranges do not change. `progress` receives the number of bytes read so
/// far.
///
/// # Errors
/// Returns the errors of [`transfer`], of mapping, and of [`Controller::queue`]. The buffer is dropped
/// then.
pub fn load<H: Hardware>(
    controller: &Controller<'_, H>,
    namespace: &Namespace,
    depth: u16,
    ranges: &[DiskRange],
    buffer: Buffer,
    progress: impl FnMut(u64),
) -> Result<Buffer, Error> {
    let place = (controller, namespace, depth);
    through(place, Opcode::Read, ranges, buffer, progress)
}

/// Writes `ranges` from `buffer`, and then flushes the volatile write cache, if the controller has one.
///
/// # Errors
/// Returns the errors of [`load`]. Any of the blocks may have been written then.
pub fn store<H: Hardware>(
    controller: &Controller<'_, H>,
    namespace: &Namespace,
    depth: u16,
    ranges: &[DiskRange],
    buffer: Buffer,
    progress: impl FnMut(u64),
) -> Result<Buffer, Error> {
    let place = (controller, namespace, depth);
    let buffer = through(place, Opcode::Write, ranges, buffer, progress)?;
    if controller.identify().has_write_cache {
        let mut queue = controller.queue(1)?;
        queue.submit_flush(namespace, ())?;
        queue.wait()?.result?;
    }
    Ok(buffer)
}

fn through<H: Hardware>(
    (controller, namespace, depth): (&Controller<'_, H>, &Namespace, u16),
    opcode: Opcode,
    ranges: &[DiskRange],
    buffer: Buffer,
    progress: impl FnMut(u64),
) -> Result<Buffer, Error> {
    let direction = match opcode {
        Opcode::Read => Direction::FromDevice,
        Opcode::Write => Direction::ToDevice,
    };
    let mapping = controller.domain().map(buffer, direction).map_err(DomainError::from)?;
    let mut queue = controller.queue(depth)?;
    let moved = transfer(&mut queue, opcode, namespace, ranges, &mapping, progress);
    // The buffer is unmapped only after the controller has none of the commands.
    queue.close()?.for_each(drop);
    moved?;
    Ok(mapping.unmap().map_err(DomainError::from)?)
}
