//! Programs that read a disk and nothing else.

mod dd;
mod fio;

pub(crate) use dd::Dd;
pub(crate) use fio::Fio;
