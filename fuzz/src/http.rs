//! Properties of the HTTP client for any answer of a server.

use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use longshore_remote::http::{Client, ContentRange, HEAD_LEN_MAX_BYTES, Head, HeadProblem, Limits};
use url::Url;

/// The limit on a body. It is longer than one read of the client.
const BODY_MAX_BYTES: usize = 20_000;
/// The limit on the line before a chunk, which is that of the client.
const CHUNK_LINE_MAX: usize = 1024;

thread_local! {
    /// One server for all inputs, because starting one takes longer than answering a request.
    static RIG: Rig = Rig::new();
}

/// Parses `data` as the head of a response, and compares the result with that of a plain reader.
pub fn http_head(data: &[u8]) {
    match Head::parse(data) {
        Ok(Some((head, len))) => accepted(data, &head, len),
        Ok(None) => assert!(data.len() < HEAD_LEN_MAX_BYTES),
        Err(problem) => refused(data, &problem),
    }
}

fn accepted(data: &[u8], head: &Head, len: usize) {
    assert!(0 < len && len <= data.len().min(HEAD_LEN_MAX_BYTES));
    // The result depends on the head alone, and no part of a head is one.
    assert_eq!(Head::parse(&data[..len]), Ok(Some((head.clone(), len))));
    for cut in [len - 1, len / 2, usize::from(data[len - 1]) % len] {
        assert_eq!(Head::parse(&data[..cut]), Ok(None), "the first {cut} bytes");
    }
    let fields = Fields::of(&data[..len]);
    assert_eq!(fields.status, Some(head.status));
    assert_eq!(one(&fields.all("content-length"), number), Some(head.content_length));
    assert_eq!(one(&fields.all("etag"), owned), Some(head.etag.clone()));
    assert_eq!(one(&fields.all("location"), owned), Some(head.location.clone()));
    let ranges = fields.all("content-range");
    match head.content_range {
        Some(range) => {
            assert!(head.status == 206 && range.start < range.end);
            assert!(range.len_bytes.is_none_or(|len| range.end <= len));
            assert_eq!(one(&ranges, numbers_of_range), Some(Some(numbers(range))));
        }
        None => assert!(head.status != 206 || ranges.is_empty()),
    }
    let codings = fields.all("transfer-encoding");
    assert_eq!(head.is_chunked, codings.iter().any(|value| !has(value, "identity")));
    let closes = fields.all("connection").iter().any(|value| has(value, "close"));
    assert_eq!(head.closes, closes || fields.is_http_1_0);
}

fn refused(data: &[u8], problem: &HeadProblem) {
    let text = problem.to_string();
    assert!(!text.is_empty() && text.len() < 200 && !text.contains(char::is_control), "{text:?}");
    let fields = Fields::of(data);
    match problem {
        HeadProblem::TooLong => {
            assert!(data.len() >= HEAD_LEN_MAX_BYTES || fields.fields.len() > 100);
        }
        HeadProblem::Field { name } => {
            let values = fields.all(&name.to_ascii_lowercase());
            let is_sound = match *name {
                "Content-Length" => one(&values, number).is_some_and(|one| one.is_some()),
                "Content-Range" => one(&values, canonical_range).is_some_and(|one| one.is_some()),
                _ => one(&values, owned).is_some_and(|one| one.is_some()),
            };
            assert!(!is_sound, "{name} is refused: {values:?}");
        }
        _ => {}
    }
}

/// Returns the one value that all fields have: `Some(None)` if there are no fields, and `None` if a value
/// is not valid or another one.
fn one<T: PartialEq>(
    values: &[Option<String>],
    valid: impl Fn(&str) -> Option<T>,
) -> Option<Option<T>> {
    let mut found = None;
    for value in values {
        let value = valid(value.as_ref()?)?;
        if found.as_ref().is_some_and(|found| *found != value) {
            return None;
        }
        found = Some(value);
    }
    Some(found)
}

