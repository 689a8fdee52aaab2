//! The proxies, and the server behind all of them.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

use tollgate_bench::process::{Folder, Process, free_addresses, version_of};
use tollgate_bench::question::KEY_FIELD;

use crate::Version;

/// Where the programs are that are not on `PATH`.
pub struct Programs {
    pub tollgate: PathBuf,
    pub envoy: PathBuf,
}

/// A row of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    NginxLimiting,
    Nginx,
    EnvoyLimiting,
    TollgateLimiting,
    Tollgate,
    TollgateDenying,
}

impl Proxy {
    /// Those that are compared stand beside each other, so that they take their turns in one moment.
    pub const ALL: [Self; 6] = [
        Self::EnvoyLimiting,
        Self::Nginx,
        Self::NginxLimiting,
        Self::TollgateLimiting,
        Self::Tollgate,
        Self::TollgateDenying,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::NginxLimiting => "nginx, three limit_req",
            Self::Nginx => "nginx",
            Self::EnvoyLimiting => "Envoy, local rate limit",
            Self::TollgateLimiting => "tollgate, three limits",
            Self::Tollgate => "tollgate",
            Self::TollgateDenying => "tollgate, all denied",
        }
    }
}

/// A running proxy or server.
pub struct Running {
    pub process: Process,
    addresses: [SocketAddr; 2],
}

impl Running {
    /// What answers in the end: a small body, from memory.
    pub fn upstream() -> Result<Self, String> {
        let addresses = free_addresses()?;
        let server = r#"return 200 "hello, world\n";"#;
        Self::nginx(addresses, "", server)
    }

    /// One thread serves, whoever it is: tollgate leaves a core to others, so that it is one where there are
    /// two.
    pub fn proxy(proxy: Proxy, programs: &Programs, upstream: SocketAddr) -> Result<Self, String> {
        match proxy {
            Proxy::Nginx => Self::nginx(free_addresses()?, &nginx_upstream(upstream), NGINX_PASS),
            Proxy::NginxLimiting => {
                let http = nginx_upstream(upstream) + &nginx_zones();
                Self::nginx(free_addresses()?, &http, &(NGINX_PASS.to_owned() + NGINX_LIMITS))
            }
            Proxy::EnvoyLimiting => Self::envoy(programs, upstream),
            Proxy::Tollgate => Self::tollgate(programs, upstream, "limits: []\n"),
            Proxy::TollgateLimiting => Self::tollgate(programs, upstream, &limits(NEVER)),
            Proxy::TollgateDenying => Self::tollgate(programs, upstream, &limits("1/day")),
        }
    }

    pub fn address(&self, version: Version) -> SocketAddr {
        self.addresses[version as usize]
    }

    fn nginx(addresses: [SocketAddr; 2], http: &str, server: &str) -> Result<Self, String> {
        let folder = Folder::new(&format!("nginx-{}", addresses[0].port()))?;
        let [http1, http2] = addresses;
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|kind| format!("{kind}_temp_path {kind};\n"))
            .collect();
        let config = format!(
            "daemon off; master_process off; pid nginx.pid; error_log stderr crit;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\naccess_log off; keepalive_requests 1000000000;\n{temporary}{http}\
             server {{ listen {http1}; listen {http2} http2; location / {{\n{server}\n}} }}\n}}\n"
        );
        let config = folder.write("nginx.conf", &config)?;
        let mut command = Command::new("nginx");
        command.args(["-e", "stderr", "-p"]).arg(folder.path()).arg("-c").arg(config);
        let process = Process::start(command, folder, &addresses)?;
        Ok(Self { process, addresses })
    }

    fn envoy(programs: &Programs, upstream: SocketAddr) -> Result<Self, String> {
        let [address] = free_addresses()?;
        let folder = Folder::new(&format!("envoy-{}", address.port()))?;
        let config = ENVOY
            .replace("$PORT", &address.port().to_string())
            .replace("$UPSTREAM", &upstream.port().to_string());
        let config = folder.write("envoy.yaml", &config)?;
        let mut command = Command::new(&programs.envoy);
        command.args(["--log-level", "error", "--concurrency", "1", "--use-dynamic-base-id"]);
        command.arg("--config-path").arg(config);
        let process = Process::start(command, folder, &[address])?;
        Ok(Self { process, addresses: [address; 2] })
    }

    fn tollgate(programs: &Programs, upstream: SocketAddr, limits: &str) -> Result<Self, String> {
        let [address] = free_addresses()?;
        let folder = Folder::new(&format!("tollgate-{}", address.port()))?;
        let policy =
            format!("listen: {{ gateway: {address} }}\nupstream: http://{upstream}\n{limits}");
        let policy = folder.write("policy.yaml", &policy)?;
        let mut command = Command::new(&programs.tollgate);
        command.args(["serve", "--log", "error", "-c"]).arg(policy);
        let process = Process::start(command, folder, &[address])?;
        Ok(Self { process, addresses: [address; 2] })
    }
}

