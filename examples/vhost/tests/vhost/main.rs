//! The disk, driven by a front-end of a few lines: what it does, and what no front-end can make it do.

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
