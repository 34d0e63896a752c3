//! Typical uses of each crate, in three phases.

mod devices;
mod memory;
pub(crate) mod models;
mod servers;
mod vhost;

use crate::page::BASE;
use crate::run::{Run, Steps};

/// A use of a crate. It calls [`Run::begin`] at the beginning of each phase. Calls before the first
/// phase are not filtered.
pub(crate) struct Workload {
    /// The heading of its list.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&mut Run) -> !,
}

pub(crate) const ALL: &[Workload] = &[
    Workload { name: BASE, run: memory::base },
    Workload { name: "mem", run: memory::mem },
    Workload { name: "iov", run: memory::iov },
    Workload { name: "sync", run: memory::sync },
    Workload { name: "heap", run: memory::heap },
    Workload { name: "formats", run: models::formats },
    Workload { name: "load", run: models::load },
    Workload { name: "load, publishing", run: models::publish },
    Workload { name: "serve, a server", run: models::server },
    Workload { name: "serve, a client", run: models::client },
    Workload { name: "pagetable", run: devices::pagetable },
    Workload { name: "access", run: devices::access },
    Workload { name: "access, memory of another process", run: devices::process },
    Workload { name: "domain", run: devices::domain },
    Workload { name: "vfio-user", run: servers::vfio_user },
    Workload { name: "vhost-user", run: vhost::backend },
];

/// Returns the workload of this name.
pub(crate) fn find(name: &str) -> Option<&'static Workload> {
    ALL.iter().find(|workload| workload.name == name)
}

/// Returns the function that a workload's peer runs.
pub(crate) fn peer(name: &str) -> fn(Steps) {
    match name {
        "a client of serve" => models::client_of_server,
        "a server of serve" => models::server_of_client,
        "a process with memory" => devices::process_with_memory,
        "a vfio-user client" => servers::vfio_user_client,
        "a vhost-user front-end" => vhost::frontend,
        _ => panic!("no peer is called {name}"),
    }
}
