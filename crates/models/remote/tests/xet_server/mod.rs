//! A stand-in for the Hub, its storage, the server of descriptions and that of xorbs, written from the
//! specification at <https://huggingface.co/docs/xet>.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use longshore_load::{FormatChoice, Opened, Result, SourceFile, open_by};
use longshore_remote::Remote;
use lz4_flex::frame::FrameEncoder;

use crate::server::{Answer, Request, Server};

pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
/// The hash of the file.
pub(crate) const HASH: &str = "5111111111111111111111111111111111111111111111111111111111111155";
const TOKEN: &str = "secret-of-cas";

/// A chunk in a xorb.
struct Chunk {
    content: Range<usize>,
    bytes: Range<usize>,
}

/// A file in its chunks.
pub(crate) struct Stored {
    pub(crate) content: Vec<u8>,
    xorbs: Vec<(Vec<u8>, Vec<Chunk>)>,
    /// The xorb and the number of each chunk of the file.
    order: Vec<(usize, usize)>,
}

fn hash_of(xorb: usize) -> String {
    format!("{:064x}", xorb + 0xa0)
}

/// Returns a chunk in the form of the specification.
pub(crate) fn encode(content: &[u8], compression: u8) -> Vec<u8> {
    let data = match compression {
        0 => content.to_vec(),
        form => {
            let grouped: Vec<u8> =
                (0..4).flat_map(|at| content.iter().skip(at).step_by(4).copied()).collect();
            let mut encoder = FrameEncoder::new(Vec::new());
            encoder.write_all(if form == 2 { &grouped } else { content }).unwrap();
            encoder.finish().unwrap()
        }
    };
    let mut chunk = vec![0];
    chunk.extend_from_slice(&data.len().to_le_bytes()[..3]);
    chunk.push(compression);
    chunk.extend_from_slice(&content.len().to_le_bytes()[..3]);
    [chunk, data].concat()
}

impl Stored {
    /// Cuts a file into chunks of several lengths, in three xorbs. Chunks with the same content are stored once.
    pub(crate) fn new(content: Vec<u8>) -> Self {
        let mut stored = Self { content, xorbs: Vec::new(), order: Vec::new() };
        stored.xorbs.resize_with(3, Default::default);
        let mut known = BTreeMap::new();
        let (mut start, mut number) = (0, 0usize);
        while start < stored.content.len() {
            let len = [128 << 10, 9_001, 65_536, 30_000, 8_192][number % 5];
            let content = start..(start + len).min(stored.content.len());
            let bytes = stored.content[content.clone()].to_vec();
            let place = *known.entry(bytes.clone()).or_insert_with(|| {
                let at = (number / 7) % 3;
                let (xorb, chunks) = &mut stored.xorbs[at];
                let begin = xorb.len();
                xorb.extend(encode(&bytes, (number % 3) as u8));
                chunks.push(Chunk { content: content.clone(), bytes: begin..xorb.len() });
                (at, chunks.len() - 1)
            });
            stored.order.push(place);
            (start, number) = (content.end, number + 1);
        }
        stored
    }

