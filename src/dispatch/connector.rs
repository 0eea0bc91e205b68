//! How KV is handed over, as a declared shape: what is added to the prefill request, what is taken from its answer, what is
//! added to the decode request, and what to one without a handoff so that the engine keeps the turn's KV when it is done.
//!
//! Promises: what the prefiller said is passed on byte for byte; a handoff older than the engine's lease is never given out
//! (I10), for the prefiller may have reused the blocks, and a decoder that pulls them answers wrong text without an error.
//! Leaves to others: which workers (`placement`), what to do when there is no handoff (the state machine).

use std::collections::HashMap;
use std::time::Duration;

use bytes::Bytes;

use super::answer::Answer;
use super::refusal::push_json_string;
use crate::units::Timestamp;

/// The member that carries handoff parameters, in requests and in answers.
pub(crate) const MEMBER: &str = "kv_transfer_params";

/// A way of handing KV over.
///
/// Templates are JSON objects in which `{transfer_id}`, `{bootstrap_addr}` and `{engine_id}`, with quotes around them or
/// without, stand for JSON strings.
///
/// ```
/// use conserve::dispatch::Connector;
/// assert_eq!(Connector::from_name("nixl"), Some(Connector::nixl()));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connector {
    shape: Option<Shape>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Shape {
    /// Added to the prefill request, if anything is.
    prefill: Option<String>,
    decode: Decode,
    /// Added to a decode request that brings no handoff, where finished turns are to be kept.
    retain: Option<Bytes>,
}

/// Where the parameters of the decode request come from.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Decode {
    /// The prefiller's answer brings them.
    Answer,
    /// The router makes them up.
    Template(String),
    /// There are none: the engines find the KV by themselves.
    Nothing,
}

/// What a prefiller is called by the engines' own transfer layer, for connectors whose answers do not say it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// The address of its bootstrap server, as `http://host:port`.
    pub bootstrap_addr: String,
    /// The engine's id.
    pub engine_id: String,
}

/// The prefillers' names in the transfer layer, by URL.
pub type Peers = HashMap<String, Peer>;

impl Connector {
    /// vLLM's `NixlConnector`: the prefiller's answer names the blocks, the decoder pulls them.
    ///
    /// vLLM 0.32 keeps a turn that ended only if its request carried parameters; with those of a prefill it is kept for
    /// `kv_lease_duration`. Parameters in which both flags are false would be kept for ever.
    #[must_use]
    pub fn nixl() -> Self {
        const REMOTE_DECODE: &str = r#"{"do_remote_decode":true,"do_remote_prefill":false}"#;
        Self {
            shape: Some(Shape {
                prefill: Some(REMOTE_DECODE.to_owned()),
                decode: Decode::Answer,
                retain: Some(Bytes::from_static(REMOTE_DECODE.as_bytes())),
            }),
        }
    }

    /// vLLM's `ExampleConnector`: the prefiller writes files that the decoder finds by the prompt's tokens. Nothing is said.
    #[must_use]
    pub const fn example() -> Self {
        Self {
            shape: Some(Shape {
                prefill: None,
                decode: Decode::Nothing,
                retain: None,
            }),
        }
    }

    /// vLLM's `MooncakeConnector`: the router invents an id for the transfer and tells it to both sides.
    #[must_use]
    pub fn mooncake() -> Self {
        let prefill =
            r#"{"do_remote_decode":true,"do_remote_prefill":false,"transfer_id":{transfer_id}}"#;
        let decode = r#"{"do_remote_decode":false,"do_remote_prefill":true,"transfer_id":{transfer_id},"remote_bootstrap_addr":{bootstrap_addr},"remote_engine_id":{engine_id}}"#;
        Self {
            shape: Some(Shape {
                prefill: Some(prefill.into()),
                decode: Decode::Template(decode.into()),
                retain: None,
            }),
        }
    }

    /// No handoff: the decoder computes the prompt itself.
    #[must_use]
    pub const fn none() -> Self {
        Self { shape: None }
    }

    /// A shape of one's own: `prefill` and `decode` are templates, empty where nothing is added. Without `decode`, the
    /// prefiller's answer brings the parameters. `retain` is added as it is to decode requests without a handoff.
    #[must_use]
    pub fn declared(
        prefill: impl Into<String>,
        decode: Option<String>,
        retain: Option<String>,
    ) -> Self {
        let bare = |text: String| {
            BLANKS.iter().fold(text, |text, blank| {
                text.replace(&format!("\"{blank}\""), blank)
            })
        };
        let prefill = Some(bare(prefill.into())).filter(|text| !text.is_empty());
        let decode = match decode.map(bare) {
            None => Decode::Answer,
            Some(text) if text.is_empty() => Decode::Nothing,
            Some(text) => Decode::Template(text),
        };
        let retain = retain.map(Bytes::from);
        Self {
            shape: Some(Shape {
                prefill,
                decode,
                retain,
            }),
        }
    }

