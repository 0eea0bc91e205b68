//! Which headers cross the router, in both directions.
//!
//! Promises: headers of one hop stay on their hop, those that `Connection` names too; the client's credentials reach a
//! worker only when the operator said so; all others pass as they came, in their order.
//! Leaves to others: `content-length` and `host`, which the HTTP library of a door writes from what it sends.

use bytes::Bytes;

use super::config::DispatchConfig;

/// One header: name in lower case, value.
pub type Header = (Bytes, Bytes);

/// Headers that concern one connection.
pub(crate) const OF_ONE_HOP: [&str; 10] = [
    "connection",
    "expect",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Headers that a door writes itself.
const OF_THE_DOOR: [&str; 2] = ["content-length", "host"];

/// The header that names a session to vLLM.
const SESSION: &str = "x-session-id";

/// Headers in which clients show who they are.
const CREDENTIALS: [&str; 2] = ["authorization", "x-api-key"];

/// The value of the first header of that name.
pub(crate) fn get<'a>(headers: &'a [Header], name: &str) -> Option<&'a Bytes> {
    headers
        .iter()
        .find(|(found, _)| is(found, name))
        .map(|(_, value)| value)
}

/// Who the caller says they are: the value that scopes their conversations (I9).
pub(crate) fn credential(headers: &[Header]) -> Option<&[u8]> {
    CREDENTIALS
        .iter()
        .find_map(|name| get(headers, name))
        .map(|value| &**value)
}

/// The headers of a request to a worker. The `session` is the conversation's key: an engine names it in its KV events.
pub(crate) fn to_worker(
    headers: &[Header],
    config: &DispatchConfig,
    request_id: &Bytes,
    session: &Bytes,
) -> Vec<Header> {
    let named = named_by_connection(headers);
    let mut sent = Vec::with_capacity(headers.len() + 4);
    let passed = headers.iter().filter(|(name, _)| {
        let is_credential = CREDENTIALS.iter().any(|credential| is(name, credential));
        !(is_of_one_hop(name, &named)
            || (is_credential && !config.forward_authorization)
            || is(name, "accept-encoding")
            || is(name, "x-request-id")
            || is(name, SESSION))
    });
    sent.extend(passed.cloned());
    sent.push(header("x-request-id", request_id.clone()));
    sent.push((Bytes::from_static(SESSION.as_bytes()), session.clone()));
    // What is encoded cannot be read on its way: tokens, usage and errors would go unseen.
    sent.push(header("accept-encoding", Bytes::from_static(b"identity")));
    if let Some(key) = &config.worker_key {
        sent.push(header(
            "authorization",
            Bytes::from(format!("Bearer {}", key.expose())),
        ));
    }
    sent
}

/// The headers of an answer to the client: the worker's and our own.
pub(crate) fn to_client(headers: &[Header], own: Vec<Header>) -> Vec<Header> {
    let named = named_by_connection(headers);
    let mut sent = Vec::with_capacity(headers.len() + own.len());
    let passed = headers.iter().filter(|(name, _)| {
        let is_ours = own.iter().any(|(ours, _)| is(ours, name));
        !(is_of_one_hop(name, &named) || is(name, "date") || is(name, "server") || is_ours)
    });
    sent.extend(passed.cloned());
    sent.extend(own);
    sent
}

/// The content type without its parameters.
pub(crate) fn is_event_stream(headers: &[Header]) -> bool {
    let value = get(headers, "content-type").map_or(&b""[..], |value| &**value);
    let essence = value.split(|&byte| byte == b';').next().unwrap_or_default();
    essence
        .trim_ascii()
        .eq_ignore_ascii_case(b"text/event-stream")
}

/// Whether the body is packed in a way that the router does not read.
pub(crate) fn is_encoded(headers: &[Header]) -> bool {
    get(headers, "content-encoding").is_some_and(|value| {
        !value.trim_ascii().is_empty() && !value.trim_ascii().eq_ignore_ascii_case(b"identity")
    })
}

pub(crate) fn header(name: &'static str, value: impl Into<Bytes>) -> Header {
    (Bytes::from_static(name.as_bytes()), value.into())
}

/// Most names differ in length, which costs no call to find out.
#[inline]
fn is(found: &[u8], name: impl AsRef<[u8]>) -> bool {
    let name = name.as_ref();
    found.len() == name.len() && found.eq_ignore_ascii_case(name)
}