    /// Returns the description of a range, whose URLs have the number `signature`.
    fn plan(&self, range: Range<usize>, is_old: bool, signature: usize, to: &str) -> String {
        let len_of = |(xorb, chunk): (usize, usize)| self.xorbs[xorb].1[chunk].content.len();
        let (mut place, mut offset) = (0, None);
        let mut terms: Vec<(usize, Range<usize>, usize)> = Vec::new();
        for part in &self.order {
            let (start, len) = (place, len_of(*part));
            place += len;
            if start + len <= range.start || start >= range.end {
                continue;
            }
            offset.get_or_insert(range.start.saturating_sub(start));
            match terms.last_mut() {
                Some((xorb, chunks, bytes)) if (*xorb, chunks.end) == *part => {
                    (chunks.end, *bytes) = (chunks.end + 1, *bytes + len);
                }
                _ => terms.push((part.0, part.1..part.1 + 1, len)),
            }
        }
        let mut needed: BTreeMap<usize, Vec<Range<usize>>> = BTreeMap::new();
        for (xorb, chunks, _) in &terms {
            needed.entry(*xorb).or_default().push(chunks.clone());
        }
        let xorbs = needed.into_iter().map(|(xorb, mut ranges)| {
            ranges.sort_by_key(|it| it.start);
            let mut merged: Vec<Range<usize>> = Vec::new();
            for range in ranges {
                match merged.last_mut() {
                    Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
                    _ => merged.push(range),
                }
            }
            let url = format!("{to}xorbs/{xorb}?signature=secret-{signature}");
            let chunks = &self.xorbs[xorb].1;
            let ranges: Vec<String> = merged.iter().map(|it| {
                let (chunk, bytes, url_of_one) = match is_old {
                    true => ("range", "url_range", format!(",\"url\":\"{url}\"")),
                    false => ("chunks", "bytes", String::new()),
                };
                let (first, last) = (chunks[it.start].bytes.start, chunks[it.end - 1].bytes.end - 1);
                let Range { start, end } = it;
                format!("{{\"{chunk}\":{{\"start\":{start},\"end\":{end}}},\"{bytes}\":{{\"start\":{first},\"end\":{last}}}{url_of_one}}}")
            }).collect();
            let ranges = ranges.join(",");
            match is_old {
                true => format!("\"{}\":[{ranges}]", hash_of(xorb)),
                false => format!("\"{}\":[{{\"url\":\"{url}\",\"ranges\":[{ranges}]}}]", hash_of(xorb)),
            }
        });
        let xorbs: Vec<String> = xorbs.collect();
        let terms = terms.iter().map(|(xorb, chunks, len)| {
            let (hash, Range { start, end }) = (hash_of(*xorb), chunks);
            format!("{{\"hash\":\"{hash}\",\"unpacked_length\":{len},\"range\":{{\"start\":{start},\"end\":{end}}}}}")
        });
        let terms: Vec<String> = terms.collect();
        format!(
            "{{\"offset_into_first_range\":{},\"terms\":[{}],\"{}\":{{{}}}}}",
            offset.unwrap(),
            terms.join(","),
            if is_old { "fetch_info" } else { "xorbs" },
            xorbs.join(","),
        )
    }
}

/// Returns the bytes of a response.
pub(crate) fn response(status: &str, fields: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

pub(crate) fn status(text: &str) -> Answer {
    Answer::RawBytes(response(text, "", b""))
}

type OnRequest = Box<dyn Fn(usize, &Request) -> Option<Answer> + Send + Sync>;
type OnResponse = Box<dyn Fn(usize, &Request, Vec<u8>) -> Answer + Send + Sync>;

/// The behaviour of the servers. Each function gets the number of the request to its server.
pub(crate) struct Behaviour {
    /// The status of the storage; 206 for the range.
    pub(crate) storage: Box<dyn Fn(usize) -> u16 + Send + Sync>,
    /// Fields of the redirect besides the address.
    pub(crate) fields: String,
    /// Another answer of the Hub.
    pub(crate) hub: OnRequest,
    /// The time in seconds for which a token is valid.
    pub(crate) token_s: i64,
    /// Another answer of the server of descriptions.
    pub(crate) plan: OnRequest,
    /// The description that is sent.
    pub(crate) description: Box<dyn Fn(String) -> String + Send + Sync>,
    /// The answer of the server of xorbs, of the right response.
    pub(crate) xorb: OnResponse,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            storage: Box::new(|_| 403),
            fields: String::new(),
            hub: Box::new(|_, _| None),
            token_s: 3600,
            plan: Box::new(|_, _| None),
            description: Box::new(|text| text),
            xorb: Box::new(|_, _, right| Answer::RawBytes(right)),
        }
    }
}

pub(crate) struct Rig {
    pub(crate) hub: Server,
    pub(crate) storage: Server,
    pub(crate) plans: Server,
    pub(crate) xorbs: Server,
}

