//! Tests of the whole core: examples, a naive model, loom models, real threads.

#[cfg(not(loom))]
mod begin;
mod support;
