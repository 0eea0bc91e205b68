//! The native door alone, without Python, for profilers: `door WORKER_PORT...` prints the port that it serves on, in front of
//! those decoders, until it is killed. Without workers it ends at once.

#![allow(
    missing_docs,
    clippy::disallowed_methods,
    clippy::disallowed_macros,
    reason = "a program"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use conserve::config::Config;
use conserve::dispatch::{DispatchConfig, Dispatcher};
use conserve::fleet::{Role, WorkerSpec};
use conserve::identity::{Identity, IdentityLimits};
use conserve::proxy::{Clock, Door, DoorConfig};
use conserve::router::Router;
use conserve::units::{Blocks, Timestamp};

fn main() {
    let ports: Vec<u16> = std::env::args()
        .filter_map(|word| word.parse().ok())
        .collect();
    if ports.is_empty() {
        return;
    }
    let identity = Arc::new(Identity::new([7; 16], IdentityLimits::default()));
    let router = Router::new(Config::default()).expect("the defaults are valid");
    let router = Arc::new(router.with_observer(identity.clone()));
    for port in ports {
        let worker = WorkerSpec::new(format!("http://127.0.0.1:{port}"), Role::Decoder);
        router
            .join(worker.with_kv_blocks(Blocks::new(16_000_000)), Timestamp(0))
            .expect("each port once");
    }
    let dispatcher = Dispatcher::new(router, identity, DispatchConfig::default())
        .expect("the defaults are valid");
    let config = DoorConfig {
        host: "127.0.0.1".to_owned(),
        port: 0,
        control: "/nonexistent".into(),
        tls: None,
        worker_authorities: None,
        max_connections: 0,
        threads: 0,
        body_timeout: Duration::from_secs(60),
        client_stall_timeout: Duration::from_secs(120),
        keep_alive: Duration::from_secs(75),
        verbose: false,
    };
    let door = Door::bind(dispatcher, config, Clock::since(Instant::now())).expect("a free port");
    door.start();
    println!("{}", door.address().port());
    loop {
        std::thread::park();
    }
}
