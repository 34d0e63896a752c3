//! The configuration of TLS.

use std::env;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::{Error as PemError, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore};

/// The variable with a file of more certificates that are trusted.
const CA_BUNDLE: &str = "AWS_CA_BUNDLE";
/// The variable with a file of the certificate of this client.
const CLIENT_CERTIFICATE: &str = "LONGSHORE_CLIENT_CERT_FILE";

/// The certificates that are trusted, and the sessions that can be resumed.
#[derive(Clone, Debug)]
pub struct Tls(Arc<ClientConfig>);

impl Tls {
    /// Trusts the certificates of the system, or those of `SSL_CERT_FILE` and `SSL_CERT_DIR` if one is set, and
    /// those of `AWS_CA_BUNDLE`. Servers that want a certificate of the client get that of the PEM file
    /// `LONGSHORE_CLIENT_CERT_FILE`, which also has its key.
    ///
    /// # Errors
    /// An error if there are no certificates, or if a file that is named has none.
    pub fn from_system() -> io::Result<Self> {
        let found = rustls_native_certs::load_native_certs();
        let mut roots = RootCertStore::empty();
        let (mut added, _) = roots.add_parsable_certificates(found.certs);
        if let Some(path) = set(CA_BUNDLE) {
            let (count, _) = roots.add_parsable_certificates(certificates(CA_BUNDLE, &path)?);
            added += count;
        }
        if added == 0 {
            let reason = found.errors.first().map(ToString::to_string).unwrap_or_default();
            let message = format!(
                "no certificates of authorities were found; install ca-certificates, or set \
                 SSL_CERT_FILE ({reason})"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(io::Error::other)?
            .with_root_certificates(roots);
        let config = match set(CLIENT_CERTIFICATE) {
            None => config.with_no_client_auth(),
            Some(path) => {
                let chain = certificates(CLIENT_CERTIFICATE, &path)?;
                let key = PrivateKeyDer::from_pem_file(&path);
                let key =
                    key.map_err(|error| unusable(CLIENT_CERTIFICATE, &path, &shown(&error)))?;
                let configured = config.with_client_auth_cert(chain, key);
                configured.map_err(|error| unusable(CLIENT_CERTIFICATE, &path, &error))?
            }
        };
        Ok(Self(Arc::new(config)))
    }

    /// Begins a session with a server of this name.
    pub(super) fn connect(&self, host: &str) -> io::Result<ClientConnection> {
        let invalid = |_| io::Error::new(io::ErrorKind::InvalidInput, "not a valid host name");
        let name = ServerName::try_from(host.to_owned()).map_err(invalid)?;
        ClientConnection::new(Arc::clone(&self.0), name).map_err(io::Error::other)
    }
}

fn set(variable: &str) -> Option<PathBuf> {
    env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Reads the certificates of a PEM file.
fn certificates(variable: &'static str, path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    let found: Vec<_> = read.map_err(|error| unusable(variable, path, &shown(&error)))?;
    if found.is_empty() {
        return Err(unusable(variable, path, &shown(&PemError::NoItemsFound)));
    }
    Ok(found)
}

/// Returns the kind of an error, whose text can show a key.
fn shown(error: &PemError) -> String {
    match error {
        PemError::Io(error) => error.to_string(),
        PemError::NoItemsFound => "it has no certificate or no key in the format PEM".to_owned(),
        _ => "it is not in the format PEM".to_owned(),
    }
}

fn unusable(variable: &str, path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    let text = format!("{variable} names {}, which cannot be used: {error}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
