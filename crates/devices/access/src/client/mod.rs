//! Serving untrusted clients: limits on the memory that this process maps for them, and the socket that
//! they connect to. `longshore-vfio-user` and `longshore-vhost-user` use this module.

mod listener;
mod mapping;
mod quota_exceeded;
mod served;
mod stop;

pub use listener::Listener;
pub use mapping::{MappingAccounts, MappingPermit, MappingQuota};
pub use quota_exceeded::QuotaExceeded;
pub use stop::Stop;
