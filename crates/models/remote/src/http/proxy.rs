//! Proxies that the environment names.

use std::env;
use std::io::{self, ErrorKind};
use std::net::Ipv4Addr;

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
        let Some(proxy) = proxy.filter(|_| !is_excepted(&endpoint.host, &exceptions)) else {
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
        let port = url.port().unwrap_or(1080);
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

/// Returns `true` if `exceptions`, names with commas between them, has the host, a domain of it, or `*`.
fn is_excepted(host: &str, exceptions: &str) -> bool {
    let host = host.to_ascii_lowercase();
    exceptions.split(',').map(str::trim).any(|name| {
        let name = name.trim_start_matches('.').to_ascii_lowercase();
        let is_below = || host.strip_suffix(&name).is_some_and(|above| above.ends_with('.'));
        name == "*" || !name.is_empty() && (host == name || is_below())
    })
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
        assert_eq!(Proxy::parse("proxy:81").unwrap().endpoint.port, 81);
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
        ] {
            assert_eq!(is_excepted(host, exceptions), expected, "{host} {exceptions}");
        }
    }
}
