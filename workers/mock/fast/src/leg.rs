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
    pub(crate) fn read(body: &[u8], size: usize, streams: bool) -> Self {
        let is_prefill = says_true(body, r#""do_remote_decode":"#);
        Self {
            leg: if is_prefill {
                Leg::Prefill
            } else {
                Leg::Decode
            },
            wants_usage: says_true(body, r#""include_usage":"#),
            prompt_tokens: size / 4,
            ..Self::canned(streams)
        }
    }

    /// What is wrong with asking `role` for it.
    pub(crate) fn may_be_served_by(&self, role: Role) -> Result<(), &'static str> {
        match (self.leg, role) {
            (Leg::Prefill, Role::Decoder) => Err("this decoder was sent a prefill leg"),
            (Leg::Prefill, _) if self.streams => Err("a prefill leg is not streamed"),
            (Leg::Decode, Role::Prefiller) => Err("this prefiller was sent a decode leg"),
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
    memmem::find(body, key.as_bytes()).is_some_and(|at| {
        body[at + key.len()..]
            .trim_ascii_start()
            .starts_with(b"true")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_role_refuses_the_others_part() {
        let prefill = Asked::read(
            br#"{"kv_transfer_params":{"do_remote_decode":true}}"#,
            48,
            false,
        );
        let decode = Asked::read(br#"{"stream_options":{"include_usage":true}}"#, 41, true);
        assert_eq!((prefill.leg, decode.leg), (Leg::Prefill, Leg::Decode));
        assert_eq!((prefill.prompt_tokens, decode.wants_usage), (12, true));
        for (role, prefills, decodes) in [
            (Role::Prefiller, true, false),
            (Role::Decoder, false, true),
            (Role::Both, true, true),
        ] {
            assert_eq!(prefill.may_be_served_by(role).is_ok(), prefills);
            assert_eq!(decode.may_be_served_by(role).is_ok(), decodes);
        }
        let streamed = Asked {
            streams: true,
            ..prefill
        };
        assert!(streamed.may_be_served_by(Role::Both).is_err());
    }
}
