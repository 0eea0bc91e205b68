//! What a worker says is read as hyper's client reads it, whatever it is and however it is cut.

use bytes::{Bytes, BytesMut};
use http::Request;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use memchr::memmem;
use proptest::prelude::*;
use proptest::sample::{self, Index};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::framing::Step;
use super::headers;
use super::http1::HeadReader;
use super::outgoing::Whole;
use crate::dispatch::Header;

/// Status, headers and body of an answer; `None`: it is none, or not all of one.
type Answer = Option<(u16, Vec<Header>, Vec<u8>)>;

/// As the door reads it from a connection that brings these pieces and ends.
fn ours(pieces: &[&[u8]]) -> Answer {
    let (mut reader, mut read, mut found) = (HeadReader::default(), BytesMut::new(), None);
    let mut body = Vec::new();
    for piece in pieces {
        read.extend_from_slice(piece);
        if found.is_none() {
            found = reader.take(&mut read).ok()?;
        }
        let Some(head) = &mut found else {
            continue;
        };
        loop {
            match head.framing.take(&mut read).ok()? {
                Step::Piece(bytes) => body.extend_from_slice(&bytes),
                Step::More => break,
                Step::End => return Some((head.status, head.headers.clone(), body)),
            }
        }
    }
    let head = found.filter(|head| head.framing.ends_with_connection())?;
    Some((head.status, head.headers, body))
}

/// As hyper reads it.
fn hypers(pieces: &[&[u8]]) -> Answer {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("threads are here");
    runtime.block_on(async {
        let (here, there) = duplex(1 << 20);
        let (read, ()) = tokio::join!(ask(here), answer(there, pieces));
        read.ok()
    })
}

async fn ask(socket: DuplexStream) -> Result<(u16, Vec<Header>, Vec<u8>), hyper::Error> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await?;
    let asked = async {
        let mut request = Request::new(Whole::new(Bytes::from_static(b"x")));
        *request.method_mut() = http::Method::POST;
        let (head, body) = sender.send_request(request).await?.into_parts();
        let body = whole(body).await?;
        Ok((head.status.as_u16(), headers::from_map(&head.headers), body))
    };
    tokio::pin!(asked, connection);
    tokio::select! {
        biased;
        answered = &mut asked => answered,
        // Its error reaches whoever asked.
        _ = &mut connection => asked.await,
    }
}

async fn whole(mut body: Incoming) -> Result<Vec<u8>, hyper::Error> {
    use hyper::body::Body;
    let mut whole = Vec::new();
    while let Some(frame) =
        std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
    {
        if let Ok(bytes) = frame?.into_data() {
            whole.extend_from_slice(&bytes);
        }
    }
    Ok(whole)
}

async fn answer(mut socket: DuplexStream, pieces: &[&[u8]]) {
    let mut asked = Vec::new();
    while !asked.ends_with(b"\r\n\r\nx") {
        if socket.read_buf(&mut asked).await.unwrap_or(0) == 0 {
            return;
        }
    }
    for piece in pieces {
        // It may have heard enough.
        let _ = socket.write_all(piece).await;
        tokio::task::yield_now().await;
    }
}

fn some(parts: &'static [&'static str]) -> impl Strategy<Value = &'static str> {
    sample::select(parts)
}

fn wire() -> impl Strategy<Value = Vec<u8>> {
    let start = some(&[
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 429 \r\n",
        "HTTP/1.1 503\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 204 x\r\n",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\n",
    ]);
    let headers = some(&[
        "",
        "X-A: b \r\nx-a:c\r\n",
        "content-type: text/event-stream\r\n",
        "connection: keep-alive, close\r\n",
        "x: \u{e9}\t\n",
    ]);
    let body = some(&[
        "\r\nuntil the end",
        "content-length: 5\r\n\r\nhello",
        "Content-Length: 5,5\r\n\r\nhello and more",
        "content-length: 5\r\ncontent-length: 6\r\n\r\nhello",
        "content-length: 9\r\n\r\nhello",
        "content-length: 0\r\n\r\n",
        "transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n10;a=b\r\n0123456789abcdef\r\n0\r\n\r\n",
        "Transfer-Encoding: Chunked\r\n\r\n0005 \r\nhello\r\n0\r\nx-t: 1\r\n\r\nmore",
        "transfer-encoding: gzip, chunked\r\n\r\n1\r\nh\r\n",
        "transfer-encoding: gzip\r\n\r\nhello",
        "transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    ]);
    // hyper takes a transfer encoding that is not ASCII for none; so does nobody who wrote `chunked` behind it.
    let byte = prop_oneof![0..128_u8, sample::select(&b"\r\n \t:;,0159afx"[..])];
    let edits = proptest::collection::vec((any::<Index>(), 0..3_u8, byte), 0..4);
    (start, headers, body, edits).prop_map(|(start, headers, body, edits)| {
        let mut wire = [start, headers, body].concat().into_bytes();
        for (place, edit, byte) in edits {
            let place = place.index(wire.len());
            match edit {
                0 => wire[place] = byte,
                1 => wire.insert(place, byte),
                _ => drop(wire.remove(place)),
            }
        }
        wire
    })
}

/// Where the door knowingly takes for no answer what hyper takes for one.
fn is_refused_by_us_alone(wire: &[u8]) -> bool {
    // hyper passes over empty lines in front of an answer, `100 Continue` before it or not.
    let text: Vec<u8> = wire.iter().copied().filter(|&byte| byte != b'\r').collect();
    let has_empty_lines = text.starts_with(b"\n") || memmem::find(&text, b"\n\n\n").is_some();
    // It passes over half ends of lines in trailers.
    let text = wire.to_ascii_lowercase();
    let chunked = memmem::find(&text, b"chunked").unwrap_or(text.len());
    let mut behind = text[chunked..].windows(2);
    has_empty_lines || behind.any(|two| two[1] == b'\n' && two[0] != b'\r')
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(2_000), ..ProptestConfig::default() })]

    #[test]
    fn an_answer_is_read_as_hyper_reads_it(
        wire in wire(),
        first in any::<Index>(),
        second in any::<Index>(),
    ) {
        let mut cuts = [first.index(wire.len()), second.index(wire.len())];
        cuts.sort_unstable();
        let pieces = [&wire[..cuts[0]], &wire[cuts[0]..cuts[1]], &wire[cuts[1]..]];
        let (ours, mut hypers) = (ours(&pieces), hypers(&pieces));
        if let (Some(ours), Some(hypers)) = (&ours, &mut hypers) {
            // A map keeps those of one name together.
            let mut headers = ours.1.clone();
            headers.sort();
            hypers.1.sort();
            prop_assert_eq!(&headers, &hypers.1);
            prop_assert_eq!((ours.0, &ours.2), (hypers.0, &hypers.2));
        } else if ours.is_some() || !is_refused_by_us_alone(&wire) {
            prop_assert_eq!(ours, hypers, "{:?}", String::from_utf8_lossy(&wire));
        }
    }
}
