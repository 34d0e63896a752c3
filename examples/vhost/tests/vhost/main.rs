//! Tests of the disk with a small front-end, also with a hostile one.

mod channel;
mod closing;
mod corpus;
mod frontend;
mod hostile;
mod invalidations;
mod lingering;
mod log;
mod program;
mod requests;
