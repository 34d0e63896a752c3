//! Serving untrusted clients: limits on what they make this process map, and the socket that they connect
//! to. `longshore-vfio-user` and `longshore-vhost-user` are built on it.

mod listener;
mod mapping;
mod quota_exceeded;
mod served;
mod stop;

pub use listener::Listener;
pub use mapping::{MappingAccounts, MappingPermit, MappingQuota};
pub use quota_exceeded::QuotaExceeded;
pub use stop::Stop;
