// The pages are files in `docs/`, which can also be read there. A link in a page is a word in brackets.
// It has two definitions: one at the end of the file, for readers of the file, and one here before the
// page, for rustdoc. Rustdoc uses the first definition.
#![doc = "[loading models]: loading_models
[loading from servers]: loading_from_servers
[sharing models]: sharing_models
[serving models on a node]: serving_models_on_a_node
[running a server for a team]: running_a_server_for_a_team
[engines]: engines
[writing a driver]: writing_a_driver
[writing a device model]: writing_a_device_model
[page tables]: page_tables
[moving bytes]: moving_bytes
[system calls]: system_calls
[benchmarks]: benchmarks
"]
#![doc = include_str!("../docs/README.md")]

macro_rules! page {
    ($name:ident, $file:literal, $items:literal) => {
        #[doc = "[the manual]: crate::manual
[loading models]: crate::manual::loading_models
[loading from servers]: crate::manual::loading_from_servers
[sharing models]: crate::manual::sharing_models
[serving models on a node]: crate::manual::serving_models_on_a_node
[running a server for a team]: crate::manual::running_a_server_for_a_team
[engines]: crate::manual::engines
[writing a driver]: crate::manual::writing_a_driver
[writing a device model]: crate::manual::writing_a_device_model
[page tables]: crate::manual::page_tables
[moving bytes]: crate::manual::moving_bytes
[system calls]: crate::manual::system_calls
[benchmarks]: crate::manual::benchmarks
"]
        #[doc = include_str!(concat!("../docs/", $file))]
        #[doc = concat!("\n## In this reference\n\n", $items)]
        pub mod $name {}
    };
}

page!(
    loading_models,
    "loading-models.md",
    "[`Loader`](crate::Loader), [`Plan`](crate::Plan), [`load::open`](crate::load::open()), \
     [`Heap`](crate::Heap), [`ReadMode`](crate::ReadMode), [`Buffer`](crate::Buffer), \
     [`SharedBuffer`](crate::SharedBuffer)"
);
page!(
    loading_from_servers,
    "loading-from-servers.md",
    "[`Loader::connections`](crate::Loader::connections), [`load::Object`](crate::load::Object), \
     [`load::RemoteModel`](crate::load::RemoteModel); with the feature `remote`, the module `remote`"
);
page!(
    sharing_models,
    "sharing-models.md",
    "[`Server`](crate::serve::Server), [`Options`](crate::serve::Options), \
     [`Client`](crate::serve::Client), [`Attachment`](crate::serve::Attachment)"
);
page!(engines, "engines.md", "[`Loader`](crate::Loader), [`Client`](crate::serve::Client)");
page!(
    serving_models_on_a_node,
    "serving-models-on-a-node.md",
    "[`Publisher`](crate::load::Publisher), [`Published`](crate::load::Published), \
     [`Heap::Tmpfs`](crate::Heap::Tmpfs), [`Buffer::link`](crate::Buffer::link)"
);
page!(
    running_a_server_for_a_team,
    "running-a-server-for-a-team.md",
    "[`Server`](crate::serve::Server), [`PublishManager`](crate::serve::PublishManager)"
);
page!(
    writing_a_driver,
    "writing-a-driver.md",
    "[`Domain`](crate::domain::Domain), [`Builder`](crate::domain::Builder), \
     [`Mapping`](crate::domain::Mapping), [`SgMapping`](crate::domain::SgMapping), \
     [`Coherent`](crate::domain::Coherent), [`DmaPool`](crate::domain::DmaPool), \
     [`Batch`](crate::domain::Batch), \
     [`Local`](crate::domain::Local), [`Backend`](crate::domain::backend::Backend)"
);
page!(
    writing_a_device_model,
    "writing-a-device-model.md",
    "[`Space`](crate::access::Space), [`Session`](crate::access::Session), \
     [`Region`](crate::access::Region), [`Lease`](crate::access::Lease), \
     [`Fault`](crate::access::Fault), [`dirty`](crate::access::dirty)"
);
page!(
    page_tables,
    "page-tables.md",
    "[`PageTable`](crate::pagetable::PageTable), [`format`](crate::pagetable::format), \
     [`TlbGather`](crate::pagetable::TlbGather), [`Walker`](crate::pagetable::Walker), \
     [`table_memory`](crate::pagetable::table_memory), [`cache_sync`](crate::pagetable::cache_sync)"
);
page!(
    moving_bytes,
    "moving-bytes.md",
    "[`Cursor`](crate::iov::Cursor), [`SegmentSource`](crate::iov::SegmentSource), \
     [`kinds`](crate::iov::kinds), [`FaultGuard`](crate::mem::fault::FaultGuard), [`fault`](crate::mem::fault)"
);
page!(
    system_calls,
    "system-calls.md",
    "[`Space`](crate::access::Space), [`Domain`](crate::domain::Domain), \
     [`FaultGuard`](crate::mem::fault::FaultGuard)"
);
page!(
    benchmarks,
    "benchmarks.md",
    "[`Report`](crate::load::Report), which has the figures of one load"
);
