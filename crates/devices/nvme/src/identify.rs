//! The data structures that Identify returns (NVM Express Base Specification 2.0, section
//! 5.17.2.1; NVM Command Set Specification 1.0, section 4.1.5.1).

use std::time::Duration;

/// The length of a data structure, in bytes.
pub(crate) const IDENTIFY_BYTES: usize = 4096;

/// The field SGLS: support for scatter-gather lists, and their alignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglSupport {
    /// The controller does not support SGLs.
    None,
    /// SGLs with any address and any length.
    Bytes,
    /// SGLs with addresses and lengths that are multiples of four.
    Dwords,
}

/// The fields of the Identify Controller data structure (CNS 01h) that this driver uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdentifyController {
    /// SN: the serial number.
    pub serial: String,
    /// MN: the model number.
    pub model: String,
    /// FR: the firmware revision.
    pub firmware: String,
    /// MDTS: the largest transfer of a command, as the binary logarithm of a number of smallest
    /// memory pages; 0 means no limit.
    pub max_transfer_log2_pages: u8,
    /// RTD3E: the longest time of a shutdown; zero if the controller does not report it.
    pub shutdown_time: Duration,
    /// NN: the largest namespace identifier.
    pub namespaces_max: u32,
    /// VWC: the controller has a volatile write cache, which Flush writes to the medium.
    pub has_write_cache: bool,
    /// SGLS: support for scatter-gather lists.
    pub sgl: SglSupport,
}

impl IdentifyController {
    pub(crate) fn decode(bytes: &[u8; IDENTIFY_BYTES]) -> Self {
        Self {
            serial: text(&bytes[4..24]),
            model: text(&bytes[24..64]),
            firmware: text(&bytes[64..72]),
            max_transfer_log2_pages: bytes[77],
            shutdown_time: Duration::from_micros(u64::from(word(bytes, 88))),
            namespaces_max: word(bytes, 516),
            has_write_cache: bytes[525] & 1 != 0,
            sgl: match word(bytes, 536) & 3 {
                1 => SglSupport::Bytes,
                2 => SglSupport::Dwords,
                _ => SglSupport::None,
            },
        }
    }
}

/// The fields of the Identify Namespace data structure (CNS 00h) that this driver uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdentifyNamespace {
    /// NSZE: the number of blocks.
    pub(crate) blocks: u64,
    /// LBADS: the binary logarithm of the block size, in bytes.
    pub(crate) block_log2: u8,
    /// MS: the bytes of metadata of a block.
    pub(crate) metadata_bytes: u16,
}

impl IdentifyNamespace {
    pub(crate) fn decode(bytes: &[u8; IDENTIFY_BYTES]) -> Self {
        // FLBAS: four bits, and two more if there are more than 16 formats.
        let (formats, flbas) = (usize::from(bytes[25]) + 1, usize::from(bytes[26]));
        let upper = if formats > 16 { flbas >> 5 & 3 } else { 0 };
        let format = word(bytes, 128 + 4 * (flbas & 0xf | upper << 4));
        Self {
            blocks: u64::from(word(bytes, 0)) | u64::from(word(bytes, 4)) << 32,
            block_log2: (format >> 16) as u8,
            metadata_bytes: format as u16,
        }
    }
}

/// Returns the identifiers of an active namespace list (CNS 02h), which ends with a zero.
pub(crate) fn namespace_list(bytes: &[u8; IDENTIFY_BYTES]) -> impl Iterator<Item = u32> {
    let words = bytes.as_chunks().0.iter().copied().map(u32::from_le_bytes);
    words.take_while(|id| *id != 0)
}

fn word(bytes: &[u8; IDENTIFY_BYTES], at: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(word)
}

/// Decodes ASCII that is padded with spaces. Other bytes become question marks.
fn text(bytes: &[u8]) -> String {
    let printable = |byte: &u8| if (0x20..0x7f).contains(byte) { char::from(*byte) } else { '?' };
    let text: String = bytes.iter().take_while(|byte| **byte != 0).map(printable).collect();
    text.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_controller_is_decoded() {
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[4..24].copy_from_slice(b"serial 7            ");
        bytes[24..64].fill(b' ');
        bytes[24..31].copy_from_slice(b"model\x01X");
        bytes[64..67].copy_from_slice(b"1.0");
        bytes[77] = 5;
        bytes[88..92].copy_from_slice(&3_000_000_u32.to_le_bytes());
        bytes[516] = 2;
        bytes[525] = 7;
        bytes[536] = 1;
        let data = IdentifyController::decode(&bytes);
        assert_eq!((data.serial.as_str(), data.model.as_str()), ("serial 7", "model?X"));
        assert_eq!((data.firmware.as_str(), data.namespaces_max), ("1.0", 2));
        assert_eq!((data.max_transfer_log2_pages, data.shutdown_time.as_secs()), (5, 3));
        assert!(data.has_write_cache && data.sgl == SglSupport::Bytes);
        bytes[536] = 2;
        assert_eq!(IdentifyController::decode(&bytes).sgl, SglSupport::Dwords);
    }

    #[test]
    fn the_block_size_is_that_of_the_format_in_use() {
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[..8].copy_from_slice(&0x1_0000_0001_u64.to_le_bytes());
        let put = |bytes: &mut [u8; IDENTIFY_BYTES], index: usize, log2: u8, metadata: u8| {
            bytes[128 + 4 * index] = metadata;
            bytes[130 + 4 * index] = log2;
        };
        put(&mut bytes, 0, 9, 0);
        put(&mut bytes, 3, 12, 8);
        put(&mut bytes, 35, 13, 0);
        bytes[25] = 3;
        let data = |bytes: &[u8; IDENTIFY_BYTES]| IdentifyNamespace::decode(bytes);
        let blocks = 0x1_0000_0001;
        let first = IdentifyNamespace { blocks, block_log2: 9, metadata_bytes: 0 };
        assert_eq!(data(&bytes), first);
        bytes[26] = 3;
        assert_eq!(data(&bytes), IdentifyNamespace { blocks, block_log2: 12, metadata_bytes: 8 });
        // The upper bits are used only if there are more than 16 formats.
        bytes[26] = 3 | 2 << 5;
        assert_eq!(data(&bytes).block_log2, 12);
        bytes[25] = 40;
        assert_eq!(data(&bytes).block_log2, 13);
    }

    #[test]
    fn a_list_ends_with_a_zero() {
        let mut bytes = [0; IDENTIFY_BYTES];
        bytes[0] = 1;
        bytes[4] = 9;
        bytes[12] = 5;
        assert_eq!(namespace_list(&bytes).collect::<Vec<_>>(), [1, 9]);
    }
}
