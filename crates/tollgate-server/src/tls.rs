//! TLS from PEM files.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, RootCertStore, ServerConfig};
use tollgate::{Route, Scheme, Settings};

use crate::files::{Named, Unusable};

/// The files of one listener.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) cert: Named,
    pub(crate) key: Named,
    pub(crate) client_ca: Option<Named>,
}

impl Files {
    /// What a listener needs to speak TLS; the protocols are those it offers inside.
    pub(crate) fn load(&self, protocols: &[&[u8]]) -> Result<Arc<ServerConfig>, Vec<Unusable>> {
        let roots = self.client_ca.as_ref().map(vouching).transpose();
        let (chain, key, roots) = match (certificates(&self.cert), private_key(&self.key), roots) {
            (Ok(chain), Ok(key), Ok(roots)) => (chain, key, roots),
            (chain, key, roots) => {
                let wrong = [chain.err(), key.err(), roots.err()];
                return Err(wrong.into_iter().flatten().collect());
            }
        };
        let provider = Arc::new(ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .expect("ring knows the default versions");
        let builder = match self.client_ca.as_ref().zip(roots) {
            None => builder.with_no_client_auth(),
            Some((file, roots)) => {
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                let verifier = verifier.build().map_err(|error| vec![told(file, &error)])?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(|error| {
            let cert = self.cert.path().display();
            vec![self.key.unusable(format!("does not fit {cert}: {error}"))]
        })?;
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }

    pub(crate) fn paths(&self) -> impl Iterator<Item = &Path> {
        [&self.cert, &self.key].into_iter().chain(&self.client_ca).map(Named::path)
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
    let ca = settings.gateway.ca.as_ref().map(|file| Named::by(policy, file));
    let roots = match &ca {
        Some(file) => vouching(file).map_err(|wrong| wrong.to_string())?,
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

/// Those who sign certificates, by the file that holds theirs.
pub(crate) fn vouching(file: &Named) -> Result<RootCertStore, Unusable> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        roots.add(certificate).map_err(|error| told(file, &error))?;
    }
    Ok(roots)
}

fn certificates(file: &Named) -> Result<Vec<CertificateDer<'static>>, Unusable> {
    let text = file.text()?;
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(text.as_bytes()).collect();
    let chain = chain.map_err(|error| told(file, &error))?;
    if chain.is_empty() {
        return Err(file.unusable("holds no certificate in PEM form"));
    }
    Ok(chain)
}

fn private_key(file: &Named) -> Result<PrivateKeyDer<'static>, Unusable> {
    let text = file.text()?;
    PrivateKeyDer::from_pem_slice(text.as_bytes())
        .map_err(|error| file.unusable(format!("holds no private key: {error}")))
}

fn told(file: &Named, error: &dyn std::fmt::Display) -> Unusable {
    file.unusable(format!("cannot be used: {error}"))
}
