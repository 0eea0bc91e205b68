//! Answers to what is not a request: hyper has its own, without a word; these are error objects.

use std::time::Duration;

use bytes::Bytes;

use crate::dispatch::Refusal;

/// The largest head of a request, in bytes.
pub(crate) const HEAD_LIMIT_BYTES: usize = 64 << 10;

/// What to say instead of `answer`, if that is hyper's own answer to a head that it cannot read. It is told by its headers:
/// an answer of a worker or of the control plane has more.
pub(crate) fn instead_of(answer: &[u8]) -> Option<Bytes> {
    let rest = answer.strip_prefix(b"HTTP/1.1 4")?;
    let status = rest.get(..2)?;
    let has_only_its_own = rest
        .split(|&byte| byte == b'\n')
        .skip(1)
        .map(<[u8]>::trim_ascii)
        .all(|line| {
            line.is_empty()
                || line == b"content-length: 0"
                || line == b"connection: close"
                || line.starts_with(b"date: ")
        });
    if !has_only_its_own {
        return None;
    }
    let refused = match status {
        b"00" => refusal(
            400,
            "invalid_http",
            "the request cannot be read as HTTP/1.1; see the client's HTTP library".to_owned(),
        ),
        b"14" | b"31" => refusal(
            431,
            "headers_too_large",
            format!(
                "the request's head is larger than {HEAD_LIMIT_BYTES} bytes; send shorter headers"
            ),
        ),
        _ => return None,
    };
    Some(whole(&refused))
}

/// The answer to a head that did not arrive within `limit`.
pub(crate) fn late(limit: Duration) -> Bytes {
    let text = format!(
        "the request's head did not arrive within {} s; send it again",
        limit.as_secs_f64()
    );
    whole(&refusal(408, "request_timeout", text))
}

fn refusal(status: u16, code: &'static str, message: String) -> Refusal {
    Refusal {
        status,
        code,
        param: None,
        message,
    }
}

fn whole(refused: &Refusal) -> Bytes {
    let reason = match refused.status {
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        _ => "Bad Request",
    };
    let body = refused.body();
    let mut answer = format!(
        "HTTP/1.1 {} {reason}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        refused.status,
        body.len()
    )
    .into_bytes();
    answer.extend_from_slice(&body);
    answer.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hypers_own_words_are_replaced() {
        let own = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\
            date: Mon, 30 Nov 2026 03:00:00 GMT\r\n\r\n";
        let said = instead_of(own).unwrap();
        assert!(said.starts_with(b"HTTP/1.1 431 "));
        assert!(String::from_utf8_lossy(&said).contains("headers_too_large"));
        for other in [
            &b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"[..],
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\nx-request-id: r\r\n\r\n",
            b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            b"HTTP/1.1 4",
            b"",
        ] {
            assert_eq!(instead_of(other), None);
        }
    }
}
