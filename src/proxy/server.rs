//! Listens, serves each connection, drains, stops.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use super::bad_http::HEAD_LIMIT_BYTES;
use super::clock::Clock;
use super::config::DoorConfig;
use super::connection::{Connection, Limits, Link};
use super::log::Line;
use super::service;
use super::shared::{Shared, Stage};
use super::stats::Counted;
use crate::dispatch::Dispatcher;

const BACKLOG: u32 = 2_048;
/// Between two looks for connections to workers that were idle for too long.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long accepting rests when no file descriptor is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// How long what is left may take to end.
const LAST_WAIT: Duration = Duration::from_secs(1);

/// A door: listens from the moment it is made, serves from `start` to `stop`.
///
/// Its methods block and are not for async code.
pub struct Door {
    shared: Arc<Shared>,
    address: SocketAddr,
    running: Mutex<Running>,
}

struct Running {
    runtime: Option<Runtime>,
    listener: Option<TcpListener>,
}

impl Door {
    /// Begins to listen.
    ///
    /// # Errors
    /// The address cannot be had, or the threads cannot be started.
    pub fn bind(dispatcher: Dispatcher, config: DoorConfig, clock: Clock) -> io::Result<Self> {
        let threads = match config.threads {
            0 => std::thread::available_parallelism().map_or(1, NonZeroUsize::get),
            threads => threads,
        };
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
            shared: Arc::new(Shared::new(dispatcher, config, clock)),
            address,
            running: Mutex::new(Running {
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
            runtime.spawn(accept(listener, Arc::clone(&self.shared)));
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

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut stopped = pin!(shared.reached(Stage::Stopped));
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = &mut stopped => return,
        };
        match accepted {
            Ok((stream, _)) => {
                tokio::spawn(connection(stream, Arc::clone(&shared)));
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

async fn connection(stream: TcpStream, shared: Arc<Shared>) {
    if stream.set_nodelay(true).is_err() {
        // The client is gone already.
        return;
    }
    let link = Arc::new(Link::default());
    let io = Connection::new(
        stream,
        Arc::clone(&link),
        Limits {
            head: shared.config.body_timeout,
            idle: shared.config.keep_alive,
            stall: shared.config.client_stall_timeout,
        },
    );
    let stopped = shared.reached(Stage::Stopped);
    let serve =
        service_fn(move |request| service::serve(Arc::clone(&shared), Arc::clone(&link), request));
    let mut served = pin!(
        http1::Builder::new()
            .max_header_size(HEAD_LIMIT_BYTES)
            .serve_connection(TokioIo::new(io), serve)
    );
    // An error concerns a client that left or does not speak HTTP; hyper answered what can be answered.
    tokio::select! {
        _ = served.as_mut() => return,
        () = stopped => served.as_mut().graceful_shutdown(),
    }
    let _ = served.await;
}

async fn sweep(shared: Arc<Shared>) {
    let mut ticks = interval(SWEEP_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        shared.pool.sweep();
    }
}