    /// The connector of that name: `nixl`, `mooncake`, `example` or `none`.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "nixl" => Some(Self::nixl()),
            "mooncake" => Some(Self::mooncake()),
            "example" => Some(Self::example()),
            "none" => Some(Self::none()),
            _ => None,
        }
    }

    /// Whether KV is handed over at all.
    #[must_use]
    pub const fn hands_over(&self) -> bool {
        self.shape.is_some()
    }

    /// Why the templates cannot be used, if they cannot.
    pub(crate) fn fault(&self) -> Option<String> {
        let shape = self.shape.as_ref()?;
        let sample = Blanks {
            transfer_id: "t",
            peer: &Peer::default(),
        };
        let templates = [shape.prefill.as_ref(), shape.template()];
        let filled = templates
            .into_iter()
            .flatten()
            .map(|template| Bytes::from(sample.fill(template)));
        filled.chain(shape.retain.clone()).find_map(|text| {
            super::answer::read(&text, "")
                .err()
                .map(|error| format!("{text:?} is not a JSON object: {error}"))
        })
    }

    /// What a decode request without a handoff carries so that the engine keeps its KV; `None` if nothing makes it.
    pub(crate) fn retain_params(&self) -> Option<&Bytes> {
        self.shape.as_ref()?.retain.as_ref()
    }

    /// What is added to the prefill request, if anything is.
    pub(crate) fn prefill_params(&self, transfer_id: &str, peer: &Peer) -> Option<Bytes> {
        let shape = self.shape.as_ref()?;
        let template = shape.prefill.as_ref()?;
        Some(Blanks { transfer_id, peer }.fill(template).into())
    }

    /// What the decoder is to be told after this answer; `None` when the prefiller did not say where the KV lies.
    pub(crate) fn handoff(
        &self,
        text: &Bytes,
        answer: &Answer,
        transfer_id: &str,
        peer: &Peer,
        now: Timestamp,
    ) -> Option<Handoff> {
        let params = match &self.shape.as_ref()?.decode {
            Decode::Answer => {
                let span = answer.handoff?;
                Some(text.slice(span.start as usize..span.end as usize))
            }
            Decode::Template(template) => Some(Blanks { transfer_id, peer }.fill(template).into()),
            Decode::Nothing => None,
        };
        Some(Handoff {
            params,
            taken_at: now,
        })
    }
}

impl Shape {
    fn template(&self) -> Option<&String> {
        match &self.decode {
            Decode::Answer | Decode::Nothing => None,
            Decode::Template(template) => Some(template),
        }
    }
}

const BLANKS: [&str; 3] = ["{transfer_id}", "{bootstrap_addr}", "{engine_id}"];

struct Blanks<'a> {
    transfer_id: &'a str,
    peer: &'a Peer,
}

impl Blanks<'_> {
    fn fill(&self, template: &str) -> String {
        let [transfer_id, bootstrap_addr, engine_id] = BLANKS;
        let values = [
            (transfer_id, self.transfer_id),
            (bootstrap_addr, &self.peer.bootstrap_addr),
            (engine_id, &self.peer.engine_id),
        ];
        let mut filled = String::with_capacity(template.len() + 64);
        let mut rest = template;
        while let Some(brace) = rest.find('{') {
            let (before, from_brace) = rest.split_at(brace);
            filled.push_str(before);
            if let Some((blank, value)) = values
                .iter()
                .find(|(blank, _)| from_brace.starts_with(blank))
            {
                push_json_string(&mut filled, value);
                rest = &from_brace[blank.len()..];
            } else {
                filled.push('{');
                rest = &from_brace[1..];
            }
        }
        filled.push_str(rest);
        filled
    }
}

/// The lease of a handoff has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stale;

/// KV that lies at a prefiller and can be pulled.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handoff {
    params: Option<Bytes>,
    taken_at: Timestamp,
}

impl Handoff {
    /// What is added to the decode request, if anything is; stale when it is as old as the lease or older.
    pub(crate) fn params(&self, lease: Duration, now: Timestamp) -> Result<Option<&Bytes>, Stale> {
        if self.is_stale(lease, now) {
            Err(Stale)
        } else {
            Ok(self.params.as_ref())
        }
    }

