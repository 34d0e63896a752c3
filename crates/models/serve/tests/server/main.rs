//! The server and its clients in one process.

mod clients;
mod closing;
mod fuse;
mod hostile;
mod killed;
mod lying;
mod names;
mod one_number;
mod others;
mod remote;
mod rig;
mod sweeping;
mod users;
