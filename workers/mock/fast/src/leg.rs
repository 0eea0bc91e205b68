//! What a request asks of a worker that has a role: the prefiller's part of a first turn, or an answer.

use std::str::FromStr;

use memchr::memmem;

use crate::answer;
use crate::spec::Spec;

/// Which requests it serves.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Role {
    /// All of them, with one canned answer.
    Any,
    Prefiller,
    Decoder,
    Both,
}

impl FromStr for Role {
    type Err = ();

    fn from_str(word: &str) -> std::result::Result<Self, ()> {
        match word {
            "any" => Ok(Self::Any),
            "prefiller" => Ok(Self::Prefiller),
            "decoder" => Ok(Self::Decoder),
            "both" => Ok(Self::Both),
            _ => Err(()),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Leg {
    Prefill,
    Decode,
    /// An answer whose KV is to be kept, and which says where.
    Keep,
}

/// What the request wants, and what was found about it.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) leg: Leg,
    pub(crate) streams: bool,
    pub(crate) wants_usage: bool,
    pub(crate) prompt_tokens: usize,
    pub(crate) pulled_tokens: usize,
    /// Its parameters were older than the lease.
    pub(crate) is_stale: bool,
}

impl Asked {
    /// Of a worker without a role.
    pub(crate) fn canned(streams: bool) -> Self {
        Self {
            leg: Leg::Decode,
            streams,
            wants_usage: false,
            prompt_tokens: 0,
            pulled_tokens: 0,
            is_stale: false,
        }
    }

    /// From what was kept of a body of `size` bytes. A token is four of them.
    ///
    /// An engine does the same for a prefill and for an answer whose KV is to be kept: it is the role that tells them apart,
    /// and of a worker with both roles the one token of a prefill.
    pub(crate) fn read(body: &[u8], size: usize, streams: bool, role: Role) -> Self {
        let keeps = says_true(body, r#""do_remote_decode":"#);
        let is_prefill = match role {
            Role::Any | Role::Decoder => false,
            Role::Prefiller => keeps,
            Role::Both => keeps && !streams && says(body, r#""max_tokens":"#, b"1"),
        };
        Self {
            leg: match (keeps, is_prefill) {
                (false, _) => Leg::Decode,
                (true, true) => Leg::Prefill,
                (true, false) => Leg::Keep,
            },
            wants_usage: says_true(body, r#""include_usage":"#),
            prompt_tokens: size / 4,
            ..Self::canned(streams)
        }
    }

    /// What is wrong with asking `role` for it.
    pub(crate) fn may_be_served_by(&self, role: Role) -> Result<(), &'static str> {
        match (self.leg, role) {
            (Leg::Prefill, _) if self.streams => Err("a prefill leg is not streamed"),
            (Leg::Decode | Leg::Keep, Role::Prefiller) => {
                Err("this prefiller was sent a decode leg")
            }
            _ => Ok(()),
        }
    }

    /// What the text begins with: whose it is, or that it is nobody's.
    pub(crate) fn first_text<'a>(&self, spec: &'a Spec) -> &'a str {
        match (self.is_stale, &*spec.echo) {
            (true, _) => "stale",
            (false, "") => answer::TOKEN,
            (false, echo) => echo,
        }
    }
}

/// Whether the value after `key`, colon included, is `true`.
pub(crate) fn says_true(body: &[u8], key: &str) -> bool {
    says(body, key, b"true")
}

/// Whether the value after `key`, colon included, is the number or word `value`.
fn says(body: &[u8], key: &str, value: &[u8]) -> bool {
    memmem::find(body, key.as_bytes()).is_some_and(|at| {
        let after = body[at + key.len()..].trim_ascii_start();
        after
            .strip_prefix(value)
            .is_some_and(|rest| !rest.first().is_some_and(u8::is_ascii_alphanumeric))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: &str = r#""kv_transfer_params":{"do_remote_decode":true}"#;

    fn asked(members: &str, role: Role, streams: bool) -> Asked {
        Asked::read(format!("{{{members}}}").as_bytes(), 48, streams, role)
    }

    #[test]
    fn each_role_refuses_the_others_part() {
        let answer = r#""stream_options":{"include_usage":true}"#;
        for (role, decodes) in [
            (Role::Prefiller, false),
            (Role::Decoder, true),
            (Role::Both, true),
        ] {
            let decode = asked(answer, role, true);
            assert_eq!(decode.leg, Leg::Decode);
            assert_eq!((decode.prompt_tokens, decode.wants_usage), (12, true));
            assert_eq!(decode.may_be_served_by(role).is_ok(), decodes);
        }
        let streamed = asked(KEEP, Role::Prefiller, true);
        assert!(streamed.may_be_served_by(Role::Prefiller).is_err());
    }

    #[test]
    fn an_answer_that_is_to_be_kept_is_no_prefill() {
        let one = format!(r#""max_tokens":1,{KEEP}"#);
        let ten = format!(r#""max_tokens":10,{KEEP}"#);
        for (members, role, streams, leg) in [
            (&one, Role::Prefiller, false, Leg::Prefill),
            (&one, Role::Both, false, Leg::Prefill),
            (&one, Role::Both, true, Leg::Keep),
            (&one, Role::Decoder, false, Leg::Keep),
            (&ten, Role::Both, false, Leg::Keep),
            (&ten, Role::Decoder, true, Leg::Keep),
        ] {
            let read = asked(members, role, streams);
            assert_eq!(read.leg, leg, "{members}");
            assert!(read.may_be_served_by(role).is_ok(), "{members}");
        }
    }
}
