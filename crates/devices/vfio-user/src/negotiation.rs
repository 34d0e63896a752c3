//! What the two ends settle first: version, and how much either takes at once.

use serde_json::{Map, Value, json};

use crate::Errno;

/// The version spoken here; a client may propose a lower minor one.
pub(crate) const VERSION_MAJOR: u16 = 0;
/// The same.
pub(crate) const VERSION_MINOR: u16 = 1;

/// The longest list of capabilities that is looked at, in bytes.
const CAPABILITIES_LEN_BYTES_MAX: usize = 64 << 10;

/// The capabilities of one end of a connection: how much it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// Descriptors in one message.
    pub message_fds_max: u32,
    /// Bytes of data in one message, to and from regions and memory.
    pub transfer_bytes_max: u32,
    /// Maps that exist at one time.
    pub dma_maps_max: u32,
    /// Sizes of the pages that maps may consist of, or'ed.
    pub page_sizes: u64,
    /// Whether several small writes may come in one message.
    pub write_multiple: bool,
}

impl Capabilities {
    /// What holds where an end does not say anything else, as the specification has it.
    pub const UNSPECIFIED: Self = Self {
        message_fds_max: 1,
        transfer_bytes_max: 1 << 20,
        dma_maps_max: 65_535,
        page_sizes: 4096,
        write_multiple: false,
    };

    /// What this server takes if it is not told otherwise: 16 descriptors (QEMU refuses more), 1 MiB,
    /// 65,535 maps of 4 KiB pages, several writes in one message.
    pub const DEFAULT: Self =
        Self { message_fds_max: 16, write_multiple: true, ..Self::UNSPECIFIED };

    /// Takes at most this many descriptors in one message.
    #[must_use]
    pub const fn with_message_fds_max(self, message_fds_max: u32) -> Self {
        Self { message_fds_max, ..self }
    }

    /// Takes at most this many bytes of data in one message.
    #[must_use]
    pub const fn with_transfer_bytes_max(self, transfer_bytes_max: u32) -> Self {
        Self { transfer_bytes_max, ..self }
    }

    /// Takes at most this many maps at one time.
    #[must_use]
    pub const fn with_dma_maps_max(self, dma_maps_max: u32) -> Self {
        Self { dma_maps_max, ..self }
    }

    /// Takes maps of pages of these sizes, combined by a bitwise or.
    #[must_use]
    pub const fn with_page_sizes(self, page_sizes: u64) -> Self {
        Self { page_sizes, ..self }
    }

    /// Takes several small writes in one message, or one.
    #[must_use]
    pub const fn with_write_multiple(self, write_multiple: bool) -> Self {
        Self { write_multiple, ..self }
    }

    /// The smallest page a map may consist of.
    pub fn page_bytes(&self) -> u64 {
        self.page_sizes & self.page_sizes.wrapping_neg()
    }

    /// Reads what the other end takes out of the JSON that came with a version.
    ///
    /// # Errors
    /// `EINVAL` for what is no JSON, does not end with a zero byte, or has no number where there
    /// must be one. What is not known is passed over.
    pub fn parse(capabilities: &[u8]) -> Result<Self, Errno> {
        Ok(Self::proposal(capabilities)?.0)
    }

    /// The same, and which of them were said.
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
        // More than fits is more than is ever used.
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

    /// What is sent to propose this, with the zero byte at its end.
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

/// What was settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// The minor version.
    pub minor: u16,
    /// What the client takes, and what it sends at most.
    pub client: Capabilities,
    /// The JSON of the answer.
    pub answer: Vec<u8>,
}

/// Settles what a client proposes against what this server takes.
///
/// # Errors
/// `EINVAL` for another major version, capabilities that make no sense, or no page size in common.
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
    // A client that does not say which pages it has can split its maps as it is told.
    if said.contains_key(PAGE_SIZES) && client.page_sizes & ours.page_sizes == 0 {
        return Err(Errno::EINVAL);
    }
    // The answer has nothing that was not proposed, but for what differs from what would hold.
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
    fn limits_survive_the_socket() {
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
    fn what_makes_no_sense_is_refused() {
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
    fn an_answer_has_only_what_was_proposed_or_differs() {
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
