//! Transfers: memory that a device can reach for some time.
//!
//! A [`Mapping`](mapping::Mapping) owns memory in one [place](place::Place): its own granules, a bounce
//! buffer, or its own granules with bounced ends ([`Unaligned`](unaligned::Unaligned)).
//! [Scattered](sg::SgMapping) memory is one transfer, too. The other modules add ways to begin and to
//! end a mapping.

pub(crate) mod batch;
mod borrowed;
mod bounce;
pub(crate) mod coherent;
pub(crate) mod mapping;
mod pieces;
mod place;
mod scoped;
pub(crate) mod sg;
pub(crate) mod summed;
mod synced;
mod unaligned;
mod way;
