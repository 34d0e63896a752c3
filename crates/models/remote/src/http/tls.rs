//! The configuration of TLS.

use std::io;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// The certificates that are trusted, and the sessions that can be resumed.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Trusts the certificates of the system, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR` if one is set.
    ///
    /// # Errors
    /// An error if there are no certificates.
    pub fn from_system() -> io::Result<Self> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (added, _) = roots.add_parsable_certificates(found.certs);
        if added == 0 {
            let reason = found.errors.first().map(ToString::to_string).unwrap_or_default();
            let message = format!(
                "no certificates of authorities were found; install ca-certificates, or set \
                 SSL_CERT_FILE ({reason})"
            );
            return Err(io::Error::new(io::ErrorKind::NotFound, message));
        }
        Self::with_roots(roots)
    }

    fn with_roots(roots: RootCertStore) -> io::Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self(Arc::new(config)))
    }

    /// Begins a session with a server of this name.
    pub(super) fn connect(&self, host: &str) -> io::Result<ClientConnection> {
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "not a valid host name");
        let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
        ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)
    }
}