impl Rig {
    pub(crate) fn start(content: Vec<u8>, behaviour: Behaviour) -> Self {
        let stored = Arc::new(Stored::new(content));
        let behaviour = Arc::new(behaviour);
        let (it, its) = (Arc::clone(&stored), Arc::clone(&behaviour));
        let xorbs = Server::start(Vec::new(), move |number, request: &Request| {
            let path = request.target.strip_prefix("/xorbs/").unwrap();
            let xorb = &it.xorbs[path[..1].parse::<usize>().unwrap()].0;
            assert!(!request.fields.contains_key("authorization"), "a secret of another server");
            let (range, len) = (request.range(), xorb.len());
            let field = format!("Content-Range: bytes {}-{}/{len}\r\n", range.start, range.end - 1);
            let right = response("206 Partial Content", &field, &xorb[range]);
            (its.xorb)(number, request, right)
        });
        let (it, its, to) = (Arc::clone(&stored), Arc::clone(&behaviour), base(&xorbs));
        let plans = Server::start(Vec::new(), move |number, request: &Request| {
            assert_eq!(request.fields["authorization"], format!("Bearer {TOKEN}"));
            if let Some(answer) = (its.plan)(number, request) {
                return answer;
            }
            let is_old = match request.target.strip_suffix(HASH).unwrap() {
                "/cas/v1/reconstructions/" => true,
                "/cas/v2/reconstructions/" => false,
                _ => return status("404 Not Found"),
            };
            let description = it.plan(request.range(), is_old, number, &to);
            let description = (its.description)(description);
            Answer::RawBytes(response("200 OK", "", description.as_bytes()))
        });
        let its = Arc::clone(&behaviour);
        let storage =
            Server::start(stored.content.clone(), move |number, _| match (its.storage)(number) {
                206 => Answer::Content("\"1\""),
                refused => status(&format!("{refused} Refused")),
            });
        let (len, resolved) = (stored.content.len(), AtomicUsize::new(0));
        let (to, cas) = (storage.url.clone(), format!("{}cas", base(&plans)));
        let hub = Server::start(Vec::new(), move |number, request: &Request| {
            if let Some(answer) = (behaviour.hub)(number, request) {
                return answer;
            }
            let target = request.target.as_str();
            if target == format!("/api/models/org/name/xet-read-token/{COMMIT}") {
                let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs() as i64;
                let exp = now + behaviour.token_s;
                let body = format!(
                    "{{\"casUrl\":\"{cas}/\",\"accessToken\":\"{TOKEN}\",\"exp\":{exp},\"other\":1}}"
                );
                return Answer::RawBytes(response("200 OK", "", body.as_bytes()));
            }
            assert_eq!(target, format!("/org/name/resolve/{COMMIT}/model.safetensors"));
            let signature = resolved.fetch_add(1, Ordering::Relaxed);
            let fields = format!(
                "Location: {to}?signature=secret-{signature}\r\nX-Xet-Hash: {HASH}\r\nX-Linked-Size: {len}\r\n{}",
                behaviour.fields
            );
            Answer::RawBytes(response("302 Found", &fields, b""))
        });
        Self { hub, storage, plans, xorbs }
    }

    pub(crate) fn remote(&self) -> Remote {
        Remote::new().hub_endpoint(base(&self.hub).parse().unwrap())
    }

    pub(crate) fn open(&self, remote: &Remote) -> Result<Opened> {
        open_by(&[PathBuf::from(name())], FormatChoice::Auto, remote)
    }

    pub(crate) fn open_file(&self, remote: &Remote) -> Result<SourceFile> {
        remote.open_file(name().as_ref())
    }

    /// Returns the number of requests for tokens.
    pub(crate) fn tokens(&self) -> usize {
        let requests = self.hub.requests.lock().unwrap();
        requests.iter().filter(|it| it.target.contains("xet-read-token")).count()
    }
}

pub(crate) fn name() -> String {
    format!("hf://org/name@{COMMIT}/model.safetensors")
}

fn base(server: &Server) -> String {
    server.url.join("/").unwrap().to_string()
}
