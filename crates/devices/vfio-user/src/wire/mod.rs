//! The format of messages on the socket.
//!
//! ```text
//!   0      2      4         8        12        16
//!   ├ id ──┼ cmd ─┼ length ─┼ flags ─┼ errno ──┼ payload, by command ─────┤
//!                  of all     0..3: 0 command, 1 reply
//!                  16 + …     4: no reply is wanted   5: the reply is an error
//! ```
//!
//! Numbers are in the machine's byte order, because both ends run on one machine. The layouts are those
//! of the vfio-user specification in QEMU's manual ("vfio-user Protocol Specification"), which takes
//! them from `<linux/vfio.h>`. Numbers in a payload are claims: they are not used here for lookups, sums
//! or allocations.

mod fields;
pub(crate) mod header;
pub(crate) mod reply;
mod request;

pub use header::{Command, HEADER_LEN_BYTES, MessageKind};
pub use reply::{
    DeviceInfo, DmaAccess, IrqInfo, MigrationData, REGION_INFO_LEN_BYTES, RegionAccess, RegionInfo,
    RegionWriteMulti,
};
pub use request::{
    DmaMap, DmaUnmap, Feature, IrqData, Request, SetIrqs, SmallWrite, SmallWrites, feature,
};

pub(super) use fields::{Builder, Fields};
// Public at the root of the crate, with and without the feature `client`.
pub(crate) use {header::MessageHeader, reply::MappableArea};
