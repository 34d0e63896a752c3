//! From the disk straight into a buffer, and from a buffer to the disk.

use longshore_domain::{Direction, Error as DomainError};
use longshore_heap::Buffer;

use crate::command::Verb;
use crate::controller::{Controller, Namespace};
use crate::error::Error;
use crate::hardware::Hardware;
use crate::stream::{Stretch, transfer};

/// Reads `stretches` into `buffer`, which is mapped once, for all of it, and given back when the device
/// cannot reach it any more. What no stretch has stays as it is. `progress` is told how many bytes
/// are there.
///
/// # Errors
/// [`Error`]; the buffer is gone then.
pub fn load<H: Hardware>(
    controller: &Controller<'_, H>,
    namespace: &Namespace,
    depth: u16,
    stretches: &[Stretch],
    buffer: Buffer,
    progress: impl FnMut(u64),
) -> Result<Buffer, Error> {
    let place = (controller, namespace, depth);
    through(place, Verb::Read, stretches, buffer, progress)
}

/// Writes `stretches` from `buffer`, and has the disk keep them: a Flush ends it, where there is a
/// volatile cache.
///
/// # Errors
/// As [`load`]. Which blocks were written is unknown then.
pub fn store<H: Hardware>(
    controller: &Controller<'_, H>,
    namespace: &Namespace,
    depth: u16,
    stretches: &[Stretch],
    buffer: Buffer,
    progress: impl FnMut(u64),
) -> Result<Buffer, Error> {
    let place = (controller, namespace, depth);
    let buffer = through(place, Verb::Write, stretches, buffer, progress)?;
    if controller.data().has_write_cache {
        let mut queue = controller.queue(1)?;
        queue.submit_flush(namespace, ())?;
        queue.wait()?.result?;
    }
    Ok(buffer)
}

fn through<H: Hardware>(
    (controller, namespace, depth): (&Controller<'_, H>, &Namespace, u16),
    verb: Verb,
    stretches: &[Stretch],
    buffer: Buffer,
    progress: impl FnMut(u64),
) -> Result<Buffer, Error> {
    let direction = match verb {
        Verb::Read => Direction::FromDevice,
        Verb::Write => Direction::ToDevice,
    };
    let mapping = controller.domain().map(buffer, direction).map_err(DomainError::from)?;
    let mut queue = controller.queue(depth)?;
    let moved = transfer(&mut queue, verb, namespace, stretches, &mapping, progress);
    // The mapping is taken back only once the controller has none of its commands.
    queue.close()?.for_each(drop);
    moved?;
    Ok(mapping.unmap().map_err(DomainError::from)?)
}
