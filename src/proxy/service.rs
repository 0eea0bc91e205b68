//! What is done with each request: a turn is served here, everything else by the control plane.

use std::io;
use std::sync::Arc;

use http::header::{CONNECTION, HeaderValue, TRANSFER_ENCODING};
use http::{Method, Request, Response, Version};
use hyper::body::Incoming;

use super::connection::{Link, Serving};
use super::control;
use super::driver::Drive;
use super::headers;
use super::intake::{self, Unread};
use super::outgoing::{self, Content, Outgoing, draining};
use super::shared::Shared;
use crate::dispatch::{Endpoint, Refusal};

/// Serves one request; an error closes the connection.
pub(crate) async fn serve(
    shared: Arc<Shared>,
    link: Arc<Link>,
    request: Request<Incoming>,
) -> io::Result<Response<Outgoing>> {
    let serving = Serving::new(&link);
    let shelf = (request.version() == Version::HTTP_2).then(|| Arc::clone(link.shelf()));
    // hyper takes a request that has a length and is chunked for chunked, as it may; whoever stands in front may have gone
    // by the length. What follows such a request is not to be trusted, and which one it was cannot be told any more.
    let is_chunked = request.headers().contains_key(TRANSFER_ENCODING);
    // Boxed, so that a connection without a request, of which there are many, keeps no room for one.
    let mut response = match Endpoint::from_path(request.uri().path()) {
        Some(route) if request.method() == Method::POST => {
            Box::pin(turn(shared, link, &serving, route, request)).await?
        }
        _ => Box::pin(control::forward(&shared, request)).await,
    };
    if is_chunked {
        close_after(&mut response);
    }
    Ok(response.map(|content| content.of(serving, shelf.as_ref())))
}

async fn turn(
    shared: Arc<Shared>,
    link: Arc<Link>,
    serving: &Serving,
    route: Endpoint,
    request: Request<Incoming>,
) -> io::Result<Response<Content>> {
    let (head, mut incoming) = request.into_parts();
    if shared.is_draining() {
        return Ok(refuse(&shared, route, &draining(), incoming, serving));
    }
    let mut arriving = Arriving {
        shared: &shared,
        route,
        is_over: false,
    };
    let read = intake::read(&shared, &head.headers, &mut incoming).await;
    arriving.is_over = !matches!(read, Err(Unread::Gone));
    drop(arriving);
    let (body, arrival) = match read {
        Ok(read) => read,
        Err(Unread::Refused(refused)) => {
            return Ok(refuse(&shared, route, &refused, incoming, serving));
        }
        Err(Unread::Gone) => return Err(io::ErrorKind::UnexpectedEof.into()),
    };
    drop(incoming);
    serving.answers();
    let mut map = head.headers;
    let sent = headers::from_map(&map);
    map.clear();
    let now = shared.clock.now();
    let dispatch = shared
        .dispatcher
        .open_arrived(route, sent, body, arrival, now);
    let drive = Drive::new(shared, Box::new(dispatch), route, link, map);
    Ok(drive.run().await)
}

/// Answers before the body was read; then lets the client finish sending, so that it sees the answer.
fn refuse(
    shared: &Arc<Shared>,
    route: Endpoint,
    refused: &Refusal,
    incoming: Incoming,
    serving: &Serving,
) -> Response<Content> {
    shared.stats.answered(route, refused.status);
    let still_reading = serving.again();
    tokio::spawn(async move {
        intake::linger(incoming).await;
        drop(still_reading);
    });
    let mut response = outgoing::refusal(refused);
    close_after(&mut response);
    response
}

fn close_after(response: &mut Response<Content>) {
    response
        .headers_mut()
        .insert(CONNECTION, HeaderValue::from_static("close"));
}

/// A request whose body is on its way. Dropped before it is there: the client left.
struct Arriving<'a> {
    shared: &'a Shared,
    route: Endpoint,
    is_over: bool,
}

impl Drop for Arriving<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.stats.answered(self.route, 499);
        }
    }
}
