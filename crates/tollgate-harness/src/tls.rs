//! Certificates for servers that speak TLS.

use std::fs;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// Files in the PEM format: who signs, the server's certificate for `127.0.0.1` and `localhost`,
/// and one that a client may show.
#[derive(Clone, Debug)]
pub struct Certificates {
    /// Whom a client must trust.
    pub authority: PathBuf,
    /// The server's certificate.
    pub server: PathBuf,
    /// Its key.
    pub server_key: PathBuf,
    /// A client's certificate, signed by the same.
    pub client: PathBuf,
    /// Its key.
    pub client_key: PathBuf,
}

impl Certificates {
    /// Makes them in a folder.
    pub(crate) fn new(folder: &Path) -> Self {
        let write = |name: &str, text: &str| {
            let path = folder.join(name);
            fs::write(&path, text).expect("the folder is ours");
            path
        };
        let key = new_key();
        let mut params = params(&[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // One name for who signs and who is signed would look like one that signed itself.
        params.distinguished_name.push(DnType::CommonName, "tollgate tests");
        let authority = params.self_signed(&key).expect("parameters of ours");
        let authority = write("authority.pem", &authority.pem());
        let issuer = Issuer::new(params, key);
        let signed = |name: &str, subjects: &[&str]| {
            let key = new_key();
            let cert = self::params(subjects).signed_by(&key, &issuer).expect("parameters of ours");
            let cert = write(&format!("{name}.pem"), &cert.pem());
            (cert, write(&format!("{name}.key"), &key.serialize_pem()))
        };
        let (server, server_key) = signed("server", &["127.0.0.1", "localhost"]);
        let (client, client_key) = signed("client", &["client"]);
        Self { authority, server, server_key, client, client_key }
    }
}

fn new_key() -> KeyPair {
    KeyPair::generate().expect("there is randomness")
}

fn params(subjects: &[&str]) -> CertificateParams {
    let subjects: Vec<String> = subjects.iter().map(|&subject| subject.to_owned()).collect();
    CertificateParams::new(subjects).expect("names and addresses")
}
