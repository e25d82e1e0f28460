//! A body that tells how much of it is sent.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

use crate::hooks::{Hook, Hooks};

const PIECE_BYTES: usize = 64 * 1024;

/// Bytes that go out piece by piece.
pub(super) struct Counted {
    rest: Bytes,
    total: u64,
    hooks: Hooks,
}

impl Counted {
    pub(super) fn new(bytes: Bytes, hooks: Hooks) -> Self {
        let total = bytes.len() as u64;
        Self {
            rest: bytes,
            total,
            hooks,
        }
    }
}

impl Body for Counted {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.rest.is_empty() {
            return Poll::Ready(None);
        }
        let length = PIECE_BYTES.min(self.rest.len());
        let piece = self.rest.split_to(length);
        self.hooks.call(&Hook::Transferred {
            bytes: self.total - self.rest.len() as u64,
            of: self.total,
        });
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.rest.len() as u64)
    }
}
