//! Proxies that the environment names.

use std::env;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as STANDARD;
use percent_encoding::percent_decode_str;

use url::Url;

use super::endpoint::Endpoint;

/// A proxy, which makes connections for this program.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// The proxy itself.
    pub(super) endpoint: Endpoint,
    /// The value of `Proxy-Authorization`.
    pub(super) authorization: Option<String>,
}

impl std::fmt::Debug for Proxy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Proxy").field("endpoint", &self.endpoint).finish_non_exhaustive()
    }
}

impl Proxy {
    /// Returns the proxy for a server, as curl does: `https_proxy`, `http_proxy` or `all_proxy`, unless `no_proxy`
    /// names the host. Names in capitals are read, too, except `HTTP_PROXY`, which a web server may set from a
    /// request.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for a proxy that is not one for `http`.
    pub(super) fn from_env(endpoint: &Endpoint) -> io::Result<Option<Self>> {
        // No proxy reaches the metadata server of a cloud instance.
        let is_link_local = endpoint.host.parse().is_ok_and(|it: Ipv4Addr| it.is_link_local());
        if is_link_local || endpoint.host == "metadata.google.internal" {
            return Ok(None);
        }
        let set = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
        let either = |name: &str| set(name).or_else(|| set(&name.to_uppercase()));
        let own = if endpoint.is_tls { either("https_proxy") } else { set("http_proxy") };
        let exceptions = either("no_proxy").unwrap_or_default();
        let proxy = own.or_else(|| either("all_proxy"));
        let Some(proxy) = proxy.filter(|_| !is_excepted(endpoint, &exceptions)) else {
            return Ok(None);
        };
        let invalid =
            "the proxy of the environment is not http://HOST:PORT; other kinds are not supported";
        let parsed = Self::parse(&proxy);
        parsed.map(Some).ok_or_else(|| io::Error::new(ErrorKind::InvalidInput, invalid))
    }

    /// Parses `http://USER:PASSWORD@HOST:PORT`; the scheme may be missing. Returns `None` for other schemes.
    fn parse(text: &str) -> Option<Self> {
        let with_scheme =
            if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let url = Url::parse(&with_scheme).ok().filter(|url| url.scheme() == "http")?;
        let host = url.host_str()?.trim_matches(['[', ']']).to_owned();
        // The parser removes the usual port of the scheme.
        let authority = with_scheme.split('/').nth(2).unwrap_or_default();
        let port = url.port().unwrap_or(if authority.ends_with(":80") { 80 } else { 1080 });
        let endpoint = Endpoint { host, port, is_tls: false };
        let authorization = (!url.username().is_empty()).then(|| {
            let mut plain: Vec<u8> = percent_decode_str(url.username()).collect();
            plain.push(b':');
            plain.extend(percent_decode_str(url.password().unwrap_or_default()));
            format!("Basic {}", STANDARD.encode(plain))
        });
        Some(Self { endpoint, authorization })
    }
}

/// Returns `true` if `exceptions`, names with commas or spaces between them, has the host, a domain of it, a
/// network with its address, or `*`. A name can have a port.
fn is_excepted(endpoint: &Endpoint, exceptions: &str) -> bool {
    let host = endpoint.host.trim_end_matches('.').to_ascii_lowercase();
    let mut names = exceptions.split([',', ' ']).filter(|name| !name.is_empty());
    names.any(|name| {
        let name = name.to_ascii_lowercase();
        let name = match name.rsplit_once(':') {
            // Not an address of IPv6 without brackets.
            Some((host, port)) if !host.contains(':') || host.ends_with(']') => {
                if port.parse() != Ok(endpoint.port) {
                    return false;
                }
                host
            }
            _ => &name,
        };
        if name == "*" {
            return true;
        }
        let name = name.trim_matches(['[', ']']).trim_start_matches("*.");
        let name = name.trim_start_matches('.').trim_end_matches('.');
        let is_below = || host.strip_suffix(name).is_some_and(|above| above.ends_with('.'));
        !name.is_empty() && (host == name || is_below() || is_in_network(&host, name))
    })
}

/// Returns `true` if an address is in a network, such as `10.0.0.0/8`.
fn is_in_network(host: &str, network: &str) -> bool {
    let bits = |address: IpAddr| match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()) << 96, 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let parsed = || -> Option<bool> {
        let (network, length) = network.split_once('/')?;
        let (network, host): (IpAddr, IpAddr) = (network.parse().ok()?, host.parse().ok()?);
        let length: u32 = length.parse().ok()?;
        let ((network, width), (host, host_width)) = (bits(network), bits(host));
        let is_same = length == 0 || (network ^ host) >> (128 - length) == 0;
        Some(width == host_width && length <= width && is_same)
    };
    parsed().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxies_are_parsed_with_their_passwords() {
        let encoded = Proxy::parse("http://u%40x:p%3Aa@proxy").unwrap();
        // `u@x:p:a`
        assert_eq!(encoded.authorization.as_deref(), Some("Basic dUB4OnA6YQ=="));
        let proxy = Proxy::parse("http://user:pass@proxy:3128/").unwrap();
        assert_eq!((proxy.endpoint.host.as_str(), proxy.endpoint.port), ("proxy", 3128));
        assert_eq!(proxy.authorization.as_deref(), Some("Basic dXNlcjpwYXNz"));
        assert!(!format!("{proxy:?}").contains("dXNlc"));
        for (text, port) in
            [("proxy:81", 81), ("http://proxy:80/", 80), ("a:b@proxy:80", 80), ("proxy", 1080)]
        {
            assert_eq!(Proxy::parse(text).unwrap().endpoint.port, port, "{text}");
        }
        assert_eq!(Proxy::parse("[::1]:81").unwrap().endpoint.host, "::1");
        assert!(Proxy::parse("socks5://proxy").is_none());
    }

    #[test]
    fn hosts_are_excepted_by_name_and_domain() {
        for (host, exceptions, expected) in [
            ("a.example.com", "example.com", true),
            ("a.example.com", ".example.com", true),
            ("example.com", "localhost, Example.com", true),
            ("notexample.com", "example.com", false),
            ("a", "*", true),
            ("a", "", false),
            ("127.0.0.1", "127.0.0.1", true),
            ("a.b", "*.b c", true),
            ("c", "*.b c", true),
            ("a.b.", "b.", true),
            ("a", "a:81", true),
            ("a", "a:82", false),
            ("::1", "[::1]", true),
            ("::1", "[::1]:81", true),
            ("::1", "::1", true),
            ("10.1.2.3", "10.0.0.0/8", true),
            ("11.1.2.3", "10.0.0.0/8", false),
            ("11.1.2.3", "0.0.0.0/0", true),
            ("::1", "0.0.0.0/0", false),
            ("fd00::1", "fd00::/16", true),
            ("10.1.2.3", "10.0.0.0/99", false),
        ] {
            let endpoint = Endpoint { host: host.to_owned(), port: 81, is_tls: false };
            assert_eq!(is_excepted(&endpoint, exceptions), expected, "{host} {exceptions}");
        }
    }
}
