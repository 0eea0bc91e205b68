//! Verification before any claim: closed forms, queueing theory, conservation, and relations between runs.

mod closed_form;
mod conservation;
mod follow_kv;
mod fuzz;
mod interference;
mod limits;
mod misled;
mod presets;
mod queueing;
mod refusals;
mod relations;
mod remote;
mod roles;
mod split;
mod stuck;
mod support;
mod watts;
