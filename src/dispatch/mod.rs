//! One turn over HTTP as a state machine without sockets or clock.

mod answer;
mod fingerprint;
mod json;
mod peek;
mod refusal;
mod splice;
mod sse;

pub use peek::Endpoint;
pub use refusal::Refusal;
