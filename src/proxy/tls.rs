//! TLS: the door's own certificate for clients, and whom it trusts behind `https://` workers.
//!
//! Promises: an error names the file and never what is in it.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::rustls::crypto::ring::default_provider;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::socket::Socket;

/// Where the door's certificate chain and its key are, both PEM.
#[derive(Debug, Clone)]
pub struct TlsFiles {
    /// The chain, the door's own certificate first.
    pub certificate: PathBuf,
    /// The key, not encrypted.
    pub key: PathBuf,
}

/// What serves TLS to clients: HTTP/2 and HTTP/1.1, as the client likes.
pub(crate) fn acceptor(files: &TlsFiles) -> io::Result<TlsAcceptor> {
    let chain = certificates(&files.certificate)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|error| invalid(&files.key, "holds no key that can be read", &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .map_err(|error| invalid(&files.key, "does not serve with the certificate", &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// What connects to workers whose certificate is signed by those in `authorities`, or by one that this machine trusts.
pub(crate) fn connector(authorities: Option<&Path>) -> io::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = authorities {
        for certificate in certificates(path)? {
            roots
                .add(certificate)
                .map_err(|error| invalid(path, "holds a certificate of no use", &error))?;
        }
    } else {
        // What cannot be read is left out; a worker that needed it fails by name.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Speaks TLS to the worker at `host` over `stream`.
pub(crate) async fn connect(
    connector: &TlsConnector,
    host: &str,
    stream: TcpStream,
) -> io::Result<Socket> {
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let stream = connector.connect(name, stream).await?;
    Ok(Socket::Tls(Box::new(stream.into())))
}

fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    match read {
        Ok(chain) if chain.is_empty() => Err(invalid(path, "holds no certificate", &"")),
        Ok(chain) => Ok(chain),
        Err(error) => Err(invalid(path, "cannot be read", &error)),
    }
}

fn invalid(path: &Path, what: &str, why: &dyn std::fmt::Display) -> io::Error {
    let text = format!("{} {what}: {why}", path.display());
    io::Error::new(io::ErrorKind::InvalidInput, text)
}
