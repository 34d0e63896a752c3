//! Transfers through a backend of this process.

mod align_mask;
mod bounce;
mod empty;
mod large_pages;
mod outside;
mod readable;
mod sg;
mod summed;
mod trusted;
mod watch;
