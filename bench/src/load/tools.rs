//! Programs that read a disk and nothing else, and the command of this project.

mod command;
mod dd;
mod fio;

pub(crate) use command::{LoadCommand, NAME as COMMAND, longshore};
pub(crate) use dd::Dd;
pub(crate) use fio::Fio;
