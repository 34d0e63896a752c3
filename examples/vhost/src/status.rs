//! The last byte of a request, which the device writes.
//!
//! Source: VIRTIO 1.2, 5.2.6.

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}
