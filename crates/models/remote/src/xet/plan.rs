//! The description of a range of a file in its chunks ("Download Protocol" in the specification), which is
//! untrusted input.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use url::Url;

use super::chunk::{CHUNK_HEADER_BYTES, CHUNK_MAX_BYTES, DATA_MAX_BYTES};
use super::{InvalidXet, is_hash};

/// The limit on the terms, and on the ranges of xorbs, of one range of a file. 8 MiB have at most about 1000
/// chunks.
const TERMS_MAX: usize = 4096;
/// The limit on the chunks of a xorb.
const CHUNKS_MAX: u64 = 8192;
/// The limit on the length of a xorb, in bytes.
const XORB_MAX_BYTES: u64 = 64 << 20;

/// The requests from which a range of a file is put together.
#[derive(Debug)]
#[non_exhaustive]
pub struct Plan {
    /// The number of bytes before the range in the first term.
    pub offset: u64,
    /// The ranges of xorbs, in the order in which the file needs them first.
    pub fetches: Vec<Fetch>,
}

/// A range of a xorb, and the terms that it has.
#[non_exhaustive]
pub struct Fetch {
    /// The URL, which has a signature.
    pub url: Url,
    /// The range of bytes.
    pub bytes: Range<u64>,
    /// The chunks in these bytes.
    pub chunks: Range<u32>,
    /// The terms that are made of some of these chunks.
    pub terms: Vec<Term>,
}

/// Chunks that follow each other in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Term {
    /// The chunks of the xorb.
    pub chunks: Range<u32>,
    /// The place of their content, counted from the beginning of the first term.
    pub place: Range<u64>,
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { url: _, bytes, chunks, terms } = self;
        f.debug_struct("Fetch")
            .field("bytes", bytes)
            .field("chunks", chunks)
            .field("terms", terms)
            .finish_non_exhaustive()
    }
}

/// The response of the server, of version 1 or 2.
#[derive(Deserialize)]
struct Answer<'a> {
    offset_into_first_range: u64,
    #[serde(borrow)]
    terms: Vec<AnswerTerm<'a>>,
    #[serde(borrow, default)]
    xorbs: HashMap<&'a str, Vec<AnswerXorb>>,
    #[serde(borrow, default)]
    fetch_info: HashMap<&'a str, Vec<AnswerFetch>>,
}

#[derive(Deserialize)]
struct AnswerTerm<'a> {
    hash: &'a str,
    unpacked_length: u64,
    range: Chunks,
}

/// The ranges of version 2, several for one URL. Each may be requested alone.
#[derive(Deserialize)]
struct AnswerXorb {
    url: String,
    ranges: Vec<AnswerRange>,
}

#[derive(Deserialize)]
struct AnswerRange {
    chunks: Chunks,
    bytes: Bytes,
}

/// The range of version 1.
#[derive(Deserialize)]
struct AnswerFetch {
    range: Chunks,
    url: String,
    url_range: Bytes,
}

/// A range without its end.
#[derive(Clone, Copy, Deserialize)]
struct Chunks {
    start: u32,
    end: u32,
}

/// A range with its last byte.
#[derive(Clone, Copy, Deserialize)]
struct Bytes {
    start: u64,
    end: u64,
}

/// A range of a xorb, before it is used.
struct Part<'a> {
    url: &'a str,
    chunks: Chunks,
    bytes: Bytes,
    fetch: Option<usize>,
}

impl Plan {
    /// Parses the response to a request for the range `wanted` of a file of `file_len_bytes`. URLs of `http` are
    /// accepted if `allow_http` is set.
    ///
    /// # Errors
    /// [`InvalidXet`] if the response is not valid, or is not that to this request.
    pub fn parse(
        answer: &[u8],
        wanted: &Range<u64>,
        file_len_bytes: u64,
        allow_http: bool,
    ) -> Result<Self, InvalidXet> {
        let answer: Answer<'_> =
            serde_json::from_slice(answer).map_err(|_| InvalidXet("a description is not valid"))?;
        let mut parts = parts(&answer)?;
        if answer.terms.len() > TERMS_MAX {
            return Err(TOO_MANY);
        }
        let offset = answer.offset_into_first_range;
        let wanted_len = wanted.end.checked_sub(wanted.start).filter(|len| *len > 0);
        let left = file_len_bytes.checked_sub(wanted.start).ok_or(OTHER_RANGE)?;
        let wanted_end = wanted_len.and_then(|len| len.checked_add(offset)).ok_or(OTHER_RANGE)?;
        let file_end = offset.checked_add(left).ok_or(OTHER_RANGE)?;
        let (mut fetches, mut place) = (Vec::<Fetch>::new(), 0u64);
        for term in &answer.terms {
            let Chunks { start, end } = term.range;
            let count = u64::from(end.checked_sub(start).ok_or(CHUNKS)?);
            let len = term.unpacked_length;
            // Each chunk has a byte.
            if count == 0 || len < count || len > count * CHUNK_MAX_BYTES as u64 {
                return Err(InvalidXet("a term has a length that is not valid"));
            }
            // The first term has the first byte, and the last one the last byte.
            if place >= wanted_end || (place == 0 && offset >= len) {
                return Err(OTHER_RANGE);
            }
            let of_xorb = parts.get_mut(term.hash).map(Vec::as_mut_slice).unwrap_or_default();
            let part = of_xorb
                .iter_mut()
                .find(|part| part.chunks.start <= start && end <= part.chunks.end);
            let part = part.ok_or(InvalidXet("a term has no URL"))?;
            let at = match part.fetch {
                Some(at) => at,
                None => {
                    fetches.push(part.to_fetch(allow_http)?);
                    *part.fetch.insert(fetches.len() - 1)
                }
            };
            fetches[at].terms.push(Term { chunks: start..end, place: place..place + len });
            place += len;
        }
        // A server that ignores the range sends more than there is behind its beginning.
        if place < wanted_end || place > file_end {
            return Err(OTHER_RANGE);
        }
        Ok(Self { offset, fetches })
    }
}

