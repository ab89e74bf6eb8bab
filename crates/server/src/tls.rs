//! TLS by rustls: 1.2 and 1.3, with certificates and a key that are read when the server starts. An
//! invalid file stops the server; it never falls back to unencrypted connections.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring::default_provider;

use crate::private::{self, Readers, Unfit};

/// The maximum size of a certificate or key file, in bytes.
const MOST_BYTES: u64 = 4 << 20;

/// The paths of the certificates and the key.
#[derive(Clone, Debug)]
pub struct TlsFiles {
    /// The server's certificate, and the chain that signs it.
    pub certificates: PathBuf,
    /// The private key of the server's certificate.
    pub key: PathBuf,
}

/// Creates the acceptor that encrypts connections.
///
/// # Errors
/// Returns a message if a file is unusable.
pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, String> {
    let about = |path: &Path, what: String| format!("cannot use {} for TLS: {what}", path.display());
    let pem = File::open(&files.certificates).map_err(|e| e.to_string()).and_then(read);
    let pem = pem.map_err(|e| about(&files.certificates, e))?;
    let certificates = CertificateDer::pem_slice_iter(&pem)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|e| about(&files.certificates, e.to_string()))?;
    if certificates.is_empty() {
        return Err(about(&files.certificates, "there is no certificate in it".into()));
    }
    let key = private_key(&files.key).map_err(|e| about(&files.key, e))?;
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| e.to_string())?
        .with_no_client_auth()
        .with_single_cert(certificates, key)
        .map_err(|e| about(&files.key, e.to_string()))?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    let file = private::open(path, Readers::GroupOfRoot).map_err(|unfit| match unfit {
        Unfit::Io(_, e) => e.to_string(),
        Unfit::Open(mode) => format!(
            "others can read the key (mode {mode:04o}); it has to be its owner's alone (chmod 600), or at most 0640 if root \
             owns it"
        ),
    })?;
    PrivateKeyDer::from_pem_slice(&read(file)?).map_err(|e| e.to_string())
}

/// Reads a certificate or key file.
fn read(file: File) -> Result<Vec<u8>, String> {
    let mut pem = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut pem).map_err(|e| e.to_string())?;
    match pem.len() as u64 > MOST_BYTES {
        true => Err(format!("it has more than {} MiB", MOST_BYTES >> 20)),
        false => Ok(pem),
    }
}
