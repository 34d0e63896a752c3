//! The status byte of a request, which the device writes last.
//!
//! Source: VIRTIO 1.2, 5.2.6.

/// The status of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok = 0,
    IoError = 1,
    Unsupported = 2,
}