const TOO_MANY: InvalidXet = InvalidXet("a description has too many terms");
const OTHER_RANGE: InvalidXet = InvalidXet("a description is that of another range");
const CHUNKS: InvalidXet = InvalidXet("a range of chunks is not valid");

/// Returns the ranges of each xorb.
fn parts<'a>(answer: &'a Answer<'_>) -> Result<HashMap<&'a str, Vec<Part<'a>>>, InvalidXet> {
    let of_two = answer.xorbs.iter().flat_map(|(hash, xorbs)| {
        let ranges = xorbs.iter().flat_map(|xorb| xorb.ranges.iter().map(|it| (&xorb.url, it)));
        ranges.map(|(url, it)| (*hash, url, it.chunks, it.bytes))
    });
    let of_one = answer.fetch_info.iter().flat_map(|(hash, fetches)| {
        fetches.iter().map(|it| (*hash, &it.url, it.range, it.url_range))
    });
    let mut parts: HashMap<&str, Vec<Part<'_>>> = HashMap::new();
    for (count, (hash, url, chunks, bytes)) in of_two.chain(of_one).enumerate() {
        if count >= TERMS_MAX {
            return Err(TOO_MANY);
        }
        if !is_hash(hash) {
            return Err(InvalidXet("a hash is not valid"));
        }
        parts.entry(hash).or_default().push(Part { url, chunks, bytes, fetch: None });
    }
    Ok(parts)
}

impl Part<'_> {
    fn to_fetch(&self, allow_http: bool) -> Result<Fetch, InvalidXet> {
        let Chunks { start, end } = self.chunks;
        let count = u64::from(end.checked_sub(start).ok_or(CHUNKS)?);
        let bytes = self.bytes.end.checked_add(1).map(|end| self.bytes.start..end);
        let bytes = bytes.filter(|bytes| bytes.start < bytes.end);
        let bytes = bytes.ok_or(InvalidXet("a range of bytes is not valid"))?;
        let len = bytes.end - bytes.start;
        if count > CHUNKS_MAX {
            return Err(TOO_MANY);
        }
        let header = CHUNK_HEADER_BYTES as u64;
        let chunks_max = count.saturating_mul(header + DATA_MAX_BYTES as u64);
        if len > XORB_MAX_BYTES || len <= count.saturating_mul(header) || len > chunks_max {
            return Err(InvalidXet("a range of bytes has a length that is not valid"));
        }
        let url = Url::parse(self.url).ok().filter(|url| is_permitted(url, allow_http));
        let url = url.ok_or(InvalidXet("a URL is not valid"))?;
        Ok(Fetch { url, bytes, chunks: start..end, terms: Vec::new() })
    }
}

