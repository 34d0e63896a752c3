//! Properties of the reader of Xet storage for any answer of a server.

use std::io::Read as _;
use std::ops::Range;

use longshore_remote::xet::{
    CHUNK_HEADER_BYTES, CHUNK_MAX_BYTES, ChunkDecoder, ChunkHeader, Compression, Plan, Term,
};
use lz4_flex::frame::FrameDecoder;

/// Decodes `data` as chunks, and compares them with what the decoder of frames of `lz4_flex` makes of them.
pub fn xet_chunk(data: &[u8]) {
    let (mut rest, mut decoder) = (data, ChunkDecoder::new());
    while let Some((header, after)) = rest.split_first_chunk::<CHUNK_HEADER_BYTES>() {
        let Ok(header) = ChunkHeader::parse(*header) else { return };
        assert!(header.len_bytes <= CHUNK_MAX_BYTES);
        assert!(header.data_len_bytes <= 2 * CHUNK_MAX_BYTES);
        let Some((data, after)) = after.split_at_checked(header.data_len_bytes) else {
            assert!(decoder.decode(&header, after).is_err());
            return;
        };
        if let Ok(content) = decoder.decode(&header, data) {
            assert_eq!(content.len(), header.len_bytes);
            assert!(content == by_peer(&header, data));
        }
        rest = after;
    }
}

/// Returns the content of a chunk that is valid.
fn by_peer(header: &ChunkHeader, data: &[u8]) -> Vec<u8> {
    if header.compression == Compression::None {
        return data.to_vec();
    }
    let (mut content, limit) = (Vec::new(), header.len_bytes as u64 + 1);
    FrameDecoder::new(data).take(limit).read_to_end(&mut content).expect("a valid frame");
    if header.compression == Compression::Lz4 {
        return content;
    }
    let (mut ungrouped, mut from) = (vec![0; content.len()], content.iter());
    for group in 0..4 {
        let places = ungrouped.iter_mut().skip(group).step_by(4);
        places.zip(&mut from).for_each(|(place, byte)| *place = *byte);
    }
    ungrouped
}

/// Parses `data` as the description of a range. Its first line has the beginning and the length of the range, and
/// the number of bytes behind it.
pub fn xet_plan(data: &[u8]) {
    let Some((wanted, len, answer)) = request(data) else { return };
    let plan = match Plan::parse(answer, &wanted, len, false) {
        Ok(plan) => plan,
        Err(problem) => {
            let text = problem.to_string();
            assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
            return;
        }
    };
    let mut terms: Vec<&Term> = plan.fetches.iter().flat_map(|fetch| &fetch.terms).collect();
    terms.sort_by_key(|term| term.place.start);
    // A field that is ignored need not be UTF-8.
    if let Ok(json) = serde_json::from_slice::<serde_json::Value>(answer) {
        assert_eq!(Some(terms.len()), json["terms"].as_array().map(Vec::len));
    }
    let mut end = 0;
    for term in &terms {
        let chunks = term.chunks.len() as u64;
        assert_eq!(term.place.start, end);
        assert!(chunks > 0 && term.place.end - end >= chunks);
        assert!(term.place.end - end <= chunks * CHUNK_MAX_BYTES as u64);
        end = term.place.end;
    }
    // The terms have the range, and nothing behind the file.
    let (wanted_end, file_end) =
        (plan.offset + wanted.end - wanted.start, plan.offset + len - wanted.start);
    assert!(wanted_end <= end && end <= file_end);
    assert!(terms.first().is_some_and(|it| plan.offset < it.place.end));
    assert!(terms.last().is_some_and(|it| it.place.start < wanted_end));
    for fetch in &plan.fetches {
        assert!(fetch.url.scheme() == "https" && fetch.url.has_host() && !fetch.terms.is_empty());
        let (bytes, chunks) = (fetch.bytes.end - fetch.bytes.start, fetch.chunks.len() as u64);
        assert!(bytes <= 64 << 20 && bytes > chunks * CHUNK_HEADER_BYTES as u64);
        for term in &fetch.terms {
            assert!(fetch.chunks.start <= term.chunks.start);
            assert!(term.chunks.end <= fetch.chunks.end);
        }
    }
}

/// Returns the range, the length of the file, and the answer.
fn request(data: &[u8]) -> Option<(Range<u64>, u64, &[u8])> {
    let line = data.split(|byte| *byte == b'\n').next()?;
    let answer = data.get(line.len() + 1..)?;
    let mut numbers = std::str::from_utf8(line).ok()?.split(' ').map(|it| it.parse::<u32>().ok());
    let mut number = || numbers.next().flatten().map(u64::from);
    let (start, len, behind) = (number()?, number()?, number()?);
    Some((start..start + len, start + len + behind, answer))
}
