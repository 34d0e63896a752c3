//! Requests for ranges of an object, on connections that are kept.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::{self, ErrorKind, Write as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use url::Url;

use super::connection::{Connection, Limits};
use super::endpoint::Endpoint;
use super::head::Head;
use super::pace::Pace;
use super::proxy::Proxy;
use super::tls::Tls;

/// The number of redirects that are followed for one request.
const REDIRECTS_MAX: u32 = 10;
/// The most connections that are kept while no request uses them.
const IDLE_MAX: usize = 256;
/// The time for which an unused connection is kept. Servers and firewalls forget them after a minute or more.
const KEPT_TIME: Duration = Duration::from_secs(45);
/// The longest time for the head of a response on a kept connection, after which a new one is tried.
const REUSED_TIMEOUT: Duration = Duration::from_secs(10);
/// The number of servers from which those without connections are forgotten.
const SERVERS_MAX: usize = 256;

/// A client with connections that it keeps for later requests.
#[derive(Debug, Default)]
pub struct Client {
    tls: OnceLock<Tls>,
    servers: Mutex<Servers>,
}

/// The servers that one process knows.
#[derive(Debug, Default)]
struct Servers {
    process: u32,
    all: HashMap<Endpoint, Server>,
}

/// A server, as far as the client knows it.
#[derive(Debug, Default)]
struct Server {
    /// The connections, each with the time of its last use. The oldest comes first.
    idle: Vec<(Instant, Connection)>,
    pace: Arc<Pace>,
}

/// A header field of a request. Its value may be secret, so it is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Field {
    name: Cow<'static, str>,
    value: String,
}

/// A request with a body.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// The method, such as `GET`.
    pub method: &'a str,
    /// The URL. User and password are not sent.
    pub url: &'a Url,
    /// The header fields, except `Host`, `User-Agent` and `Content-Length`.
    pub fields: &'a [Field],
    /// The body.
    pub body: &'a [u8],
}

/// A response after redirects.
#[derive(Debug)]
pub struct Followed {
    /// The response.
    pub response: Response,
    /// The last URL.
    pub url: Url,
    /// `true` if a redirect led to another server, which gets no secrets, also not if it leads back.
    pub left: bool,
}

/// A response whose body has not been received.
pub struct Response {
    /// The head.
    pub head: Head,
    /// The connection, on which the body follows.
    pub connection: Connection,
    endpoint: Endpoint,
    pace: Arc<Pace>,
}

impl Field {
    /// Makes a field. Returns `None` if a character of the name or the value is not permitted there (RFC 9110,
    /// section 5).
    pub fn new(name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Option<Self> {
        let (name, value) = (name.into(), value.into());
        let is_token = !name.is_empty()
            && name.bytes().all(|it| it.is_ascii_alphanumeric() || it == b'-' || it == b'_');
        let is_value = value.bytes().all(|it| it == b'\t' || !it.is_ascii_control());
        (is_token && is_value).then_some(Self { name, value })
    }
}

impl std::fmt::Debug for Response {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Response").field("status", &self.head.status).finish_non_exhaustive()
    }
}

impl Response {
    /// Returns the usual speed of the server.
    pub(super) fn pace(&self) -> Arc<Pace> {
        Arc::clone(&self.pace)
    }
}

impl std::fmt::Debug for Field {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: …", self.name)
    }
}

impl Client {
    /// Makes a client without connections.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a client that trusts these certificates instead of those of the system.
    pub fn with_tls(tls: Tls) -> Self {
        Self { tls: tls.into(), servers: Mutex::default() }
    }

    /// Requests `url` with the method GET, like [`Client::send`].
    ///
    /// # Errors
    /// Those of [`Client::send`].
    pub fn get(&self, url: &Url, fields: &[Field], limits: &Limits<'_>) -> io::Result<Response> {
        self.send(Request { method: "GET", url, fields, body: &[] }, limits)
    }

    /// Sends a request, and receives the head of the response. A kept connection that the server has closed
    /// meanwhile is replaced.
    ///
    /// # Errors
    /// Those of [`Connection::open`], [`Connection::send`] and [`Connection::receive_head`];
    /// [`ErrorKind::InvalidInput`] if the URL has no host, or another scheme than `http` and `https`.
    pub fn send(&self, request: Request<'_>, limits: &Limits<'_>) -> io::Result<Response> {
        let mut response = self.exchange(request, limits)?;
        // Only a server that redirects names another place.
        (response.head.xet_hash, response.head.linked_size) = (None, None);
        Ok(response)
    }

