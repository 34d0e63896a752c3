//! The negotiation at the start of a connection: the version and the limits of each end.

use serde_json::{Map, Value, json};

use crate::Errno;

/// The highest version that is supported. A client may propose a lower minor version.
pub(crate) const VERSION_MAJOR: u16 = 0;
/// See [`VERSION_MAJOR`].
pub(crate) const VERSION_MINOR: u16 = 1;

/// The longest list of capabilities that is parsed, in bytes.
const CAPABILITIES_LEN_BYTES_MAX: usize = 64 << 10;

/// The capabilities of one end of a connection: the limits of what it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The most descriptors in one message.
    pub message_fds_max: u32,
    /// The most bytes of data in one message, to and from regions and memory.
    pub transfer_bytes_max: u32,
    /// The most maps that exist at one time.
    pub dma_maps_max: u32,
    /// The sizes of the pages that maps may consist of, combined by a bitwise or.
    pub page_sizes: u64,
    /// `true` if one message may have several small writes.
    pub write_multiple: bool,
}

impl Capabilities {
    /// The values of the specification for capabilities that an end does not send.
    pub const UNSPECIFIED: Self = Self {
        message_fds_max: 1,
        transfer_bytes_max: 1 << 20,
        dma_maps_max: 65_535,
        page_sizes: 4096,
        write_multiple: false,
    };

    /// The default of this server: 16 descriptors (QEMU refuses more), 1 MiB, 65,535 maps of 4 KiB
    /// pages, several writes in one message.
    pub const DEFAULT: Self =
        Self { message_fds_max: 16, write_multiple: true, ..Self::UNSPECIFIED };

    /// Accepts at most this many descriptors in one message.
    #[must_use]
    pub const fn with_message_fds_max(self, message_fds_max: u32) -> Self {
        Self { message_fds_max, ..self }
    }

    /// Accepts at most this many bytes of data in one message.
    #[must_use]
    pub const fn with_transfer_bytes_max(self, transfer_bytes_max: u32) -> Self {
        Self { transfer_bytes_max, ..self }
    }

    /// Accepts at most this many maps at one time.
    #[must_use]
    pub const fn with_dma_maps_max(self, dma_maps_max: u32) -> Self {
        Self { dma_maps_max, ..self }
    }

    /// Accepts maps of pages of these sizes, combined by a bitwise or.
    #[must_use]
    pub const fn with_page_sizes(self, page_sizes: u64) -> Self {
        Self { page_sizes, ..self }
    }

    /// Accepts several small writes in one message, or refuses them.
    #[must_use]
    pub const fn with_write_multiple(self, write_multiple: bool) -> Self {
        Self { write_multiple, ..self }
    }

    /// Returns the size of the smallest page that a map may consist of, in bytes.
    pub fn page_bytes(&self) -> u64 {
        self.page_sizes & self.page_sizes.wrapping_neg()
    }

    /// Parses the capabilities of the other end from the JSON of its version message. Unknown names are
    /// ignored.
    ///
    /// # Errors
    /// `EINVAL` if this is not JSON, does not end with a zero byte, or has another type in place of a
    /// number.
    pub fn parse(capabilities: &[u8]) -> Result<Self, Errno> {
        Ok(Self::proposal(capabilities)?.0)
    }

    /// Parses as [`parse`](Self::parse) does, and also returns the capabilities that were present.
    fn proposal(capabilities: &[u8]) -> Result<(Self, Map<String, Value>), Errno> {
        if capabilities.is_empty() {
            return Ok((Self::UNSPECIFIED, Map::new()));
        }
        let Some((0, text)) = capabilities.split_last() else { return Err(Errno::EINVAL) };
        if text.len() > CAPABILITIES_LEN_BYTES_MAX {
            return Err(Errno::EINVAL);
        }
        let said: Value = serde_json::from_slice(text).map_err(|_| Errno::EINVAL)?;
        let Value::Object(mut said) = said else { return Err(Errno::EINVAL) };
        let said = match said.remove("capabilities") {
            None => Map::new(),
            Some(Value::Object(said)) => said,
            Some(_) => return Err(Errno::EINVAL),
        };
        let number = |name, unsaid| match said.get(name) {
            None => Ok(unsaid),
            Some(value) => value.as_u64().ok_or(Errno::EINVAL),
        };
        // Larger numbers have no other effect than the largest.
        let capped = |name, unsaid: u32| {
            number(name, unsaid.into()).map(|said| u32::try_from(said).unwrap_or(u32::MAX))
        };
        let unsaid = Self::UNSPECIFIED;
        let limits = Self {
            message_fds_max: capped(MESSAGE_FDS, unsaid.message_fds_max)?,
            transfer_bytes_max: capped(TRANSFER, unsaid.transfer_bytes_max)?,
            dma_maps_max: capped(DMA_MAPS, unsaid.dma_maps_max)?,
            page_sizes: number(PAGE_SIZES, unsaid.page_sizes)?,
            write_multiple: match said.get(WRITE_MULTIPLE) {
                None => false,
                Some(value) => value.as_bool().ok_or(Errno::EINVAL)?,
            },
        };
        Ok((limits, said))
    }

    /// Returns the JSON of a version message with these capabilities, with the zero byte at its end.
    pub fn encode(&self) -> Vec<u8> {
        self.encode_if(|_, _| true)
    }

