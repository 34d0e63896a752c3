//! Serving untrusted clients: limits on what they make this process map, and the socket that they connect
//! to. `longshore-vfio-user` and `longshore-vhost-user` are built on it.

mod listener;
mod mapping;
mod stop;

pub use longshore_sys::account::{Limits, OverLimit, Whose};
pub use longshore_sys::closing::User;

pub use listener::Listener;
pub use mapping::{MappingAccounts, MappingPermit, MappingQuota};
pub use stop::Stop;
