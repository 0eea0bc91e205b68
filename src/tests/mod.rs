//! Tests of the whole core: examples, a naive model, loom models, real threads.

#[cfg(not(loom))]
mod begin;
#[cfg(not(loom))]
mod line;
pub(crate) mod support;
