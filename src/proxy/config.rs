//! What an operator may set about the native door; the rest is in `DispatchConfig`.

use std::path::PathBuf;
use std::time::Duration;

use super::tls::TlsFiles;

/// The settings of one native door.
#[derive(Debug, Clone)]
pub struct DoorConfig {
    /// The address or name to listen on.
    pub host: String,
    /// The port to listen on; 0 takes a free one.
    pub port: u16,
    /// The Unix socket of the control plane, which answers every other path.
    pub control: PathBuf,
    /// The door's certificate; without one it speaks plain HTTP.
    pub tls: Option<TlsFiles>,
    /// PEM file of the authorities that sign `https://` workers' certificates; without one those of this machine.
    pub worker_authorities: Option<PathBuf>,
    /// Connections of clients at once; 0 for no bound. Those above it wait to be accepted.
    pub max_connections: usize,
    /// Threads that move bytes; 0 takes one for each processor core.
    pub threads: usize,
    /// How long a request's head may take to arrive, and then the whole of its body.
    pub body_timeout: Duration,
    /// How long a client may take nothing before it is taken to be gone.
    pub client_stall_timeout: Duration,
    /// How long a connection may be idle between two requests.
    pub keep_alive: Duration,
    /// Whether lines of level `Info` are wanted.
    pub verbose: bool,
}
