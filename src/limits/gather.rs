//! Decisions that are asked for while another is under way are gathered and decided by one call to Redis, which saves
//! commands, though not time: who comes late waits for the call before. Who asks alone does not wait for anybody.

use std::{
    future::Future,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::{runtime::Handle, sync::oneshot};

use super::Windows;

/// Rules that are decided at once, but for a call that has more: as many as Redis decides in well below a millisecond.
const MOST: usize = 64;

/// What one call wants decided: the logs of its rules, and the script's arguments for them.
pub struct Question {
    pub names: Vec<String>,
    pub args: Vec<i64>,
}

/// The moment, then what the script says about one call; none if Redis is away.
type Answer = Option<Vec<i64>>;

/// One call to Redis at a time; clones share it.
#[derive(Clone)]
pub struct Gather {
    windows: Windows,
    table: Arc<Mutex<Table>>,
}

type Waiting = Vec<(Question, oneshot::Sender<Answer>)>;

#[derive(Default)]
struct Table {
    busy: bool,
    waiting: Waiting,
}

/// Whoever holds it may call; then those who wait are next.
struct Turn(Gather);

impl Gather {
    /// Nothing under way.
    pub fn new(windows: Windows) -> Self {
        Gather { windows, table: Arc::default() }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has it decided, alone or together with others.
    pub async fn ask(&self, question: Question) -> Answer {
        match self.turn_or_place(question) {
            Ok((turn, question)) => {
                let answer = self.windows.decide(std::slice::from_ref(&question)).await;
                if answer.is_none() {
                    self.give_up();
                }
                drop(turn);
                answer?.pop()
            }
            Err(answer) => answer.await.ok()?,
        }
    }

    fn turn_or_place(&self, question: Question) -> Result<(Turn, Question), oneshot::Receiver<Answer>> {
        let mut table = self.table();
        if !table.busy {
            table.busy = true;
            return Ok((Turn(self.clone()), question));
        }
        let (answer, answered) = oneshot::channel();
        table.waiting.push((question, answer));
        Err(answered)
    }

    /// Whoever has come meanwhile has waited as long for the same silence.
    fn give_up(&self) {
        self.table().waiting.clear();
    }

    /// Decides for those who wait until nobody does.
    fn go_on(self, mut waiting: Waiting) -> impl Future<Output = ()> + Send {
        let turn = Turn(self);
        async move {
            while !waiting.is_empty() {
                let rules = waiting.iter().scan(0, |rules, (question, _)| {
                    *rules += question.names.len();
                    Some(*rules)
                });
                let n = rules.take_while(|rules| *rules <= MOST).count().max(1);
                let rest = waiting.split_off(n);
                let (questions, answers): (Vec<_>, Vec<_>) = waiting.into_iter().unzip();
                let Some(all) = turn.0.windows.decide(&questions).await else { return turn.0.give_up() };
                answers.into_iter().zip(all).for_each(|(to, one)| drop(to.send(Some(one))));
                waiting = rest;
                waiting.append(&mut turn.0.table().waiting);
            }
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut table = self.0.table();
        if table.waiting.is_empty() {
            table.busy = false;
            return;
        }
        // Taken out first: a runtime that ends drops the task, and so this, at once.
        let waiting = std::mem::take(&mut table.waiting);
        drop(table);
        let next = self.0.clone().go_on(waiting);
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(next);
        }
    }
}
