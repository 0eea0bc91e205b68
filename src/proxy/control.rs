//! Everything that is not a turn: passed on to the control plane, a server of its own behind a Unix socket.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HOST, HeaderValue};
use http::{Request, Response};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::headers::strip_hop;
use super::outgoing::{self, Content, Passed};
use super::shared::Shared;
use crate::dispatch::Refusal;

/// How long the control plane may take to begin its answer.
const PATIENCE: Duration = Duration::from_secs(60);

/// The control plane's answer to `request`.
pub(crate) async fn forward(shared: &Arc<Shared>, request: Request<Incoming>) -> Response<Content> {
    let limit = shared.dispatcher.config().max_body_bytes;
    let length = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<usize>().ok());
    if let Some(length) = length.filter(|length| *length > limit) {
        return outgoing::refusal(&shared.dispatcher.too_large(length));
    }
    let mut request = request.map(|incoming| Passed {
        incoming,
        left: limit,
    });
    strip_hop(request.headers_mut());
    // HTTP/2 names the host in the address, HTTP/1.1 in a header.
    let host = request.uri().authority().map(http::uri::Authority::as_str);
    if let Some(Ok(host)) = host.map(HeaderValue::from_str) {
        request.headers_mut().entry(HOST).or_insert(host);
    }
    *request.version_mut() = http::Version::HTTP_11;
    let origin = request.uri().path_and_query().cloned();
    *request.uri_mut() = origin.map_or_else(http::Uri::default, Into::into);
    let (status, why) = match timeout(PATIENCE, ask(shared, request)).await {
        Ok(Ok(response)) => return response,
        Ok(Err(error)) => (502, error.to_string()),
        Err(_) => (504, "no answer in time".to_owned()),
    };
    shared
        .log
        .warn(format!("the control plane does not answer: {why}"));
    outgoing::refusal(&Refusal {
        status,
        code: "control_unavailable",
        param: None,
        message: "the router's control plane does not answer; see its log".to_owned(),
    })
}

async fn ask(shared: &Arc<Shared>, request: Request<Passed>) -> io::Result<Response<Content>> {
    let stream = UnixStream::connect(&shared.config.control).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(connection);
    let mut response = sender
        .send_request(request)
        .await
        .map_err(io::Error::other)?;
    strip_hop(response.headers_mut());
    Ok(response.map(|incoming| {
        Content::Passed(Passed {
            incoming,
            left: usize::MAX,
        })
    }))
}
