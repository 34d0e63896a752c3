//! What everything in a domain needs.

use crate::backend::{Backend, Limits};
use crate::iova::{IovaAllocator, Placement};

/// A backend and its addresses.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) backend: Box<dyn Backend>,
    pub(crate) limits: Limits,
    pub(crate) iovas: IovaAllocator,
    /// What every mapping asks for.
    pub(crate) placement: Placement,
}
