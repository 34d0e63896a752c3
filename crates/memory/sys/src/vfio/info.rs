//! The answer to `VFIO_IOMMU_GET_INFO`: a header, and capabilities linked by their offsets.

use std::io;

use longshore_mem::{AddrRange, Iova};

use crate::iommufd::range;

/// The size of `struct vfio_iommu_type1_info`, up to its last field.
const HEAD_BYTES: usize = 24;
/// The size to ask for first. Known kernels answer with less, so one call is usually enough.
const FIRST_BYTES: usize = 4096;
/// The maximum size of an answer that is believed.
const MAX_BYTES: u32 = 1 << 20;

const HAS_PAGE_SIZES: u32 = 1 << 0;
const HAS_CAPABILITIES: u32 = 1 << 1;
const CAPABILITY_IOVA_RANGES: u16 = 1;
const CAPABILITY_DMA_AVAILABLE: u16 = 3;

/// The page sizes and IOVAs with which a container can map memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IommuInfo {
    /// A bit for each page size that all IOMMUs of the container support.
    pub page_sizes: u64,
    /// The IOVAs that can be mapped, which exclude interrupt windows and other reserved regions. `None`
    /// if the kernel does not report them (before Linux 5.4).
    pub iova_ranges: Option<Vec<AddrRange<Iova>>>,
    /// The number of mappings that can still be made, if the kernel reports it.
    pub available_mappings: Option<u32>,
}

/// The error for an answer that does not conform to the kernel's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InfoError(&'static str);

impl std::fmt::Display for InfoError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the answer to VFIO_IOMMU_GET_INFO {}", self.0)
    }
}

impl std::error::Error for InfoError {}

impl From<InfoError> for io::Error {
    fn from(error: InfoError) -> Self {
        Self::new(io::ErrorKind::InvalidData, error)
    }
}

/// Returns a request with room for the answer.
pub(super) fn first_request() -> Vec<u8> {
    request(FIRST_BYTES)
}

/// Returns a request with as much room as the kernel's answer needs, if that is more than it had.
pub(super) fn longer_request(answer: &[u8]) -> Option<Vec<u8>> {
    let needed = u32_at(answer, 0).unwrap_or(0);
    let is_longer = needed as usize > answer.len() && needed <= MAX_BYTES;
    is_longer.then(|| request(needed as usize))
}

