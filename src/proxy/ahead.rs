//! What was read from a client before anybody asked for it.
//!
//! Promises: bytes are given out in the order in which they came; of a client that sends on and on about `LIMIT` is held.
//! Leaves to others: when to read ahead (`connection`).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::BytesMut;
use tokio::io::{AsyncRead, ReadBuf};

/// How much of the requests behind the one that is answered is read to see whether their client is still there. Of a
/// client that sent more, the rest stays in the socket, and its leaving behind that.
const LIMIT: usize = 1 << 20;

/// Bytes that nobody asked for yet, and whether somebody waits for more.
#[derive(Default)]
pub(crate) struct Ahead {
    bytes: BytesMut,
    /// Whoever reads the connection waits for its socket. If not, it has bytes that it will not look at before it has answered.
    is_awaited: bool,
}

impl Ahead {
    /// Bytes that are to be read again.
    pub(crate) fn put_back(&mut self, bytes: &[u8]) {
        self.bytes = BytesMut::from(bytes);
    }

    /// As `AsyncRead::poll_read`, with what is here before what is in `socket`.
    pub(crate) fn poll_read(
        &mut self,
        socket: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.bytes.is_empty() {
            let read = socket.poll_read(context, buffer);
            self.is_awaited = read.is_pending();
            return read;
        }
        let size = self.bytes.len().min(buffer.remaining());
        buffer.put_slice(&self.bytes.split_to(size));
        if self.bytes.is_empty() {
            self.bytes = BytesMut::new();
        }
        self.is_awaited = false;
        Poll::Ready(Ok(()))
    }

    /// Reads on, unless somebody waits for the socket anyway; an error when the client is gone.
    pub(crate) fn look(
        &mut self,
        socket: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        if self.is_awaited {
            return Ok(());
        }
        self.read_on(socket, context)
    }

    #[cold]
    fn read_on(
        &mut self,
        mut socket: Pin<&mut impl AsyncRead>,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let mut bytes = [0; 4096];
        while self.bytes.len() < LIMIT {
            let mut read = ReadBuf::new(&mut bytes);
            match socket.as_mut().poll_read(context, &mut read)? {
                Poll::Pending => break,
                // As without further requests: who says no more does not wait for an answer either.
                Poll::Ready(()) if read.filled().is_empty() => {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                Poll::Ready(()) => self.bytes.extend_from_slice(read.filled()),
            }
        }
        Ok(())
    }
}
