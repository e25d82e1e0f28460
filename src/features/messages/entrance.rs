//! Where sends wait for the limiter on their way into a lane: those it admits go on, the others are answered.

use std::{collections::VecDeque, pin::Pin, time::Duration};

use futures_util::{FutureExt, StreamExt, stream::FuturesUnordered};
use tokio::{sync::mpsc, time::timeout};

use super::Waiting;
use crate::{error::Result, limits::Pass};

/// Sends that are looked at together.
const MOST: usize = 256;
/// Sends whose decision may be awaited; then the others wait in the queue, whose length is bounded.
const UNDECIDED: usize = 4096;

/// So many do not wait for more: a message of a larger batch costs little less.
const ENOUGH: usize = 16;
/// Longest wait when some could go on.
const SETTLING: Duration = Duration::from_millis(1);

type Deciding = Pin<Box<dyn Future<Output = (Result<()>, Waiting)> + Send>>;

/// The entrance of one lane.
pub struct Entrance {
    queue: mpsc::Receiver<(Pass, Waiting)>,
    arrived: Vec<(Pass, Waiting)>,
    undecided: FuturesUnordered<Deciding>,
    /// Whether all senders are gone.
    closed: bool,
}

impl Entrance {
    /// In front of it, `queue`.
    pub fn new(queue: mpsc::Receiver<(Pass, Waiting)>) -> Self {
        Entrance { queue, arrived: Vec::new(), undecided: FuturesUnordered::new(), closed: false }
    }

    /// Waits for at least one that is admitted, and lets in all there are; false once there will be none any more.
    pub async fn wait(&mut self, admitted: &mut VecDeque<Waiting>) -> bool {
        while admitted.is_empty() {
            if self.closed && self.undecided.is_empty() {
                return false;
            }
            tokio::select! {
                n = self.queue.recv_many(&mut self.arrived, MOST), if !self.closed && self.undecided.len() < UNDECIDED => {
                    self.closed = n == 0;
                }
                Some((verdict, one)) = self.undecided.next() => let_in(verdict, one, admitted),
            }
            self.look(admitted);
        }
        true
    }

    /// Lets in all that are admitted by now.
    pub fn look(&mut self, admitted: &mut VecDeque<Waiting>) {
        while self.arrived.len() < MOST && self.undecided.len() < UNDECIDED {
            let Ok(one) = self.queue.try_recv() else { break };
            self.arrived.push(one);
        }
        for (pass, one) in self.arrived.drain(..) {
            self.undecided.push(Box::pin(async { (pass.await, one) }));
        }
        while admitted.len() < MOST
            && let Some(Some((verdict, one))) = self.undecided.next().now_or_never()
        {
            let_in(verdict, one, admitted);
        }
    }

    /// Where there are few, waits a moment for those who are just being decided: one larger batch costs less than two.
    pub async fn settle(&mut self, admitted: &mut VecDeque<Waiting>) {
        let deciding = self.undecided.len();
        if deciding == 0 || admitted.len() >= ENOUGH {
            return;
        }
        let decided = async {
            for _ in 0..deciding {
                let Some((verdict, one)) = self.undecided.next().await else { break };
                let_in(verdict, one, admitted);
                if admitted.len() >= ENOUGH {
                    break;
                }
            }
        };
        timeout(SETTLING, decided).await.ok();
    }
}

fn let_in(verdict: Result<()>, one: Waiting, admitted: &mut VecDeque<Waiting>) {
    match verdict {
        Ok(()) => admitted.push_back(one),
        Err(refusal) => drop(one.answer.send(Err(refusal))),
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::{super::lane::tests::waiting, *};
    use crate::{
        error::Code,
        ids::{Principal, UserId},
    };

    type Decision = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

    #[tokio::test]
    async fn who_is_undecided_holds_nobody_up_and_who_is_refused_is_answered() {
        let (queue, queued) = mpsc::channel(8);
        let mut entrance = Entrance::new(queued);
        let send = |key| waiting(Principal::User(UserId(uuid::Uuid::nil())), 1, Some(key), None);
        let (refused, answered) = {
            let (answer, answered) = tokio::sync::oneshot::channel();
            (Waiting { answer, ..send(2) }, answered)
        };
        let decisions: [(Decision, Waiting); 3] = [
            (Box::pin(pending()), send(1)),
            (Box::pin(ready(Err(Code::RateLimited.into()))), refused),
            (
                Box::pin(async {
                    tokio::task::yield_now().await;
                    Ok(())
                }),
                send(3),
            ),
        ];
        for (decision, one) in decisions {
            assert!(queue.try_send((Pass::Pending(decision), one)).is_ok());
        }
        let mut admitted = VecDeque::new();
        assert!(entrance.wait(&mut admitted).await);
        let keys = admitted.drain(..).map(|one| one.message.draft.key.map(|key| key.as_u128()));
        assert_eq!(keys.collect::<Vec<_>>(), [Some(3)]);
        let refusal = answered.await.expect("an answer").expect_err("a refusal");
        assert_eq!(refusal.code(), Code::RateLimited);

        assert!(queue.try_send((Pass::Admitted, send(4))).is_ok());
        drop(queue);
        assert!(entrance.wait(&mut admitted).await, "what came before the end is let in");
        assert_eq!(admitted.len(), 1);
    }

    #[tokio::test]
    async fn those_being_decided_are_waited_for_but_not_for_long() {
        let (queue, queued) = mpsc::channel(8);
        let mut entrance = Entrance::new(queued);
        let send = |key| waiting(Principal::User(UserId(uuid::Uuid::nil())), 1, Some(key), None);
        let soon: Decision = Box::pin(async {
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            Ok(())
        });
        let never: Decision = Box::pin(pending());
        for (pass, key) in [(Pass::Admitted, 1), (Pass::Pending(soon), 2), (Pass::Pending(never), 3)] {
            assert!(queue.try_send((pass, send(key))).is_ok());
        }
        let mut admitted = VecDeque::new();
        entrance.look(&mut admitted);
        assert_eq!(admitted.len(), 1);
        entrance.settle(&mut admitted).await;
        assert_eq!(admitted.len(), 2);
    }

    #[tokio::test]
    async fn it_ends_with_its_queue() {
        let (queue, queued) = mpsc::channel::<(Pass, Waiting)>(1);
        drop(queue);
        assert!(!Entrance::new(queued).wait(&mut VecDeque::new()).await);
    }
}