fn owned(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn number(text: &str) -> Option<u64> {
    text.chars().all(|it| it.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn has(value: &Option<String>, word: &str) -> bool {
    let lower = value.as_ref().map(|value| value.to_ascii_lowercase()).unwrap_or_default();
    lower.split(',').any(|it| it.trim() == word)
}

/// The first and the last offset, and the length.
type Range = (u64, u64, Option<u64>);

fn numbers(range: ContentRange) -> Range {
    (range.start, range.end - 1, range.len_bytes)
}

/// Returns the numbers of an accepted range, with any number of spaces and zeros before them.
fn numbers_of_range(text: &str) -> Option<Range> {
    let words: Vec<&str> =
        text.split([' ', '-', '/']).map(str::trim).filter(|word| !word.is_empty()).collect();
    let [_, first, last, len] = words[..] else { return None };
    Some((number(first)?, number(last)?, if len == "*" { None } else { Some(number(len)?) }))
}

/// Returns the numbers of a range that is written like in RFC 9110, and valid.
fn canonical_range(text: &str) -> Option<Range> {
    let range @ (first, last, len) = numbers_of_range(text)?;
    let written = len.map_or("*".to_owned(), |len| len.to_string());
    let is_valid = first <= last && last < len.unwrap_or(u64::MAX);
    (is_valid && text == format!("bytes {first}-{last}/{written}")).then_some(range)
}

/// The lines of a head, as a plain reader sees them.
struct Fields {
    status: Option<u16>,
    is_http_1_0: bool,
    /// The names in lower case, and the values that are valid UTF-8.
    fields: Vec<(String, Option<String>)>,
}

impl Fields {
    fn of(head: &[u8]) -> Self {
        let lines = head.split(|byte| *byte == b'\n');
        let lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let mut lines = lines.skip_while(|line| line.is_empty());
        let first = String::from_utf8_lossy(lines.next().unwrap_or_default()).into_owned();
        let fields = lines.take_while(|line| !line.is_empty()).map(|line| {
            let colon = line.iter().position(|byte| *byte == b':').unwrap_or(line.len());
            let (name, value) = line.split_at(colon);
            let value = String::from_utf8(value.get(1..).unwrap_or_default().to_vec()).ok();
            let value = value.map(|value| value.trim().to_owned());
            (String::from_utf8_lossy(name).to_ascii_lowercase(), value)
        });
        Self {
            status: first
                .split(' ')
                .filter(|it| !it.is_empty())
                .nth(1)
                .and_then(|it| it.parse().ok()),
            is_http_1_0: first.starts_with("HTTP/1.0"),
            fields: fields.collect(),
        }
    }

    fn all(&self, name: &str) -> Vec<Option<String>> {
        let of_name = self.fields.iter().filter(|(other, _)| other == name);
        of_name.map(|(_, value)| value.clone()).collect()
    }
}

/// Sends `data`, which begins with a valid head, as the answer of a server, and compares the body with that
/// of a plain reader.
pub fn http_body(data: &[u8]) {
    let Ok(Some((head, len))) = Head::parse(data) else { return };
    let rest = &data[len..];
    let expected = match head.content_length {
        _ if head.is_chunked => chunks(rest),
        Some(len) if len > BODY_MAX_BYTES as u64 => Err(ErrorKind::InvalidData),
        Some(len) => rest.get(..len as usize).map(<[u8]>::to_vec).ok_or(ErrorKind::UnexpectedEof),
        None if rest.len() > BODY_MAX_BYTES => Err(ErrorKind::InvalidData),
        None => Ok(rest.to_vec()),
    };
    let received = RIG.with(|rig| rig.body(&head, data));
    assert!(received == expected, "{received:?} instead of {expected:?}");
}

/// Decodes a body in chunks (RFC 9112, section 7.1).
fn chunks(mut rest: &[u8]) -> Result<Vec<u8>, ErrorKind> {
    let mut body = Vec::new();
    loop {
        let line = &rest[..rest.len().min(CHUNK_LINE_MAX)];
        let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let spaces = line[digits..].iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
        let end = match line.get(digits + spaces) {
            Some(b';') => line.iter().position(|byte| *byte == b'\r').unwrap_or(line.len()),
            _ => digits + spaces,
        };
        let is_sound = (1..=16).contains(&digits) || digits == 0 && line.is_empty();
        match line.get(end..).unwrap_or_default() {
            [b'\r', b'\n', ..] if is_sound => {}
            [] | [b'\r'] if is_sound && line.len() < CHUNK_LINE_MAX => {
                return Err(ErrorKind::UnexpectedEof);
            }
            _ => return Err(ErrorKind::InvalidData),
        }
        let len = std::str::from_utf8(&line[..digits]).expect("they are digits");
        let len = u64::from_str_radix(len, 16).expect("they are at most 16");
        if len == 0 {
            return Ok(body);
        }
        if len > (BODY_MAX_BYTES - body.len()) as u64 {
            return Err(ErrorKind::InvalidData);
        }
        let (chunk, after) =
            rest[end + 2..].split_at_checked(len as usize).ok_or(ErrorKind::UnexpectedEof)?;
        body.extend_from_slice(chunk);
        rest = match after {
            [b'\r', b'\n', rest @ ..] => rest,
            [_, _, ..] => return Err(ErrorKind::InvalidData),
            _ => return Err(ErrorKind::UnexpectedEof),
        };
    }
}

/// A server that sends one answer on each connection, and a client of it.
struct Rig {
    client: Client,
    url: Url,
    answers: Sender<Vec<u8>>,
}

impl Rig {
    fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
        let url = format!("http://{}/", listener.local_addr().expect("an address"));
        let (answers, receiver) = mpsc::channel::<Vec<u8>>();
        thread::spawn(move || {
            for answer in receiver {
                let (socket, _) = listener.accept().expect("a connection");
                serve(&socket, &answer);
            }
        });
        Self { client: Client::new(), url: url.parse().expect("a URL"), answers }
    }

    /// Returns the body that the client receives if the server sends these bytes, or the kind of the error.
    fn body(&self, head: &Head, answer: &[u8]) -> Result<Vec<u8>, ErrorKind> {
        let limits =
            Limits { control: &|| false, idle_timeout: Duration::from_secs(10), deadline: None };
        self.answers.send(answer.to_vec()).expect("the server runs");
        let mut response = self.client.get(&self.url, &[], &limits).expect("a response");
        assert_eq!(response.head, *head);
        response.body(BODY_MAX_BYTES, &limits).map_err(|error| error.kind())
    }
}

/// Reads a request and sends the answer. The client may close the connection before its end.
fn serve(mut socket: &TcpStream, answer: &[u8]) {
    let lines = BufReader::new(socket).lines().map_while(Result::ok);
    lines.take_while(|line| !line.is_empty()).for_each(drop);
    let sent = socket.write_all(answer).and_then(|()| socket.shutdown(Shutdown::Write));
    if sent.is_ok() {
        // The client ends the connection, so that the ports of the server are free again at once.
        let _ = std::io::copy(&mut socket, &mut std::io::sink());
    }
}
