//! The disk, driven by a front-end of a few lines: what it does, and what no front-end can make it do.

mod corpus;
mod frontend;
mod hostile;
mod invalidations;
mod log;
mod program;
mod requests;
