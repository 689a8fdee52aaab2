//! TLS at every door, from files that change.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rcgen::{CertificateParams, Issuer, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tollgate_server::Door;

use crate::server::{Running, eventually};

/// A certificate with its key, and whoever signed it.
pub(crate) struct Signed {
    pub(crate) cert: String,
    pub(crate) key: String,
    pub(crate) der: CertificateDer<'static>,
    pub(crate) key_der: Vec<u8>,
}

/// Somebody who signs certificates.
pub(crate) struct Authority {
    pub(crate) cert: String,
    der: CertificateDer<'static>,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().expect("rustls and rcgen agree");
        let mut params = CertificateParams::new(Vec::new()).expect("rustls and rcgen agree");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let cert = params.self_signed(&key).expect("rustls and rcgen agree");
        let (pem, der) = (cert.pem(), cert.der().clone());
        Self { cert: pem, der, issuer: Issuer::new(params, key) }
    }

    pub(crate) fn sign(&self, name: &str) -> Signed {
        let key = KeyPair::generate().expect("rustls and rcgen agree");
        let params = CertificateParams::new(vec![name.to_owned()]).expect("rustls and rcgen agree");
        let cert = params.signed_by(&key, &self.issuer).expect("rustls and rcgen agree");
        Signed {
            cert: cert.pem(),
            key: key.serialize_pem(),
            der: cert.der().clone(),
            key_der: key.serialize_der(),
        }
    }
}

/// A client that believes `trusted`, and shows `own`.
pub(crate) fn client(trusted: &Authority, own: Option<&Signed>, protocol: &[u8]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.der.clone()).expect("rustls and rcgen agree");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("rustls and rcgen agree")
        .with_root_certificates(roots);
    let mut config = match own {
        None => builder.with_no_client_auth(),
        Some(own) => {
            let key = PrivateKeyDer::Pkcs8(own.key_der.clone().into());
            builder
                .with_client_auth_cert(vec![own.der.clone()], key)
                .expect("rustls and rcgen agree")
        }
    };
    config.alpn_protocols = [protocol.to_vec()].into_iter().filter(|it| !it.is_empty()).collect();
    config
}

/// Says `sent` over TLS and reads until there is something to read.
fn exchange(running: &Running, door: Door, config: ClientConfig, sent: &[u8]) -> Option<String> {
    let name = ServerName::try_from("localhost").expect("rustls and rcgen agree");
    let connection = ClientConnection::new(Arc::new(config), name).expect("rustls and rcgen agree");
    let socket: TcpStream = running.connect(door);
    let mut stream = StreamOwned::new(connection, socket);
    stream.write_all(sent).ok()?;
    let mut read = [0; 512];
    let length = stream.read(&mut read).ok()?;
    (length > 0).then(|| String::from_utf8_lossy(&read[..length]).into_owned())
}

const ASK: &[u8] = b"GET /v1/check HTTP/1.1\r\nhost: localhost\r\n\r\n";

fn policy(client_ca: &str) -> String {
    let listener =
        format!("{{ address: 127.0.0.1:0, tls: {{ cert: a.pem, key: a.key{client_ca} }} }}");
    let doors = ["http", "grpc", "admin", "resp"].map(|door| format!("  {door}: {listener}\n"));
    format!("listen:\n{}limits: []\n", doors.concat())
}

#[test]
fn every_door_speaks_tls() {
    let authority = Authority::new();
    let own = authority.sign("localhost");
    let running = Running::with_files(&policy(""), &[("a.pem", &own.cert), ("a.key", &own.key)]);
    let say = |door, protocol: &[u8], sent: &[u8]| {
        exchange(&running, door, client(&authority, None, protocol), sent).expect("an answer")
    };
    assert!(say(Door::Http, b"http/1.1", ASK).starts_with("HTTP/1.1 200"));
    let health = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    assert!(say(Door::Admin, b"http/1.1", health).starts_with("HTTP/1.1 200"));
    assert_eq!(say(Door::Resp, b"", b"PING\r\n"), "+PONG\r\n");
    // The first frame of HTTP/2 is nobody's but its own.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    assert_eq!(say(Door::Grpc, b"h2", preface).as_bytes()[3], 4, "a SETTINGS frame");
}

#[test]
fn who_speaks_no_tls_gets_no_answer() {
    let authority = Authority::new();
    let own = authority.sign("localhost");
    let running = Running::with_files(&policy(""), &[("a.pem", &own.cert), ("a.key", &own.key)]);
    let mut stream = running.connect(Door::Http);
    stream.write_all(ASK).unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[test]
fn a_client_without_a_certificate_of_ours_is_not_let_in() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let own = authority.sign("localhost");
    let files = [("a.pem", &*own.cert), ("a.key", &*own.key), ("ca.pem", &*authority.cert)];
    let running = Running::with_files(&policy(", client_ca: ca.pem"), &files);
    let ask = |shown: Option<&Signed>| {
        exchange(&running, Door::Http, client(&authority, shown, b"http/1.1"), ASK)
    };
    assert_eq!(ask(None), None);
    assert_eq!(ask(Some(&stranger.sign("client"))), None);
    let answer = ask(Some(&authority.sign("client"))).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[test]
fn certificates_that_change_are_used_and_bad_ones_are_not() {
    let (first, second) = (Authority::new(), Authority::new());
    let own = first.sign("localhost");
    let running = Running::with_files(&policy(""), &[("a.pem", &own.cert), ("a.key", &own.key)]);
    let ask = |authority: &Authority| {
        exchange(&running, Door::Http, client(authority, None, b"http/1.1"), ASK).is_some()
    };
    assert!(ask(&first));
    // Half of a renewal: a certificate whose key has yet to come.
    let renewed = second.sign("localhost");
    running.folder.write("a.pem", &renewed.cert);
    let reload = b"POST /v1/reload HTTP/1.1\r\nhost: localhost\r\n\r\n";
    exchange(&running, Door::Admin, client(&first, None, b"http/1.1"), reload).expect("an answer");
    assert!(ask(&first), "what was there stays");
    running.folder.write("a.key", &renewed.key);
    eventually("the new certificate is shown", || ask(&second));
    assert!(!ask(&first));
}