    fn exchange(&self, request: Request<'_>, limits: &Limits<'_>) -> io::Result<Response> {
        let endpoint = Endpoint::of(request.url)?;
        let proxy = Proxy::from_env(&endpoint)?;
        // A proxy for plain HTTP gets the whole URL.
        let to_proxy = proxy.as_ref().filter(|_| !endpoint.is_tls);
        let request = text(request, to_proxy)?;
        let pace = self.pace(&endpoint);
        // Another server process may have closed all of them, or a firewall may have forgotten them.
        let idle_timeout = limits.idle_timeout.min(REUSED_TIMEOUT);
        let quick = Limits { idle_timeout, ..*limits };
        while let Some(mut connection) = self.take(&endpoint) {
            let head =
                connection.send(&request, &quick).and_then(|()| connection.receive_head(&quick));
            match head {
                Ok(head) => return Ok(Response { head, connection, endpoint, pace }),
                Err(error) if error.kind() == ErrorKind::TimedOut && limits.check().is_ok() => {
                    self.forget(&endpoint);
                }
                Err(error) if is_closed(&error) => {}
                // It may have sent more than it announced.
                Err(error) if error.kind() == ErrorKind::InvalidData => {}
                Err(error) => return Err(error),
            }
        }
        let mut connection =
            Connection::open(&endpoint, self.tls_for(&endpoint)?, proxy.as_ref(), limits)?;
        connection.send(&request, limits)?;
        let head = connection.receive_head(limits)?;
        Ok(Response { head, connection, endpoint, pace })
    }

    /// Requests `url` like [`Client::get`], and follows redirects.
    ///
    /// `secret` fields are not sent to another host, and https never leads to http.
    ///
    /// # Errors
    /// Those of [`Client::get`]; [`ErrorKind::InvalidData`] for a redirect that is not followed.
    pub fn follow(
        &self,
        url: &Url,
        fields: &[Field],
        secret: &[Field],
        limits: &Limits<'_>,
    ) -> io::Result<Followed> {
        let refused = |reason| Err(io::Error::new(ErrorKind::InvalidData, reason));
        let mut url = url.clone();
        let mut all = [fields, secret].concat();
        let (mut linked, mut in_xet, mut left) = (None, (None, None), false);
        for _ in 0..=REDIRECTS_MAX {
            let request = Request { method: "GET", url: &url, fields: &all, body: &[] };
            let mut response = self.exchange(request, limits)?;
            // The storage must not choose the checksum by which it is verified.
            let told = response.head.linked_etag.take();
            linked = linked.or(told.filter(|_| !left));
            response.head.linked_etag.clone_from(&linked);
            let found = (response.head.xet_hash.take(), response.head.linked_size.take());
            if !matches!(response.head.status, 301 | 302 | 303 | 307 | 308) {
                if left {
                    (response.head.xet_hash, response.head.linked_size) = in_xet;
                }
                return Ok(Followed { response, url, left });
            }
            if !left && found.0.is_some() {
                in_xet = found;
            }
            let Some(Ok(next)) = response.head.location.as_deref().map(|it| url.join(it)) else {
                return refused("the server redirects to no valid URL");
            };
            if url.scheme() == "https" && next.scheme() != "https" {
                return refused("the server redirects from https to another scheme");
            }
            if Endpoint::of(&next)? != Endpoint::of(&url)? {
                all.truncate(fields.len());
                left = true;
            }
            url = next;
        }
        refused("the server redirects too often")
    }

    /// Keeps a connection whose response has been received to its end.
    pub fn keep(&self, response: Response) {
        if response.head.closes || !response.connection.is_idle() {
            return;
        }
        let Servers { all, .. } = &mut *self.servers();
        all.values_mut().for_each(|server| server.idle.retain(|(since, _)| is_fresh(*since)));
        if all.values().map(|server| server.idle.len()).sum::<usize>() >= IDLE_MAX {
            let oldest = |server: &&mut Server| server.idle.first().map(|(since, _)| *since);
            let oldest = all.values_mut().filter(|it| !it.idle.is_empty()).min_by_key(oldest);
            oldest.map(|server| server.idle.remove(0));
        }
        let kept = (Instant::now(), response.connection);
        all.entry(response.endpoint).or_default().idle.push(kept);
    }

    /// Closes the connections that are kept for a server.
    fn forget(&self, endpoint: &Endpoint) {
        let forgotten = self.servers().all.get_mut(endpoint).map(|it| std::mem::take(&mut it.idle));
        drop(forgotten);
    }

