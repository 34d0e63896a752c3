//! The server and its clients in one process.

mod clients;
mod hostile;
mod lying;
mod rig;
