//! Heads of HTTP/1.1 responses (RFC 9112), which are untrusted input.

use std::fmt;

/// The limit on the length of a head, in bytes.
pub const HEAD_LEN_MAX_BYTES: usize = 64 << 10;
/// The limit on the number of header fields.
const FIELDS_MAX: usize = 100;

/// The head of a response, as far as it concerns the transfer of ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Head {
    /// The status code, such as 206.
    pub status: u16,
    /// The length of the body in bytes.
    pub content_length: Option<u64>,
    /// The range of the object that the body has.
    pub content_range: Option<ContentRange>,
    /// The version of the object, as the server writes it, with quotes.
    pub etag: Option<String>,
    /// The version of the object to which the Hugging Face Hub redirects: of a large file, its SHA-256 checksum.
    pub linked_etag: Option<String>,
    /// The hash of the object in the Xet storage of the Hugging Face Hub. Only [`Client::follow`] sets it, from a
    /// redirect to another server.
    ///
    /// [`Client::follow`]: super::Client::follow
    pub xet_hash: Option<String>,
    /// The length of the object to which the Hugging Face Hub redirects, in bytes. It is set like the hash.
    pub linked_size: Option<u64>,
    /// The time of the last change of the object, as the server writes it.
    pub last_modified: Option<String>,
    /// The region of a bucket of S3, if it is another one than that of the request.
    pub bucket_region: Option<String>,
    /// The address to use instead.
    pub location: Option<String>,
    /// The time after which to try again, in seconds.
    pub retry_after_s: Option<u64>,
    /// The encoding of the body, if it is not the object's own bytes.
    pub content_encoding: Option<String>,
    /// `true` if no range can be sent because the object is empty.
    pub is_empty: bool,
    /// `true` if the body is sent in chunks, so that its length is not known.
    pub is_chunked: bool,
    /// `true` if the server closes the connection after the body.
    pub closes: bool,
}

/// The range in a `Content-Range` header (RFC 9110, section 14.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentRange {
    /// The offset of the first byte.
    pub start: u64,
    /// The offset behind the last byte.
    pub end: u64,
    /// The length of the object, if the server knows it.
    pub len_bytes: Option<u64>,
}

/// The reason why a head is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HeadProblem {
    /// It is not the head of an HTTP/1 response.
    Syntax,
    /// It has more than [`HEAD_LEN_MAX_BYTES`] bytes, or more than 100 fields.
    TooLong,
    /// A field has no valid value, or occurs twice with different values.
    Field {
        /// The name of the field.
        name: &'static str,
    },
}

impl fmt::Display for HeadProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Syntax => f.write_str("the server did not send an HTTP/1 response"),
            Self::TooLong => f.write_str("the head of the response is too long"),
            Self::Field { name } => write!(f, "the response has no valid {name} header"),
        }
    }
}

impl std::error::Error for HeadProblem {}

impl Head {
    /// Parses a head at the beginning of `bytes`. Returns it with its length, or `None` if `bytes` is only
    /// a part of a head.
    ///
    /// # Errors
    /// [`HeadProblem`].
    pub fn parse(bytes: &[u8]) -> Result<Option<(Self, usize)>, HeadProblem> {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut response = httparse::Response::new(&mut fields);
        let len = match response.parse(&bytes[..bytes.len().min(HEAD_LEN_MAX_BYTES)]) {
            Ok(httparse::Status::Complete(len)) => len,
            Ok(httparse::Status::Partial) if bytes.len() >= HEAD_LEN_MAX_BYTES => {
                return Err(HeadProblem::TooLong);
            }
            Ok(httparse::Status::Partial) => return Ok(None),
            Err(httparse::Error::TooManyHeaders) => return Err(HeadProblem::TooLong),
            Err(_) => return Err(HeadProblem::Syntax),
        };
        let mut head = Self {
            status: response.code.ok_or(HeadProblem::Syntax)?,
            closes: response.version == Some(0),
            ..Self::default()
        };
        for field in response.headers.iter() {
            head.take(field.name, field.value)?;
        }
        Ok(Some((head, len)))
    }

    fn take(&mut self, name: &str, value: &[u8]) -> Result<(), HeadProblem> {
        let text = std::str::from_utf8(value).map(str::trim).ok();
        let is = |wanted: &str| name.eq_ignore_ascii_case(wanted);
        let has = |word: &str| {
            text.is_some_and(|text| text.split(',').any(|it| it.trim().eq_ignore_ascii_case(word)))
        };
        let is_identity = text.is_some_and(|text| text.eq_ignore_ascii_case("identity"));
        if is("content-length") {
            let number = text.filter(|it| it.bytes().all(|byte| byte.is_ascii_digit()));
            let number = number.and_then(|it| it.parse().ok());
            once(&mut self.content_length, number, "Content-Length")?;
        } else if is("content-range") && self.status == 416 {
            self.is_empty = text == Some("bytes */0");
        } else if is("content-range") && self.status == 206 {
            once(&mut self.content_range, text.and_then(ContentRange::parse), "Content-Range")?;
        } else if is("etag") {
            once(&mut self.etag, text.map(str::to_owned), "ETag")?;
        } else if is("x-linked-etag") {
            once(&mut self.linked_etag, text.map(str::to_owned), "X-Linked-Etag")?;
        } else if is("x-xet-hash") {
            once(&mut self.xet_hash, text.map(str::to_owned), "X-Xet-Hash")?;
        } else if is("x-linked-size") {
            self.linked_size = text.and_then(|it| it.parse().ok());
        } else if is("last-modified") {
            once(&mut self.last_modified, text.map(str::to_owned), "Last-Modified")?;
        } else if is("x-amz-bucket-region") {
            once(&mut self.bucket_region, text.map(str::to_owned), "x-amz-bucket-region")?;
        } else if is("location") {
            once(&mut self.location, text.map(str::to_owned), "Location")?;
        } else if is("retry-after") {
            // A date is possible, too; then the caller chooses the time.
            self.retry_after_s = text.and_then(|it| it.parse().ok());
        } else if is("content-encoding") && !is_identity {
            self.content_encoding = Some(text.unwrap_or("unknown").to_owned());
        } else if is("transfer-encoding") && !is_identity {
            self.is_chunked = true;
        } else if is("connection") {
            self.closes |= has("close");
        }
        Ok(())
    }
}