/// Returns `true` for a URL that may be requested.
pub(super) fn is_permitted(url: &Url, allow_http: bool) -> bool {
    (url.scheme() == "https" || allow_http && url.scheme() == "http") && url.has_host()
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "00000000000000000000000000000000000000000000000000000000000000a1";
    const OTHER: &str = "00000000000000000000000000000000000000000000000000000000000000b2";

    /// A file of 500 bytes: chunks 1 to 3 of a xorb, all chunks of another, and chunk 2 of the first again.
    fn answer(version: u32) -> String {
        let terms = format!(
            r#"{{"offset_into_first_range":50,"terms":[
            {{"hash":"{HASH}","unpacked_length":200,"range":{{"start":1,"end":4}}}},
            {{"hash":"{OTHER}","unpacked_length":150,"range":{{"start":0,"end":2}}}},
            {{"hash":"{HASH}","unpacked_length":100,"range":{{"start":2,"end":3}}}}],"#
        );
        let rest = match version {
            1 => format!(
                r#""fetch_info":{{
                "{HASH}":[{{"range":{{"start":1,"end":4}},"url":"https://a/?secret","url_range":{{"start":100,"end":299}}}}],
                "{OTHER}":[{{"range":{{"start":0,"end":2}},"url":"https://b/","url_range":{{"start":0,"end":99}}}}]}}}}"#
            ),
            _ => format!(
                r#""xorbs":{{
                "{HASH}":[{{"url":"https://a/?secret","ranges":[{{"chunks":{{"start":1,"end":4}},"bytes":{{"start":100,"end":299}}}}]}}],
                "{OTHER}":[{{"url":"https://b/","ranges":[
                    {{"chunks":{{"start":0,"end":2}},"bytes":{{"start":0,"end":99}}}},
                    {{"chunks":{{"start":9,"end":10}},"bytes":{{"start":500,"end":599}}}}]}}]}}}}"#
            ),
        };
        terms + &rest
    }

    fn parse(answer: &str) -> Result<Plan, InvalidXet> {
        Plan::parse(answer.as_bytes(), &(1000..1350), 1400, false)
    }

    #[test]
    fn both_versions_describe_the_same_requests() {
        for version in [1, 2] {
            let plan = parse(&answer(version)).unwrap();
            assert_eq!((plan.offset, plan.fetches.len()), (50, 2));
            let [first, second] = &plan.fetches[..] else { unreachable!() };
            assert_eq!((first.bytes.clone(), first.chunks.clone()), (100..300, 1..4));
            let terms: Vec<_> =
                first.terms.iter().map(|it| (it.chunks.clone(), it.place.clone())).collect();
            assert_eq!(terms, [(1..4, 0..200), (2..3, 350..450)]);
            assert_eq!(
                (second.url.as_str(), second.terms[0].place.clone()),
                ("https://b/", 200..350)
            );
            assert!(!format!("{plan:?}").contains("secret"));
        }
    }

    #[test]
    fn other_descriptions_are_refused() {
        for (from, to, words) in [
            ("\"offset_into_first_range\":50", "\"offset_into_first_range\":200", "another range"),
            ("\"offset_into_first_range\":50", "\"offset_into_first_range\":-1", "not valid"),
            ("\"unpacked_length\":100", "\"unpacked_length\":49", "another range"),
            // More than the rest of the file.
            ("\"unpacked_length\":100", "\"unpacked_length\":101", "another range"),
            ("\"unpacked_length\":200", "\"unpacked_length\":2", "length"),
            ("\"unpacked_length\":200", "\"unpacked_length\":393217", "length"),
            ("\"unpacked_length\":200", "\"unpacked_length\":18446744073709551615", "length"),
            ("{\"start\":1,\"end\":4}},\n", "{\"start\":4,\"end\":1}},\n", "range of chunks"),
            ("{\"start\":1,\"end\":4}},\n", "{\"start\":1,\"end\":5}},\n", "no URL"),
            ("\"start\":100,\"end\":299", "\"start\":300,\"end\":299", "range of bytes"),
            (
                "\"start\":100,\"end\":299",
                "\"start\":0,\"end\":18446744073709551615",
                "range of bytes",
            ),
            ("\"start\":100,\"end\":299", "\"start\":0,\"end\":67108864", "range of bytes"),
            ("\"start\":100,\"end\":299", "\"start\":0,\"end\":23", "range of bytes"),
            ("https://b/", "http://b/", "URL"),
            ("https://b/", "file:///b", "URL"),
            ("0000a1\":[", "0000A1\":[", "hash"),
            ("0000b2\":[", "../b2\":[", "hash"),
        ] {
            for version in [1, 2] {
                let text = answer(version);
                assert!(text.contains(from), "{from}");
                let refused = parse(&text.replacen(from, to, 1)).unwrap_err();
                assert!(refused.to_string().contains(words), "{to}: {refused}");
            }
        }
    }

    #[test]
    fn a_description_of_the_whole_file_is_not_that_of_a_range() {
        // The server has ignored the range.
        let answer = format!(
            r#"{{"offset_into_first_range":0,"terms":[{{"hash":"{HASH}","unpacked_length":1000,"range":{{"start":0,"end":1}}}}],
            "xorbs":{{"{HASH}":[{{"url":"https://a/","ranges":[{{"chunks":{{"start":0,"end":1}},"bytes":{{"start":0,"end":99}}}}]}}]}}}}"#
        );
        let parse = |wanted| Plan::parse(answer.as_bytes(), &wanted, 1000, false);
        assert!(parse(0..10).is_ok() && parse(0..1000).is_ok());
        assert_eq!(parse(1..1000).unwrap_err(), OTHER_RANGE);
        assert_eq!(parse(0..1001).unwrap_err(), OTHER_RANGE);
    }

    #[test]
    fn too_many_terms_are_refused() {
        let term =
            format!(r#"{{"hash":"{HASH}","unpacked_length":1,"range":{{"start":0,"end":1}}}}"#);
        let answer = format!(
            r#"{{"offset_into_first_range":0,"terms":[{}]}}"#,
            vec![term; TERMS_MAX + 1].join(",")
        );
        assert_eq!(parse(&answer).unwrap_err(), TOO_MANY);
    }
}
