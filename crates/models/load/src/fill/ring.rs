//! Direct reads by io_uring: one thread keeps the queue of the disk full.
#![expect(unsafe_code, reason = "lends ranges of the buffer to reads in flight")]

use std::io;
use std::time::Duration;

use longshore_mem::FileOffset;
use longshore_sys::uring::{self, Completion, Ring};

use super::ahead::{Fed, Feed};
use super::target::{InFlight, Target};
use crate::error::Error;

/// The longest wait for the disk before the thread checks whether the fill is stopped.
const PATIENCE: Duration = Duration::from_millis(50);

/// Reads every piece of `feed`, with up to `depth` reads in flight.
pub(crate) fn run(feed: &dyn Feed, target: &Target<'_>, depth: u32) {
    let ran = uring::with_ring(depth, |ring| drive(ring, feed, target, depth));
    if let Err(source) = ran.and_then(|driven| driven) {
        target.tracker.fail(Error::Process { operation: "reading by io_uring", source });
    }
}

fn drive<'mem>(
    ring: &mut Ring<'mem>,
    feed: &dyn Feed,
    target: &Target<'mem>,
    depth: u32,
) -> io::Result<()> {
    // Each piece in flight has a slot, whose index is its token.
    let mut slots: Vec<Option<InFlight>> = (0..depth).map(|_| None).collect();
    let mut ended = false;
    let mut again: Vec<InFlight> = Vec::new();
    let mut finished: Vec<Completion> = Vec::new();
    loop {
        if target.tracker.should_stop() {
            // Leaving `with_ring` cancels the reads in flight, and waits until they have ended.
            return Ok(());
        }
        while ring.room() > 0 {
            let flight = match again.pop() {
                Some(flight) => flight,
                None => match feed.next(ring.in_flight() == 0) {
                    Fed::Piece(piece) => InFlight { piece, done_bytes: 0 },
                    Fed::NotYet => break,
                    Fed::End => {
                        ended = true;
                        break;
                    }
                },
            };
            push(ring, target, &mut slots, flight)?;
        }
        if ring.in_flight() == 0 {
            if ended {
                return Ok(());
            }
            continue;
        }
        ring.wait(PATIENCE, |completion| finished.push(completion))?;
        for completion in finished.drain(..) {
            let slot = usize::try_from(completion.token).ok().and_then(|at| slots.get_mut(at));
            let Some(flight) = slot.and_then(Option::take) else { continue };
            match target.book(flight, completion.result) {
                Some(rest) => again.push(rest),
                None => feed.used(&flight.piece),
            }
        }
    }
}

fn push<'mem>(
    ring: &mut Ring<'mem>,
    target: &Target<'mem>,
    slots: &mut [Option<InFlight>],
    flight: InFlight,
) -> io::Result<()> {
    let Some(token) = slots.iter().position(Option::is_none) else {
        return Err(io::ErrorKind::WouldBlock.into());
    };
    let Some((file, _)) = target.file(&flight.piece).source().direct() else {
        return Err(io::ErrorKind::Unsupported.into());
    };
    // SAFETY: a feed returns each piece once, and the previous read of this one, if any, has
    // ended.
    let Some(window) = (unsafe { target.window(&flight) }) else {
        return Ok(());
    };
    let offset = FileOffset::new(flight.piece.file_offset + flight.done_bytes);
    ring.push_read(file, window, offset, token as u64)?;
    slots[token] = Some(flight);
    Ok(())
}