/// Sets a value, which must be valid and the same if it occurs twice.
fn once<T: PartialEq>(
    place: &mut Option<T>,
    value: Option<T>,
    name: &'static str,
) -> Result<(), HeadProblem> {
    let value = value.ok_or(HeadProblem::Field { name })?;
    if place.as_ref().is_some_and(|before| *before != value) {
        return Err(HeadProblem::Field { name });
    }
    *place = Some(value);
    Ok(())
}

impl ContentRange {
    /// Parses `bytes 0-99/1000`, with `*` for a length that is not known.
    fn parse(text: &str) -> Option<Self> {
        let (unit, rest) = text.split_once(' ')?;
        let (range, len) = rest.trim().split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let number = |text: &str| {
            let are_digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            are_digits.then(|| text.parse::<u64>().ok()).flatten()
        };
        let (start, end) = (number(first)?, number(last)?.checked_add(1)?);
        let len_bytes = if len == "*" { None } else { Some(number(len)?) };
        let is_valid = unit.eq_ignore_ascii_case("bytes")
            && start < end
            && len_bytes.is_none_or(|len| end <= len);
        is_valid.then_some(Self { start, end, len_bytes })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Head {
        let (head, len) = Head::parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!(len, text.len());
        head
    }

    #[test]
    fn the_fields_of_a_partial_response_are_read() {
        let head = parsed(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\ncontent-range: bytes 5-14/20\r\n\
             ETag: \"a\"\r\nX-Other: b\r\n\r\n",
        );
        assert_eq!((head.status, head.content_length), (206, Some(10)));
        assert_eq!(
            head.content_range,
            Some(ContentRange { start: 5, end: 15, len_bytes: Some(20) })
        );
        assert_eq!(head.etag.as_deref(), Some("\"a\""));
        assert!(!head.closes && !head.is_chunked && head.content_encoding.is_none());
    }

    #[test]
    fn other_fields_describe_the_connection_and_the_body() {
        let head = parsed(
            "HTTP/1.1 503 Slow Down\r\nConnection: Keep-Alive, close\r\nRetry-After: 7\r\n\
             Transfer-Encoding: chunked\r\nContent-Encoding: gzip\r\nLocation: https://b/\r\n\r\n",
        );
        assert!(head.closes && head.is_chunked);
        assert_eq!((head.retry_after_s, head.content_encoding.as_deref()), (Some(7), Some("gzip")));
        assert_eq!(head.location.as_deref(), Some("https://b/"));
        assert!(parsed("HTTP/1.0 200 OK\r\n\r\n").closes);
        let date = parsed("HTTP/1.1 503 x\r\nRetry-After: Fri, 31 Dec 1999 23:59:59 GMT\r\n\r\n");
        assert_eq!(date.retry_after_s, None);
    }

    #[test]
    fn hostile_heads_are_refused() {
        let field = |text: &str| format!("HTTP/1.1 206 x\r\n{text}\r\n\r\n");
        for text in [
            "Content-Length: -1",
            "Content-Length: 18446744073709551616",
            "Content-Length: 1 2",
            "Content-Length: 1\r\nContent-Length: 2",
            "Content-Range: bytes 5-4/20",
            "Content-Range: bytes 0-20/20",
            "Content-Range: bytes 0-18446744073709551615/*",
            "Content-Range: bytes */20",
            "Content-Range: items 0-1/2",
            "Content-Range: bytes 0-1/2\r\nContent-Range: bytes 0-0/2",
        ] {
            let refused = Head::parse(field(text).as_bytes());
            assert!(matches!(refused, Err(HeadProblem::Field { .. })), "{text}: {refused:?}");
        }
        assert_eq!(Head::parse(b"SSH-2.0-OpenSSH\r\n\r\n"), Err(HeadProblem::Syntax));
        let many = field(&"A: b\r\n".repeat(101));
        assert_eq!(Head::parse(many.as_bytes()), Err(HeadProblem::TooLong));
        let long = field(&format!("A: {}", "b".repeat(HEAD_LEN_MAX_BYTES)));
        assert_eq!(Head::parse(long.as_bytes()), Err(HeadProblem::TooLong));
    }

    proptest! {
        #[test]
        fn a_part_of_a_head_is_incomplete(cut in 0usize..70) {
            let text = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nETag: \"a\"\r\n\r\n";
            let parsed = Head::parse(&text[..cut.min(text.len() - 1)]);
            prop_assert_eq!(parsed, Ok(None));
        }

        #[test]
        fn any_bytes_give_a_result(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let mut text = b"HTTP/1.1 206 x\r\n".to_vec();
            text.extend(bytes);
            let _ = Head::parse(&text);
        }
    }
}