/// Never reached, and so slow to refill that no key is as good as new when it is asked about again.
const NEVER: &str = "1000000000/365d";

/// The same three that nginx has: by address, by key, and of all. Only the first ever denies.
fn limits(rate: &str) -> String {
    format!(
        "limits:\n  \
         - {{ name: address, per: [client_ip], rate: {rate}, algorithm: token_bucket }}\n  \
         - {{ name: key, per: [\"header:{KEY_FIELD}\"], rate: {NEVER}, algorithm: sliding_window }}\n  \
         - {{ name: all, rate: {NEVER}, algorithm: fixed_window }}\n"
    )
}

fn nginx_upstream(upstream: SocketAddr) -> String {
    format!(
        "upstream behind {{ server {upstream}; keepalive 128; keepalive_requests 1000000000; }}\n"
    )
}

fn nginx_zones() -> String {
    let field = KEY_FIELD.replace('-', "_");
    [
        ("address", "$binary_remote_addr"),
        ("key", &format!("$http_{field}")),
        ("all", "$server_port"),
    ]
    .iter()
    .map(|(zone, key)| format!("limit_req_zone {key} zone={zone}:16m rate=1000000r/s;\n"))
    .collect()
}

/// Without `burst` a zone passes one request a millisecond, whatever its rate.
const NGINX_LIMITS: &str = "
limit_req zone=address burst=1000000 nodelay;
limit_req zone=key burst=1000000 nodelay;
limit_req zone=all burst=1000000 nodelay;";

/// With the fields that proxies are usually told to add, and that the others add unasked.
const NGINX_PASS: &str = "\
proxy_pass http://behind;
proxy_http_version 1.1;
proxy_set_header Connection \"\";
proxy_set_header Host $host;
proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
proxy_set_header X-Forwarded-Proto $scheme;";

const ENVOY: &str = r#"
static_resources:
  listeners:
    - name: edge
      address: { socket_address: { address: 127.0.0.1, port_value: $PORT } }
      filter_chains:
        - filters:
            - name: envoy.filters.network.http_connection_manager
              typed_config:
                "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
                stat_prefix: edge
                use_remote_address: true
                route_config:
                  virtual_hosts:
                    - name: all
                      domains: ["*"]
                      routes: [{ match: { prefix: / }, route: { cluster: behind } }]
                http_filters:
                  - name: envoy.filters.http.local_ratelimit
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.local_ratelimit.v3.LocalRateLimit
                      stat_prefix: limit
                      token_bucket: { max_tokens: 1000000000, tokens_per_fill: 1000000000, fill_interval: 1s }
                      filter_enabled: { default_value: { numerator: 100 } }
                      filter_enforced: { default_value: { numerator: 100 } }
                  - name: envoy.filters.http.router
                    typed_config:
                      "@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router
  clusters:
    - name: behind
      connect_timeout: 1s
      load_assignment:
        cluster_name: behind
        endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: 127.0.0.1, port_value: $UPSTREAM } } } }] }]
"#;

/// `nginx version: nginx/1.22.1`, which it says where others say what is wrong.
pub fn nginx_version() -> String {
    let output = Command::new("nginx").arg("-v").output().map(|output| output.stderr);
    let text = String::from_utf8_lossy(&output.unwrap_or_default()).into_owned();
    text.split(['/', ' ', '\n']).nth(3).unwrap_or_default().to_owned()
}

impl Programs {
    /// `envoy  version: 0a1b…/1.40.0/Clean/RELEASE/BoringSSL`.
    pub fn envoy_version(&self) -> String {
        version_of(&self.envoy).split('/').nth(1).unwrap_or_default().to_owned()
    }
}