fn request(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    bytes[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    bytes
}

impl IommuInfo {
    pub(super) fn parse(answer: &[u8]) -> Result<Self, InfoError> {
        const SHORT: InfoError = InfoError("ends before its head does");
        let flags = u32_at(answer, 4).ok_or(SHORT)?;
        let page_sizes = u64_at(answer, 8).ok_or(SHORT)?;
        let page_sizes = if flags & HAS_PAGE_SIZES == 0 { 0 } else { page_sizes };
        let mut info = Self { page_sizes, iova_ranges: None, available_mappings: None };
        if flags & HAS_CAPABILITIES == 0 {
            return Ok(info);
        }
        let mut at = u32_at(answer, 16).ok_or(SHORT)? as usize;
        while at != 0 {
            const CUT: InfoError = InfoError("has a capability that ends behind it");
            let id = u16_at(answer, at).ok_or(CUT)?;
            let next = u32_at(answer, at + 4).ok_or(CUT)? as usize;
            let body = answer.get(at + 8..).ok_or(CUT)?;
            match id {
                CAPABILITY_IOVA_RANGES => info.iova_ranges = Some(ranges(body).ok_or(CUT)?),
                CAPABILITY_DMA_AVAILABLE => info.available_mappings = u32_at(body, 0),
                _ => {}
            }
            // Offsets must ascend, or a loop would be followed for ever.
            if next != 0 && next <= at || at < HEAD_BYTES - 4 {
                return Err(InfoError("has capabilities in a circle"));
            }
            at = next;
        }
        Ok(info)
    }
}

/// Parses ranges: a count, four bytes of padding, and pairs of a first and a last address.
fn ranges(body: &[u8]) -> Option<Vec<AddrRange<Iova>>> {
    let count = u32_at(body, 0)? as usize;
    let pairs = body.get(8..)?.chunks_exact(16);
    if pairs.len() < count {
        return None;
    }
    pairs.take(count).map(|pair| range(u64_at(pair, 0)?, u64_at(pair, 8)?)).collect()
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..)?.get(..2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..)?.get(..4)?.try_into().ok()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..)?.get(..8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an answer with these capabilities.
    fn answer(capabilities: &[(u16, &[u8])]) -> Vec<u8> {
        let mut bytes = vec![0; HEAD_BYTES];
        let flags = HAS_PAGE_SIZES | HAS_CAPABILITIES;
        bytes[4..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..16].copy_from_slice(&0x4020_1000_u64.to_ne_bytes());
        bytes[16..20].copy_from_slice(&(HEAD_BYTES as u32).to_ne_bytes());
        for (nth, (id, body)) in capabilities.iter().enumerate() {
            let next = bytes.len() + 8 + body.len();
            let next = if nth + 1 == capabilities.len() { 0 } else { next };
            bytes.extend(id.to_ne_bytes());
            bytes.extend(1_u16.to_ne_bytes());
            bytes.extend((next as u32).to_ne_bytes());
            bytes.extend(*body);
        }
        let len = bytes.len() as u32;
        bytes[..4].copy_from_slice(&len.to_ne_bytes());
        bytes
    }

    fn ranges_body(pairs: &[(u64, u64)]) -> Vec<u8> {
        let mut body = (pairs.len() as u32).to_ne_bytes().to_vec();
        body.extend([0; 4]);
        for (first, last) in pairs {
            body.extend(first.to_ne_bytes());
            body.extend(last.to_ne_bytes());
        }
        body
    }

    #[test]
    fn capabilities_are_parsed_and_unknown_ones_skipped() {
        let two = ranges_body(&[(0, 0xfedf_ffff), (0xfef0_0000, (1 << 48) - 1)]);
        let available = 65535_u32.to_ne_bytes();
        let info = answer(&[(2, &[1; 20]), (1, &two), (3, &available)]);
        let info = IommuInfo::parse(&info).unwrap();
        assert_eq!(info.page_sizes, 0x4020_1000);
        assert_eq!(info.available_mappings, Some(65535));
        let ranges = info.iova_ranges.unwrap();
        assert_eq!(ranges[0], AddrRange::new(Iova::new(0), 0xfee0_0000).unwrap());
        assert_eq!(ranges[1].last(), Some(Iova::new((1 << 48) - 1)));
    }

    #[test]
    fn all_addresses_are_a_range() {
        let all = range(0, u64::MAX).unwrap();
        assert_eq!(all.len(), u64::MAX);
        assert_eq!(range(5, 4), None);
    }

    #[test]
    fn a_truncated_or_circular_answer_is_refused() {
        let whole = answer(&[(1, &ranges_body(&[(0, 0xfff), (0x2000, 0x2fff)]))]);
        for len in 0..whole.len() {
            let parsed = IommuInfo::parse(&whole[..len]);
            assert!(parsed.is_err(), "{len} of {}", whole.len());
        }
        let mut circle = whole;
        circle[HEAD_BYTES + 4..HEAD_BYTES + 8].copy_from_slice(&(HEAD_BYTES as u32).to_ne_bytes());
        assert!(IommuInfo::parse(&circle).is_err());
    }

    #[test]
    fn a_longer_request_is_made_if_the_answer_needs_it() {
        let mut answer = first_request();
        assert_eq!(longer_request(&answer), None);
        answer[..4].copy_from_slice(&5000_u32.to_ne_bytes());
        assert_eq!(longer_request(&answer).unwrap().len(), 5000);
        answer[..4].copy_from_slice(&u32::MAX.to_ne_bytes());
        assert_eq!(longer_request(&answer), None);
    }
}
