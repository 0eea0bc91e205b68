//! Tests of the whole core: examples, a naive model, loom models, real threads.

#[cfg(not(loom))]
mod begin;
pub(crate) mod corpus;
#[cfg(not(loom))]
mod gate;
#[cfg(not(loom))]
mod line;
#[cfg(not(loom))]
mod looks;
#[cfg(loom)]
mod loom;
#[cfg(not(loom))]
mod model;
#[cfg(not(loom))]
mod naive;
#[cfg(not(loom))]
mod observed;
#[cfg(not(loom))]
mod retention;
#[cfg(not(loom))]
mod stress;
#[cfg(not(loom))]
pub(crate) mod support;
#[cfg(not(loom))]
mod work;
