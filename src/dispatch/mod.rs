//! One turn over HTTP as a state machine, still without sockets or clock.
//!
//! A driver (a *door*) moves bytes and obeys: it opens a [`Dispatch`] for each request, calls [`Dispatch::start`], does what
//! the [`Action`] says and reports what came of it, until the request is over. All that is decided is decided here: what is
//! sent to whom, what is tried again, what the client is told. So every door gives the same answers.
//!
//! ```text
//! start ─ Wait ─ admitted ┬ Call(prefiller) ─ answered ┬ Stream(decoder) ─ head ┬ Listen ─ heard… ─ Relay ─ chunk… ─ end
//!                         └────────────────────────────┤                        └ Collect ─ answered ─ Reply
//!                                                      └ Call(decoder) ─ answered ─ Reply
//! ```
//!
//! The client is told nothing of a stream before its first token (`Listen`), so until then a turn can be tried again.
//!
//! | What breaks | Before the first token | After the first token |
//! |---|---|---|
//! | prefiller fails | the next one, same decoder, at most `retries`; then prefill on the decoder itself | cannot happen |
//! | prefiller says 503 | the next one; without one the client gets it as it is | cannot happen |
//! | decoder refuses the connection | it is lost; the turn is placed again with its whole history | cannot happen |
//! | decoder resets the connection | it is suspect; the turn begins again | error event, then the end |
//! | decoder is too slow to connect to | it is suspect; asked again while the handoff's lease lasts | cannot happen |
//! | nothing is left to connect with | the worker is asked again; 503, and nobody is suspect | cannot happen |
//! | decoder is silent | suspect; 504 | error event, then the end |
//! | decoder cannot load the KV (5xx) | asked again, and it computes the prompt itself | cannot happen |
//! | 4xx, 429, 503 from a worker | the client gets it as it is | cannot happen |
//! | client gone | the driver aborts; the growth is returned | the same |

mod action;
mod answer;
mod arrival;
mod config;
mod connector;
mod dispatcher;
mod estimate;
mod fingerprint;
pub(crate) mod headers;
mod ident;
mod json;
mod peek;
mod refusal;
mod splice;
mod sse;
#[cfg(test)]
mod tests;
mod turn;
mod utf8;

pub use action::{Action, Failure, TimeoutKind, Upstream};
pub use arrival::Arrival;
pub use config::{DispatchConfig, Secret};
pub use connector::{Connector, Peer, Peers};
pub use dispatcher::{Dispatcher, Located};
pub use headers::Header;
pub use peek::Endpoint;
pub use refusal::Refusal;
pub use turn::Dispatch;
