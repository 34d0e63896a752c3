//! The servers that connections lead to.

use std::io::{self, ErrorKind};

use url::Url;

/// A server: its host name, its port, and a flag for TLS.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// The name or the address of the host, without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// `true` for TLS.
    pub is_tls: bool,
}

impl Endpoint {
    /// Returns the server of a URL.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] if the URL has no host, or another scheme than `http` and `https`.
    pub(super) fn of(url: &Url) -> io::Result<Self> {
        let invalid = || io::Error::new(ErrorKind::InvalidInput, "expected an http or https URL");
        let is_tls = match url.scheme() {
            "https" => true,
            "http" => false,
            _ => return Err(invalid()),
        };
        let host = url.host_str().ok_or_else(invalid)?.trim_matches(['[', ']']).to_owned();
        let port = url.port_or_known_default().ok_or_else(invalid)?;
        Ok(Self { host, port, is_tls })
    }
}
