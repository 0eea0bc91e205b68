//! Listens, serves each connection, drains, stops.

use std::future::poll_fn;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Semaphore;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::bad_http::HEAD_LIMIT_BYTES;
use super::clock::Clock;
use super::config::DoorConfig;
use super::connection::{Connection, Limits, Link};
use super::log::Line;
use super::quiet::Quiet;
use super::service;
use super::shared::{Shared, Stage};
use super::socket::Socket;
use super::stats::Counted;
use super::tls;
use crate::dispatch::Dispatcher;

use tokio_rustls::TlsAcceptor;

const BACKLOG: u32 = 2_048;
/// Between two looks for connections to workers that were idle for too long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long accepting rests when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long what is left may take to end.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// What is read from a client at once, at most: a body that comes with one read is never copied, and of a larger one each
/// piece is still in the processor's cache when it is looked at and copied.
const READ_LIMIT_BYTES: usize = 128 << 10;
/// The largest head of an HTTP/2 request, in bytes.
const HEAD_LIST_LIMIT_BYTES: u32 = 64 << 10;
/// Streams of one HTTP/2 connection at once.
const MAX_STREAMS: u32 = 256;
/// Streams that an HTTP/2 client may break off before they are looked at; one more ends its connection.
const MAX_RESET_STREAMS: usize = 64;
/// What of an answer waits in memory for one HTTP/2 client.
const SEND_BUFFER_BYTES: usize = 64 << 10;
/// How much of a request an HTTP/2 client may send ahead.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;
/// Between two looks for HTTP/2 streams whose client takes nothing, at least.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// An HTTP/2 client that does not answer a ping is gone.
const PING_EVERY: Duration = Duration::from_secs(20);
const PONG_WITHIN: Duration = Duration::from_secs(20);

/// A door: listens from the moment it is made, serves from `start` to `stop`.
///
/// Its methods block and are not for async code.
pub struct Door {
    shared: Arc<Shared>,
    address: SocketAddr,
    running: Mutex<Running>,
}

struct Running {
    tls: Option<TlsAcceptor>,
    runtime: Option<Runtime>,
    listener: Option<TcpListener>,
}

