//! How sends come into a lane: in order, those who are refused left out.

use std::{collections::VecDeque, pin::Pin};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::sync::mpsc;

use super::PendingSend;
use crate::error::Result;

/// Sends that are looked at together.
const MOST: usize = 256;
/// Sends whose decision may be awaited here; then the others wait in the queue, whose length is bounded.
const UNDECIDED: usize = 4096;

type Deciding = Pin<Box<dyn Future<Output = (Result<()>, PendingSend)> + Send>>;

/// The entrance of one lane.
pub struct Entrance {
    queue: mpsc::Receiver<PendingSend>,
    arrived: Vec<PendingSend>,
    /// Those who have to wait for the limiter.
    undecided: FuturesUnordered<Deciding>,
    /// Whether all senders are gone.
    closed: bool,
}

impl Entrance {
    /// In front of it, `queue`.
    pub fn new(queue: mpsc::Receiver<PendingSend>) -> Self {
        Entrance {
            queue,
            arrived: Vec::new(),
            undecided: FuturesUnordered::new(),
            closed: false,
        }
    }

    /// Waits for at least one, and lets in all there are, undecided ones too if it is `open` to them; false once there
    /// will be none any more.
    pub async fn wait(&mut self, inside: &mut VecDeque<PendingSend>, open: bool) -> bool {
        while inside.is_empty() {
            if self.closed && self.undecided.is_empty() {
                return false;
            }
            tokio::select! {
                n = self.queue.recv_many(&mut self.arrived, MOST), if !self.closed && self.undecided.len() < UNDECIDED => {
                    self.closed = n == 0;
                }
                Some((verdict, one)) = self.undecided.next() => let_in(verdict, one, inside),
            }
            self.look(inside, open);
        }
        true
    }

    /// Lets in all there are by now; whoever is inside and has been refused meanwhile has to go.
    pub fn look(&mut self, inside: &mut VecDeque<PendingSend>, open: bool) {
        while self.arrived.len() < MOST && self.undecided.len() < UNDECIDED {
            let Ok(one) = self.queue.try_recv() else {
                break;
            };
            self.arrived.push(one);
        }
        inside.extend(self.arrived.drain(..));
        for _ in 0..inside.len() {
            let Some(mut one) = inside.pop_front() else {
                break;
            };
            match (&mut one.pass).now_or_never() {
                Some(verdict) => let_in(verdict, one, inside),
                None if open => inside.push_back(one),
                None => self.put_back(one),
            }
        }
        while inside.len() < MOST
            && let Some(Some((verdict, one))) = self.undecided.next().now_or_never()
        {
            let_in(verdict, one, inside);
        }
    }

    /// One that has to wait for the limiter.
    pub fn put_back(&mut self, mut one: PendingSend) {
        self.undecided
            .push(Box::pin(async { ((&mut one.pass).await, one) }));
    }
}

fn let_in(verdict: Result<()>, one: PendingSend, inside: &mut VecDeque<PendingSend>) {
    match verdict {
        Ok(()) => inside.push_back(one),
        Err(refusal) => drop(one.answer.send(Err(refusal))),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::{
        super::batch::tests::{decided_by, waiting},
        *,
    };
    use crate::{
        error::Code,
        ids::{Principal, UserId},
    };

    fn send(key: u128) -> PendingSend {
        waiting(
            Principal::User(UserId(uuid::Uuid::nil())),
            1,
            Some(key),
            None,
        )
    }

    fn keys(inside: &mut VecDeque<PendingSend>) -> Vec<u128> {
        inside
            .drain(..)
            .filter_map(|one| one.message.draft.key)
            .map(|key| key.as_u128())
            .collect()
    }

    #[tokio::test]
    async fn who_is_undecided_holds_nobody_up_and_who_is_refused_is_answered() {
        let (queue, queued) = mpsc::channel(8);
        let mut entrance = Entrance::new(queued);
        let (refused, answered) = {
            let (answer, answered) = tokio::sync::oneshot::channel();
            (
                PendingSend {
                    answer,
                    ..decided_by(ready(Err(Code::RateLimited.into())), send(2))
                },
                answered,
            )
        };
        let soon = async {
            tokio::task::yield_now().await;
            Ok(())
        };
        for one in [
            decided_by(pending(), send(1)),
            refused,
            decided_by(soon, send(3)),
        ] {
            assert!(queue.try_send(one).is_ok());
        }
        let mut inside = VecDeque::new();
        assert!(entrance.wait(&mut inside, false).await);
        assert_eq!(keys(&mut inside), [3]);
        let refusal = answered.await.expect("an answer").expect_err("a refusal");
        assert_eq!(refusal.code(), Code::RateLimited);

        assert!(queue.try_send(send(4)).is_ok());
        drop(queue);
        assert!(
            entrance.wait(&mut inside, false).await,
            "what came before the end is let in"
        );
        assert_eq!(keys(&mut inside), [4]);
    }

    #[tokio::test]
    async fn an_open_one_lets_in_who_is_undecided_and_puts_out_who_is_refused_inside() {
        let (queue, queued) = mpsc::channel(8);
        let mut entrance = Entrance::new(queued);
        let (refuse, refusal) = tokio::sync::oneshot::channel::<()>();
        let later = async {
            refusal.await.ok();
            Err(Code::RateLimited.into())
        };
        for one in [
            send(1),
            decided_by(later, send(2)),
            decided_by(pending(), send(3)),
        ] {
            assert!(queue.try_send(one).is_ok());
        }
        let mut inside = VecDeque::new();
        assert!(entrance.wait(&mut inside, true).await);
        assert_eq!(inside.len(), 3);
        refuse.send(()).expect("it waits");
        entrance.look(&mut inside, true);
        assert_eq!(inside.len(), 2);
        entrance.look(&mut inside, false);
        assert_eq!(keys(&mut inside), [1]);
    }

    #[tokio::test]
    async fn it_ends_with_its_queue() {
        let (queue, queued) = mpsc::channel(1);
        drop(queue);
        assert!(!Entrance::new(queued).wait(&mut VecDeque::new(), true).await);
    }
}