    fn encode_if(&self, is_said: impl Fn(&str, bool) -> bool) -> Vec<u8> {
        let unsaid = Self::UNSPECIFIED;
        let all = [
            (
                MESSAGE_FDS,
                json!(self.message_fds_max),
                self.message_fds_max == unsaid.message_fds_max,
            ),
            (
                TRANSFER,
                json!(self.transfer_bytes_max),
                self.transfer_bytes_max == unsaid.transfer_bytes_max,
            ),
            (DMA_MAPS, json!(self.dma_maps_max), self.dma_maps_max == unsaid.dma_maps_max),
            (PAGE_SIZES, json!(self.page_sizes), self.page_sizes == unsaid.page_sizes),
            (WRITE_MULTIPLE, json!(self.write_multiple), !self.write_multiple),
        ];
        let said = all.into_iter().filter(|(name, _, is_unsaid)| is_said(name, *is_unsaid));
        let said: Map<String, Value> =
            said.map(|(name, value, _)| (name.to_owned(), value)).collect();
        let mut text = json!({ "capabilities": said }).to_string().into_bytes();
        text.push(0);
        text
    }
}

const MESSAGE_FDS: &str = "max_msg_fds";
const TRANSFER: &str = "max_data_xfer_size";
const DMA_MAPS: &str = "max_dma_maps";
const PAGE_SIZES: &str = "pgsizes";
const WRITE_MULTIPLE: &str = "write_multiple";

/// The result of a negotiation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The minor version.
    pub minor: u16,
    /// The limits of the client.
    pub client: Capabilities,
    /// The JSON of the reply.
    pub answer: Vec<u8>,
}

/// Negotiates a client's proposal with the limits of this server.
///
/// # Errors
/// `EINVAL` for another major version, capabilities that are not valid, or no page size in common.
pub(crate) fn negotiate(
    ours: &Capabilities,
    proposed: (u16, u16),
    capabilities: &[u8],
) -> Result<Settled, Errno> {
    let (major, minor) = proposed;
    if major != VERSION_MAJOR {
        return Err(Errno::EINVAL);
    }
    let (client, said) = Capabilities::proposal(capabilities)?;
    // A client that sends no page sizes can split its maps to match those in the reply.
    if said.contains_key(PAGE_SIZES) && client.page_sizes & ours.page_sizes == 0 {
        return Err(Errno::EINVAL);
    }
    // The reply has only capabilities that were proposed or that differ from the specification's values.
    let wanted = |name: &str, is_unsaid: bool| match name {
        WRITE_MULTIPLE => client.write_multiple,
        name => said.contains_key(name) || !is_unsaid,
    };
    let answer = ours.encode_if(wanted);
    Ok(Settled { minor: minor.min(VERSION_MINOR), client, answer })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_survive_encoding_and_parsing() {
        let odd = Capabilities {
            message_fds_max: 3,
            transfer_bytes_max: 12_345,
            dma_maps_max: 7,
            page_sizes: 0x1000 | 0x20_0000,
            write_multiple: true,
        };
        for limits in [odd, Capabilities::DEFAULT, Capabilities::UNSPECIFIED] {
            assert_eq!(Capabilities::parse(&limits.encode()), Ok(limits));
        }
        assert_eq!(odd.page_bytes(), 0x1000);
        for nothing in [&b""[..], b"{}\0", b"{\"capabilities\":{}}\0", b"{\"other\":[1]}\0"] {
            assert_eq!(Capabilities::parse(nothing), Ok(Capabilities::UNSPECIFIED));
        }
    }

    #[test]
    fn invalid_capabilities_are_refused() {
        for text in [
            "\0",
            "{}",
            "[]\0",
            "{\0",
            "{\"capabilities\":3}\0",
            "\"\0",
            "{\"capabilities\":{\"max_msg_fds\":-1}}\0",
            "{\"capabilities\":{\"max_data_xfer_size\":1.5}}\0",
            "{\"capabilities\":{\"pgsizes\":\"4096\"}}\0",
            "{\"capabilities\":{\"write_multiple\":1}}\0",
        ] {
            assert_eq!(Capabilities::parse(text.as_bytes()), Err(Errno::EINVAL), "{text}");
        }
        let deep = ["[".repeat(10_000), "\0".to_owned()].concat();
        assert_eq!(Capabilities::parse(deep.as_bytes()), Err(Errno::EINVAL));
        let long = format!("{{\"x\":\"{}\"}}\0", "x".repeat(CAPABILITIES_LEN_BYTES_MAX));
        assert_eq!(Capabilities::parse(long.as_bytes()), Err(Errno::EINVAL));
    }

    #[test]
    fn a_reply_has_only_what_was_proposed_or_differs() {
        let text = |answer: Vec<u8>| String::from_utf8(answer).unwrap();
        let settled = negotiate(&Capabilities::DEFAULT, (0, 7), b"").unwrap();
        assert_eq!(settled.minor, VERSION_MINOR);
        assert_eq!(text(settled.answer), "{\"capabilities\":{\"max_msg_fds\":16}}\0");
        let proposed = b"{\"capabilities\":{\"pgsizes\":4096,\"max_msg_fds\":8}}\0";
        let settled = negotiate(&Capabilities::DEFAULT, (0, 0), proposed).unwrap();
        assert_eq!((settled.minor, settled.client.message_fds_max), (0, 8));
        assert_eq!(
            text(settled.answer),
            "{\"capabilities\":{\"max_msg_fds\":16,\"pgsizes\":4096}}\0"
        );
        assert_eq!(negotiate(&Capabilities::DEFAULT, (1, 0), b""), Err(Errno::EINVAL));
        let pages = b"{\"capabilities\":{\"pgsizes\":65536}}\0";
        assert_eq!(negotiate(&Capabilities::DEFAULT, (0, 0), pages), Err(Errno::EINVAL));
    }
}