impl Door {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address cannot be had, or the threads cannot be started; `InvalidInput`: a file of `tls` or
    /// `worker_authorities` is of no use.
    pub fn bind(dispatcher: Dispatcher, config: DoorConfig, clock: Clock) -> io::Result<Self> {
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            threads => threads,
        };
        let tls = config.tls.as_ref().map(tls::acceptor).transpose()?;
        let to_workers = tls::connector(config.worker_authorities.as_deref())?;
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("conserve-door")
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            listen(&config.host, config.port)?
        };
        let address = listener.local_addr()?;
        Ok(Self {
            shared: Arc::new(Shared::new(dispatcher, config, clock, to_workers)),
            address,
            running: Mutex::new(Running {
                tls,
                runtime: Some(runtime),
                listener: Some(listener),
            }),
        })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Begins to serve. Once only; later calls do nothing.
    pub fn start(&self) {
        let mut running = self.lock();
        let listener = running.listener.take();
        if let (Some(runtime), Some(listener)) = (&running.runtime, listener) {
            runtime.spawn(accept(
                listener,
                running.tls.clone(),
                Arc::clone(&self.shared),
            ));
            runtime.spawn(sweep(Arc::clone(&self.shared)));
        }
    }

    /// Refuses new turns from now on.
    pub fn refuse(&self) {
        self.shared.advance(Stage::Draining);
    }

    /// Refuses new turns, waits at most `limit` for those under way, then ends them with an error; how many had to be.
    pub fn drain(&self, limit: Duration) -> usize {
        self.refuse();
        let Some(runtime) = self.lock().runtime.as_ref().map(|it| it.handle().clone()) else {
            return 0;
        };
        runtime.block_on(async {
            if timeout(limit, self.shared.emptied()).await.is_ok() {
                return 0;
            }
            let ended = self.shared.stats.in_flight();
            self.shared.advance(Stage::Ending);
            // What is left after that has a client that takes nothing.
            let _ = timeout(LAST_WAIT, self.shared.emptied()).await;
            ended
        })
    }

    /// Closes everything. What is under way is ended with an error, if its client takes it at once.
    pub fn stop(&self) {
        self.shared.advance(Stage::Ending);
        let (runtime, listener) = {
            let mut running = self.lock();
            (running.runtime.take(), running.listener.take())
        };
        drop(listener);
        if let Some(runtime) = runtime {
            runtime.block_on(async {
                let _ = timeout(LAST_WAIT, self.shared.emptied()).await;
            });
            self.shared.advance(Stage::Stopped);
            runtime.shutdown_timeout(LAST_WAIT);
        }
        self.shared.pool.clear();
        self.shared.log.close();
    }

    /// Requests being served.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.shared.stats.in_flight()
    }

    /// What was counted so far.
    #[must_use]
    pub fn counted(&self) -> Counted {
        self.shared.stats.read()
    }

    /// The next lines for the log, maybe none within `limit`; `None` once the door is stopped and all were given.
    #[must_use]
    pub fn lines(&self, limit: Duration) -> Option<Vec<Line>> {
        self.shared.log.wait(limit)
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn listen(host: &str, port: u16) -> io::Result<TcpListener> {
    let mut failed = io::Error::from(io::ErrorKind::AddrNotAvailable);
    for address in (host, port).to_socket_addrs()? {
        let socket = if address.is_ipv6() {
            TcpSocket::new_v6()?
        } else {
            TcpSocket::new_v4()?
        };
        socket.set_reuseaddr(true)?;
        match socket.bind(address).and_then(|()| socket.listen(BACKLOG)) {
            Ok(listener) => return Ok(listener),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let places = match shared.config.max_connections {
        0 => Semaphore::MAX_PERMITS,
        places => places.min(Semaphore::MAX_PERMITS),
    };
    let places = Arc::new(Semaphore::new(places));
    let mut stopped = pin!(shared.reached(Stage::Stopped));
    loop {
        let next = async {
            // It is never closed, so there is a place in the end.
            let place = Arc::clone(&places).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            next = next => next,
            () = &mut stopped => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let (tls, shared) = (tls.clone(), Arc::clone(&shared));
                tokio::spawn(async move {
                    connection(stream, tls, shared).await;
                    drop(place);
                });
            }
            Err(error) => {
                shared
                    .log
                    .warn(format!("cannot accept a connection: {error}"));
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let limit = shared.config.body_timeout;
    // A client that is gone already, or that does not speak TLS, or too slowly: nobody to tell.
    let Ok(Ok(socket)) = timeout(limit, secured(stream, tls)).await else {
        return;
    };
    let link = Arc::new(Link::default());
    let mut io = Connection::new(
        socket,
        Arc::clone(&link),
        Limits {
            head: limit,
            idle: shared.config.keep_alive,
            stall: shared.config.client_stall_timeout,
        },
    );
    let mut stopped = pin!(shared.reached(Stage::Stopped));
    let is_http2 = tokio::select! {
        told = io.speaks_http2() => match told {
            Ok(is_http2) => is_http2,
            Err(_) => return,
        },
        () = stopped.as_mut() => return,
    };
    // Boxed, so that a connection that says nothing keeps no room for what it may come to say.
    if is_http2 {
        Box::pin(serve_http2(io, link, shared)).await;
    } else {
        Box::pin(serve_http1(io, link, shared)).await;
    }
}

// In both, an error concerns a client that left or does not speak HTTP; hyper answered what can be answered.

async fn serve_http1(io: Connection, link: Arc<Link>, shared: Arc<Shared>) {
    let mut stopped = pin!(shared.reached(Stage::Stopped));
    let serve =
        service_fn(move |request| service::serve(Arc::clone(&shared), Arc::clone(&link), request));
    let mut served = pin!(
        http1::Builder::new()
            .max_header_size(HEAD_LIMIT_BYTES)
            .max_buf_size(READ_LIMIT_BYTES)
            .serve_connection(TokioIo::new(io), serve)
    );
    let (mut of_served, mut of_stopped) = (Quiet::default(), Quiet::default());
    let is_served = poll_fn(|context| {
        let polled = of_served.poll(context, |context| served.as_mut().poll(context));
        if polled.is_ready() {
            return Poll::Ready(true);
        }
        let polled = of_stopped.poll(context, |context| stopped.as_mut().poll(context));
        polled.map(|()| false)
    });
    if is_served.await {
        return;
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}

async fn serve_http2(io: Connection, link: Arc<Link>, shared: Arc<Shared>) {
    let mut stopped = pin!(shared.reached(Stage::Stopped));
    let (stall, of_connection) = (shared.config.client_stall_timeout, Arc::clone(&link));
    let serve =
        service_fn(move |request| service::serve(Arc::clone(&shared), Arc::clone(&link), request));
    let mut served = pin!(http2_builder().serve_connection(TokioIo::new(io), serve));
    let mut looks = interval((stall / 4).max(LOOK_EVERY));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = served.as_mut() => return,
            _ = looks.tick() => of_connection.drop_stale(stall),
            () = stopped.as_mut() => break,
        }
    }
    served.as_mut().graceful_shutdown();
    let _ = served.await;
}

async fn secured(stream: TcpStream, tls: Option<TlsAcceptor>) -> io::Result<Socket> {
    stream.set_nodelay(true)?;
    Ok(match tls {
        None => Socket::Plain(stream),
        Some(tls) => Socket::Tls(Box::new(tls.accept(stream).await?.into())),
    })
}

/// HTTP/2 within bounds: what one client may open, send and break off; pings and settings are bounded by the library,
/// which answers one before it reads the next.
fn http2_builder() -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(MAX_STREAMS)
        .max_header_list_size(HEAD_LIST_LIMIT_BYTES)
        .max_pending_accept_reset_streams(MAX_RESET_STREAMS)
        .max_local_error_reset_streams(MAX_RESET_STREAMS)
        .max_send_buf_size(SEND_BUFFER_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PONG_WITHIN);
    builder
}

async fn sweep(shared: Arc<Shared>) {
    let mut ticks = interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.pool.sweep();
    }
}
