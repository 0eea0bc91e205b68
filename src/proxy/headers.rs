//! Headers as hyper has them and as `Dispatch` has them.

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::dispatch::Header;
use crate::dispatch::headers::OF_ONE_HOP;

/// The usual size of a request's headers. They may be larger.
const USUAL_BYTES: usize = 512;

/// Names in lower case and values, cut from one buffer.
pub(crate) fn from_map(map: &HeaderMap) -> Vec<Header> {
    let mut buffer = Vec::with_capacity(USUAL_BYTES);
    let mut sizes = Vec::with_capacity(map.len());
    for (name, value) in map {
        buffer.extend_from_slice(name.as_str().as_bytes());
        buffer.extend_from_slice(value.as_bytes());
        sizes.push((name.as_str().len(), value.len()));
    }
    let buffer = Bytes::from(buffer);
    let mut at = 0;
    let mut cut = |len: usize| {
        at += len;
        buffer.slice(at - len..at)
    };
    let cut = sizes
        .into_iter()
        .map(|(name, value)| (cut(name), cut(value)));
    cut.collect()
}

/// Names that the door itself writes. What is not in the standard has its name copied where it is read, once for each request.
static OWN: [HeaderName; 7] = [
    HeaderName::from_static("x-conserve-conversation"),
    HeaderName::from_static("x-conserve-decoder"),
    HeaderName::from_static("x-conserve-prefiller"),
    HeaderName::from_static("x-conserve-route"),
    HeaderName::from_static("x-conserve-turn"),
    HeaderName::from_static("x-request-id"),
    HeaderName::from_static("x-session-id"),
];

fn name_of(bytes: &[u8]) -> Option<HeaderName> {
    let own = OWN.iter().find(|own| own.as_str().as_bytes() == bytes);
    own.cloned().or_else(|| HeaderName::from_bytes(bytes).ok())
}

/// Adds `headers` to a map; what HTTP forbids is left out.
pub(crate) fn to_map(headers: Vec<Header>, mut map: HeaderMap) -> HeaderMap {
    map.reserve(headers.len() + 2);
    for (name, value) in headers {
        if let (Some(name), Ok(value)) = (name_of(&name), HeaderValue::from_maybe_shared(value)) {
            map.append(name, value);
        }
    }
    map
}

/// Removes what concerns one connection only.
pub(crate) fn strip_hop(map: &mut HeaderMap) {
    let named: Vec<HeaderName> = map
        .get_all(http::header::CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|&byte| byte == b','))
        .filter_map(|token| HeaderName::from_bytes(token.trim_ascii()).ok())
        .collect();
    for name in named {
        map.remove(name);
    }
    for name in OF_ONE_HOP {
        map.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_way_there_and_back() {
        let mut map = HeaderMap::new();
        map.append("x-a", HeaderValue::from_static("1"));
        map.append("x-b", HeaderValue::from_bytes(b"\xff\xfe").unwrap());
        map.append("x-a", HeaderValue::from_static(""));
        let list = from_map(&map);
        assert_eq!(list.len(), 3);
        assert_eq!(to_map(list, HeaderMap::new()), map);
    }

    #[test]
    fn what_connection_names_stays_on_its_hop() {
        let mut map = HeaderMap::new();
        map.append("connection", HeaderValue::from_static("close, X-Secret"));
        map.append("x-secret", HeaderValue::from_static("1"));
        map.append("transfer-encoding", HeaderValue::from_static("chunked"));
        map.append("x-kept", HeaderValue::from_static("1"));
        strip_hop(&mut map);
        assert_eq!(
            map.keys().map(HeaderName::as_str).collect::<Vec<_>>(),
            ["x-kept"]
        );
    }
}
