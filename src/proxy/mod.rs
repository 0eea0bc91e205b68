//! The native door: moves bytes between clients and workers as [`Dispatch`](crate::dispatch::Dispatch) says.
//!
//! Promises: decides nothing about a turn; what is read from a worker is written to the client before more is read; a
//! client that leaves takes its upstream request along; nothing here waits for Python.
//! Leaves to others: every decision (`dispatch`), the control plane, which is a server of its own behind a Unix socket
//! (`control`), and the watch over the workers.
//!
//! ```text
//! server ─ service ┬ intake ─ driver ─ exchange ─ pool
//!                  │             └──── relay ────┘ └ conn (http1, framing)
//!                  └ control
//! ```

#[cfg(test)]
mod against_hyper;
mod ahead;
mod alarm;
mod bad_http;
mod buffers;
mod clock;
mod config;
mod conn;
mod connection;
mod control;
mod driver;
mod exchange;
mod framing;
mod headers;
mod http1;
mod intake;
mod log;
mod outgoing;
mod pool;
mod quiet;
mod relay;
mod server;
mod service;
mod shared;
mod shelf;
mod socket;
mod stats;
mod tls;

pub use clock::Clock;
pub use config::DoorConfig;
pub use log::{Level, Line};
pub use server::Door;
pub use stats::Counted;
pub use tls::TlsFiles;
