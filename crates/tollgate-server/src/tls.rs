//! TLS from PEM files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tollgate::{Route, Scheme, Settings};

use crate::bounds::SECRET_FILE_BYTES_MAX;
use crate::policy_file::{beside, text_of};

/// The files of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) cert: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
}

impl Files {
    /// What a listener needs to speak TLS; the protocols are those it offers inside. An error is a
    /// sentence that names the file.
    pub(crate) fn load(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, String> {
        let chain = certificates(&self.cert)?;
        let key = PrivateKeyDer::from_pem_slice(&pem(&self.key)?)
            .map_err(|error| format!("{} holds no private key: {error}", self.key.display()))?;
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring knows the default versions");
        let builder = match &self.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file)? {
                    roots.add(certificate).map_err(|error| told(file, &error))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|error| told(file, &error))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            format!("{} and {} do not fit: {error}", self.cert.display(), self.key.display())
        })?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.cert, &self.key].into_iter().chain(&self.client_ca)
    }
}

/// What the gateway needs to speak TLS to servers, if any of them wants it. An error is a sentence.
pub(crate) fn for_upstreams(
    settings: &Settings,
    policy: &Path,
) -> Result<Option<Arc<ClientConfig>>, String> {
    let mut targets = settings.upstream.iter().flat_map(Route::targets);
    if !targets.any(|target| target.scheme() == Scheme::Https) {
        return Ok(None);
    }
    let ca = settings.gateway.ca.as_ref().map(|file| beside(policy, file));
    let roots = match &ca {
        Some(file) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file)? {
                roots.add(certificate).map_err(|error| told(file, &error))?;
            }
            roots
        }
        None => trusted_by_the_system().ok_or(
            "the system trusts nobody to vouch for servers behind https; install its CA \
             certificates, or name a file as `ca` under `gateway`",
        )?,
    };
    Ok(Some(client(roots, &[b"h2", b"http/1.1"])))
}

/// What it takes to speak TLS to a collector of metrics. An error is a sentence.
pub(crate) fn for_collector() -> Result<Arc<ClientConfig>, String> {
    let nobody = "the system trusts nobody to vouch for it; install its CA certificates";
    Ok(client(trusted_by_the_system().ok_or(nobody)?, &[b"http/1.1"]))
}

fn trusted_by_the_system() -> Option<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    (!roots.is_empty()).then_some(roots)
}

fn client(roots: RootCertStore, protocols: &[&[u8]]) -> Arc<ClientConfig> {
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring knows the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    Arc::new(config)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(file)?).collect();
    let chain = chain.map_err(|error| told(file, &error))?;
    if chain.is_empty() {
        return Err(format!("{} holds no certificate in PEM form", file.display()));
    }
    Ok(chain)
}

fn pem(file: &Path) -> Result<Vec<u8>, String> {
    text_of(file, SECRET_FILE_BYTES_MAX)
        .map(String::into_bytes)
        .map_err(|why| format!("{} cannot be read: {why}", file.display()))
}

fn told(file: &Path, error: &dyn std::fmt::Display) -> String {
    format!("{} cannot be used: {error}", file.display())
}