    /// Returns the servers. A child process begins without any: it must not use connections of its parent.
    fn servers(&self) -> MutexGuard<'_, Servers> {
        let mut servers = self.servers.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if servers.process != process {
            *servers = Servers { process, all: HashMap::new() };
        }
        servers
    }

    fn pace(&self, endpoint: &Endpoint) -> Arc<Pace> {
        let mut servers = self.servers();
        if let Some(server) = servers.all.get(endpoint) {
            return Arc::clone(&server.pace);
        }
        if servers.all.len() >= SERVERS_MAX {
            // A server can redirect to ever new ones.
            servers
                .all
                .retain(|_, server| !server.idle.is_empty() || Arc::strong_count(&server.pace) > 1);
        }
        Arc::clone(&servers.all.entry(endpoint.clone()).or_default().pace)
    }

    /// Returns a kept connection on which nothing has arrived that no request has asked for.
    fn take(&self, endpoint: &Endpoint) -> Option<Connection> {
        loop {
            let (since, mut connection) = self.servers().all.get_mut(endpoint)?.idle.pop()?;
            if is_fresh(since) && connection.is_quiet() {
                return Some(connection);
            }
        }
    }

    /// Returns the configuration of TLS. It is read when the first server needs it.
    fn tls_for(&self, endpoint: &Endpoint) -> io::Result<Option<&Tls>> {
        if !endpoint.is_tls {
            return Ok(None);
        }
        if let Some(tls) = self.tls.get() {
            return Ok(Some(tls));
        }
        let tls = Tls::from_system()?;
        Ok(Some(self.tls.get_or_init(|| tls)))
    }
}

/// Returns `true` if a connection whose last use was then may be used again.
fn is_fresh(since: Instant) -> bool {
    since.elapsed() < KEPT_TIME
}

/// Returns `true` for the error of a connection that the server has closed.
fn is_closed(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof)
}

/// Returns the bytes of a request.
fn text(request: Request<'_>, proxy: Option<&Proxy>) -> io::Result<Vec<u8>> {
    let Request { method, url, fields, body } = request;
    let mut text = Vec::with_capacity(512 + body.len());
    let host = url.host_str().unwrap_or_default();
    write!(text, "{method} ")?;
    if proxy.is_some() {
        write!(text, "http://{host}")?;
        if let Some(port) = url.port() {
            write!(text, ":{port}")?;
        }
    }
    write!(text, "{}", url.path())?;
    if let Some(query) = url.query() {
        write!(text, "?{query}")?;
    }
    write!(text, " HTTP/1.1\r\nHost: {host}")?;
    if let Some(port) = url.port() {
        write!(text, ":{port}")?;
    }
    write!(text, "\r\nUser-Agent: longshore/{}\r\nAccept: */*\r\n", env!("CARGO_PKG_VERSION"))?;
    if let Some(value) = proxy.and_then(|proxy| proxy.authorization.as_ref()) {
        write!(text, "Proxy-Authorization: {value}\r\n")?;
    }
    for Field { name, value } in fields {
        write!(text, "{name}: {value}\r\n")?;
    }
    if !body.is_empty() || method != "GET" {
        write!(text, "Content-Length: {}\r\n", body.len())?;
    }
    text.extend_from_slice(b"\r\n");
    text.extend_from_slice(body);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(method: &str, url: &Url, fields: &[Field], body: &[u8]) -> String {
        let request = Request { method, url, fields, body };
        String::from_utf8(text(request, None).unwrap()).unwrap()
    }

    #[test]
    fn a_request_has_the_path_and_the_query_as_they_are() {
        let url = Url::parse("http://user:secret@host:81/a%20b/c?x=1&y=%2F#part").unwrap();
        let range = Field::new("Range", "bytes=0-1").unwrap();
        let text = request("GET", &url, &[range], b"");
        assert!(text.starts_with("GET /a%20b/c?x=1&y=%2F HTTP/1.1\r\nHost: host:81\r\n"), "{text}");
        assert!(text.ends_with("Range: bytes=0-1\r\n\r\n") && !text.contains("secret"), "{text}");
        let v6 = Url::parse("https://[::1]/a").unwrap();
        assert!(request("GET", &v6, &[], b"").contains("Host: [::1]\r\n"));
        let put = request("PUT", &v6, &[], b"body");
        assert!(put.starts_with("PUT /a ") && put.ends_with("Content-Length: 4\r\n\r\nbody"));
        let expected = Endpoint { host: "::1".to_owned(), port: 443, is_tls: true };
        assert_eq!(Endpoint::of(&v6).unwrap(), expected);
        assert!(Endpoint::of(&Url::parse("file:///a").unwrap()).is_err());
    }

    #[test]
    fn a_field_cannot_end_its_line() {
        for value in ["a\r\nb", "a\nb", "a\0"] {
            assert!(Field::new("Authorization", value).is_none());
            assert!(Field::new(value, "a").is_none());
        }
        let field = Field::new("Authorization", "Bearer secret").unwrap();
        assert_eq!(format!("{field:?}"), "Authorization: …");
    }
}
