//! `ConServe` routes LLM agents' conversations, not their single calls.
//!
//! An agent solves a task in tens of dependent calls (*turns*). Turn 1, one long prompt, is computed
//! on a *prefiller*; its KV cache is handed over once to a *decoder*; the conversation is *pinned*
//! there, so every later turn runs where its KV already lies. Nothing is predicted: the router reads
//! only prompt lengths, queued work and booked blocks.
//!
//! Without Cargo features this crate is the core: it decides and does not act. It has no sockets,
//! clock, randomness, threads or logs; each call takes `now` and returns values.
//!
//! ```
//! use conserve::config::Config;
//! use conserve::fleet::{Role, WorkerSpec};
//! use conserve::router::{Begin, Router, TurnRequest};
//! use conserve::event::Usage;
//! use conserve::units::{Blocks, ConversationKey, Timestamp, Tokens};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let router = Router::new(Config::default())?;
//! let now = Timestamp(0);
//! router.join(WorkerSpec::new("http://p0:8000", Role::Prefiller), now)?;
//! router.join(WorkerSpec::new("http://d0:8000", Role::Decoder).with_kv_blocks(Blocks::new(40_000)), now)?;
//!
//! let request = TurnRequest { key: ConversationKey(42), prompt_tokens: Tokens(3_912), wait: None };
//! let Begin::Started(turn) = router.begin(&request, now)? else { unreachable!("did not ask to wait") };
//! assert_eq!(&*turn.route().decoder.name, "d0");
//! assert!(turn.route().handoff, "the first turn is computed on p0");
//! turn.finish(Usage { output: Some(Tokens(200)), ..Usage::default() }, now);
//!
//! let Begin::Started(turn) = router.begin(&request, now)? else { unreachable!("did not ask to wait") };
//! assert!(!turn.route().handoff, "the second runs where its KV is");
//! # Ok(())
//! # }
//! ```
//!
//! Each invariant has one home:
//!
//! | | Invariant | Home |
//! |---|---|---|
//! | I1 | a conversation has at most one pin | [`conversation`] |
//! | I2 | a placement moves KV at most once; turn numbers only grow; closed is final | [`conversation`] |
//! | I3 | booked blocks never pass the ceiling asked for; each booking is returned once | `occupancy` |
//! | I4 | a worker id is never reused | [`fleet`] |
//! | I5 | same inputs, same placement; the reason is part of the answer | [`placement`] |
//! | I6 | the tail goes first: new conversations stop at the low watermark | [`admission`] |
//! | I7 | every turn is settled once: finish, fail, or drop | [`router`] |
//! | I8 | each error has one HTTP status and one stable code | [`error`] |
//! | I9 | tenants never meet | [`identity`] |
//! | I10 | handoff parameters older than the engine's lease are never sent | `dispatch` |

mod activity;
pub mod admission;
mod backlog;
pub mod config;
pub mod conversation;
pub mod dispatch;
pub mod error;
pub mod event;
pub mod fleet;
pub mod identity;
pub mod kv_events;
mod longest_idle;
pub mod metrics;
mod occupancy;
mod pace;
pub mod placement;
mod pocket;
#[cfg(feature = "proxy")]
pub mod proxy;
mod pulse;
#[cfg(feature = "python")]
mod python;
mod recent;
pub mod report;
pub mod residency;
mod retained;
pub mod roles;
pub mod router;
#[cfg(feature = "sim")]
pub mod sim;
mod sync;
mod table;
#[cfg(test)]
mod tests;
pub mod units;