fn is_of_one_hop(name: &Bytes, named: &[Bytes]) -> bool {
    let may_be = name.len() < 64 && HOP_LENGTHS >> name.len() & 1 == 1;
    may_be
        && OF_ONE_HOP
            .iter()
            .chain(&OF_THE_DOOR)
            .any(|hop| is(name, hop))
        || named.iter().any(|other| is(other, name))
}

/// A bit for the length of each name that stays on its hop: most others are told by that.
const HOP_LENGTHS: u64 = lengths(&OF_ONE_HOP) | lengths(&OF_THE_DOOR);

const fn lengths(names: &[&str]) -> u64 {
    let (mut bits, mut at) = (0, 0);
    while at < names.len() {
        bits |= 1 << names[at].len();
        at += 1;
    }
    bits
}

fn named_by_connection(headers: &[Header]) -> Vec<Bytes> {
    let mut named = Vec::new();
    for (_, value) in headers.iter().filter(|(name, _)| is(name, "connection")) {
        for token in value
            .split(|&byte| byte == b',')
            .map(<[u8]>::trim_ascii)
            .filter(|token| !token.is_empty())
        {
            named.push(value.slice_ref(token));
        }
    }
    named
}

#[cfg(test)]
mod tests {
    use super::super::config::Secret;
    use super::*;

    fn list(pairs: &[(&str, &str)]) -> Vec<Header> {
        pairs
            .iter()
            .map(|(name, value)| {
                (
                    Bytes::from((*name).to_owned()),
                    Bytes::from((*value).to_owned()),
                )
            })
            .collect()
    }

    fn text(headers: &[Header]) -> Vec<String> {
        let text = |bytes: &Bytes| String::from_utf8_lossy(bytes).into_owned();
        headers
            .iter()
            .map(|(name, value)| format!("{}: {}", text(name), text(value)))
            .collect()
    }

    #[test]
    fn a_request_keeps_what_is_not_of_one_hop() {
        let client = list(&[
            ("host", "router"),
            ("connection", "keep-alive, X-Secret-Hop"),
            ("x-secret-hop", "1"),
            ("authorization", "Bearer sk-client"),
            ("x-api-key", "sk-client"),
            ("accept-encoding", "gzip"),
            ("content-length", "9"),
            ("traceparent", "00-1-2-03"),
            ("x-session-id", "s"),
            ("x-custom", "a"),
            ("x-custom", "b"),
        ]);
        let id = Bytes::from_static(b"r-1");
        let session = Bytes::from_static(b"00ff");
        let sent = to_worker(&client, &DispatchConfig::default(), &id, &session);
        let kept = ["traceparent: 00-1-2-03", "x-custom: a", "x-custom: b"];
        assert_eq!(
            text(&sent),
            [
                &kept[..],
                &[
                    "x-request-id: r-1",
                    "x-session-id: 00ff",
                    "accept-encoding: identity"
                ]
            ]
            .concat()
        );

        let forward = DispatchConfig {
            forward_authorization: true,
            ..DispatchConfig::default()
        };
        assert!(
            text(&to_worker(&client, &forward, &id, &session))
                .contains(&"authorization: Bearer sk-client".to_owned())
        );
        let keyed = DispatchConfig {
            worker_key: Some(Secret::new("sk-w")),
            ..DispatchConfig::default()
        };
        let sent = text(&to_worker(&client, &keyed, &id, &session));
        assert!(
            sent.contains(&"authorization: Bearer sk-w".to_owned())
                && !sent.concat().contains("sk-client")
        );
    }

    #[test]
    fn an_answer_keeps_what_is_not_of_one_hop() {
        let worker = list(&[
            ("transfer-encoding", "chunked"),
            ("content-encoding", "gzip"),
            ("retry-after", "7"),
            ("server", "uvicorn"),
            ("x-conserve-turn", "a lie"),
        ]);
        let sent = to_client(&worker, list(&[("x-conserve-turn", "2")]));
        assert_eq!(
            text(&sent),
            [
                "content-encoding: gzip",
                "retry-after: 7",
                "x-conserve-turn: 2"
            ]
        );
    }

    #[test]
    fn types_and_encodings_are_told_with_their_parameters() {
        assert!(is_event_stream(&list(&[(
            "content-type",
            "Text/Event-Stream; charset=utf-8"
        )])));
        assert!(!is_event_stream(&list(&[(
            "content-type",
            "text/event-streams"
        )])));
        assert!(is_encoded(&list(&[("content-encoding", "gzip")])));
        assert!(!is_encoded(&list(&[("content-encoding", "identity")])));
    }
}
