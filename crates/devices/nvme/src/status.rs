//! The status of a completed command (NVM Express Base Specification 2.0, section 3.3.3.2.1; NVM Command Set
//! Specification 1.0, section 3.1.2).

use std::fmt;

/// The status field of a completion queue entry, without the phase tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// Returns `true` if the command succeeded.
    pub fn is_success(self) -> bool {
        self.0 & 0x7ff == 0
    }

    /// Returns the status code (SC), whose meaning depends on the type.
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// Returns the status code type (SCT): 0 generic, 1 command specific, 2 media and data integrity
    /// errors, 3 path related, 7 vendor specific.
    pub fn code_type(self) -> u8 {
        (self.0 >> 8) as u8 & 7
    }

    /// Returns the bit Do Not Retry (DNR): the same command would fail again.
    pub fn is_final(self) -> bool {
        self.0 & 1 << 14 != 0
    }

    /// Returns the name in the specifications.
    fn name(self) -> &'static str {
        match (self.code_type(), self.code()) {
            (0, 0x00) => "Successful Completion",
            (0, 0x01) => "Invalid Command Opcode",
            (0, 0x02) => "Invalid Field in Command",
            (0, 0x03) => "Command ID Conflict",
            (0, 0x04) => "Data Transfer Error",
            (0, 0x05) => "Commands Aborted due to Power Loss Notification",
            (0, 0x06) => "Internal Error",
            (0, 0x07) => "Command Abort Requested",
            (0, 0x08) => "Command Aborted due to SQ Deletion",
            (0, 0x0b) => "Invalid Namespace or Format",
            (0, 0x0c) => "Command Sequence Error",
            (0, 0x0d) => "Invalid SGL Segment Descriptor",
            (0, 0x0e) => "Invalid Number of SGL Descriptors",
            (0, 0x0f) => "Data SGL Length Invalid",
            (0, 0x11) => "SGL Descriptor Type Invalid",
            (0, 0x13) => "PRP Offset Invalid",
            (0, 0x16) => "SGL Offset Invalid",
            (0, 0x1e) => "SGL Data Block Granularity Invalid",
            (0, 0x20) => "Namespace is Write Protected",
            (0, 0x80) => "LBA Out of Range",
            (0, 0x81) => "Capacity Exceeded",
            (0, 0x82) => "Namespace Not Ready",
            (0, 0x84) => "Format In Progress",
            (1, 0x00) => "Completion Queue Invalid",
            (1, 0x01) => "Invalid Queue Identifier",
            (1, 0x02) => "Invalid Queue Size",
            (1, 0x08) => "Invalid Interrupt Vector",
            (1, 0x0c) => "Invalid Queue Deletion",
            (1, 0x82) => "Attempted Write to Read Only Range",
            (2, 0x80) => "Write Fault",
            (2, 0x81) => "Unrecovered Read Error",
            (2, 0x86) => "Access Denied",
            (2, 0x87) => "Deallocated or Unwritten Logical Block",
            (7, _) => "a vendor specific status",
            _ => "a status that is unknown to this driver",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (code_type, code) = (self.code_type(), self.code());
        write!(f, "{} (status code type {code_type:#x}, code {code:#04x}", self.name())?;
        f.write_str(if self.is_final() { ", do not retry)" } else { ")" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_decoded() {
        let status = Status(1 << 14 | 2 << 8 | 0x81);
        assert!(!status.is_success() && status.is_final());
        assert_eq!((status.code_type(), status.code()), (2, 0x81));
        assert_eq!(
            status.to_string(),
            "Unrecovered Read Error (status code type 0x2, code 0x81, do not retry)"
        );
        // The bit More (M) alone is not an error.
        assert!(Status(1 << 13).is_success());
    }

    #[test]
    fn every_status_has_a_text() {
        for raw in (0..0x800).step_by(if cfg!(miri) { 41 } else { 1 }) {
            let text = Status(raw).to_string();
            assert!(text.contains(&format!("code {:#04x}", raw & 0xff)), "{text}");
        }
        assert!(Status(0x80).to_string().starts_with("LBA Out of Range"));
        assert!(Status(0x7c0).to_string().contains("vendor"));
    }
}