    /// As old as the lease, or older.
    pub(crate) fn is_stale(&self, lease: Duration, now: Timestamp) -> bool {
        now.since(self.taken_at) >= lease
    }

    /// When the prefiller began to keep the KV, at the latest.
    pub(crate) const fn taken_at(&self) -> Timestamp {
        self.taken_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp(seconds * 1_000_000_000)
    }

    fn peer() -> Peer {
        Peer {
            bootstrap_addr: "http://p0:8998".into(),
            engine_id: "e\"0".into(),
        }
    }

    fn text(connector: &Connector, answer: &str) -> Option<Handoff> {
        let bytes = Bytes::from(answer.to_owned());
        let read = super::super::answer::read(&bytes, MEMBER).unwrap();
        connector.handoff(&bytes, &read, "t-1", &peer(), at(10))
    }

    #[test]
    fn nixl_passes_on_what_the_prefiller_said() {
        let nixl = Connector::nixl();
        let asked = nixl.prefill_params("t-1", &peer()).unwrap();
        assert_eq!(
            asked,
            r#"{"do_remote_decode":true,"do_remote_prefill":false}"#
        );
        let handoff = text(&nixl, r#"{"kv_transfer_params":{"remote_port": 5600.0}}"#).unwrap();
        assert_eq!(handoff.params.unwrap(), r#"{"remote_port": 5600.0}"#);
        assert_eq!(text(&nixl, r#"{"kv_transfer_params":null}"#), None);
    }

    #[test]
    fn mooncake_tells_both_sides_the_same_id() {
        let mooncake = Connector::mooncake();
        let asked: serde_json::Value =
            serde_json::from_slice(&mooncake.prefill_params("t-1", &peer()).unwrap()).unwrap();
        let told: serde_json::Value =
            serde_json::from_slice(&text(&mooncake, "{}").unwrap().params.unwrap()).unwrap();
        assert_eq!(asked["transfer_id"], "t-1");
        assert_eq!(told["transfer_id"], "t-1");
        assert_eq!(told["remote_bootstrap_addr"], "http://p0:8998");
        assert_eq!(told["remote_engine_id"], "e\"0", "escaped");
    }

    #[test]
    fn a_handoff_ends_with_its_lease() {
        let handoff = text(&Connector::nixl(), r#"{"kv_transfer_params":{"a":1}}"#).unwrap();
        let lease = Duration::from_secs(25);
        assert!(
            handoff.params(lease, Timestamp(at(35).0 - 1)).is_ok(),
            "one nanosecond left"
        );
        assert_eq!(
            handoff.params(lease, at(35)),
            Err(Stale),
            "equal to the lease"
        );
    }

    #[test]
    fn example_says_nothing_and_hands_over() {
        let example = Connector::example();
        assert_eq!(example.prefill_params("t-1", &peer()), None);
        assert_eq!(text(&example, "{}").unwrap().params, None);
        assert!(example.hands_over());
    }

    #[test]
    fn a_declared_shape_may_quote_its_blanks() {
        let own = Connector::declared(
            r#"{"id":"{transfer_id}","on":true}"#,
            Some(r#"{"id":"{transfer_id}","at":"{bootstrap_addr}"}"#.into()),
            None,
        );
        assert_eq!(own.fault(), None);
        let asked = own.prefill_params("t-1", &peer()).unwrap();
        assert_eq!(asked, r#"{"id":"t-1","on":true}"#);
        let told = text(&own, "{}").unwrap().params.unwrap();
        assert_eq!(told, r#"{"id":"t-1","at":"http://p0:8998"}"#);
        assert_eq!(
            Connector::declared("", Some(String::new()), None),
            Connector::example()
        );
    }

    #[test]
    fn none_hands_nothing_over() {
        assert_eq!(Connector::none().prefill_params("t", &peer()), None);
        assert!(!Connector::none().hands_over());
    }

    #[test]
    fn templates_are_checked_when_declared() {
        for name in ["nixl", "mooncake", "example", "none"] {
            assert_eq!(Connector::from_name(name).unwrap().fault(), None);
        }
        assert!(
            Connector::declared("{\"a\":", None, None)
                .fault()
                .unwrap()
                .contains("not a JSON object")
        );
        assert!(
            Connector::declared("{}", Some("[1]".into()), None)
                .fault()
                .is_some()
        );
        assert!(
            Connector::declared("{}", None, Some("{".into()))
                .fault()
                .is_some()
        );
        assert_eq!(
            Connector::declared(r#"{"x":{"y":{transfer_id}}}"#, None, None).fault(),
            None
        );
    }
}
