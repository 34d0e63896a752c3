//! The vfio-user server against its own client, in one process.

#![cfg(not(loom))]

mod closing;
mod commands;
mod lingering;
mod link;
mod mappable;
mod next_client;
mod rig;
mod space;
mod wire;
