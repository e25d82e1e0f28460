//! Read marks that are told together. Each mark moves in its own call. In a group of more than a
//! few users, the members hear of all marks of a second in a single transaction, each reader's
//! newest. Otherwise each mark would write the inbox of every user.
//!
//! The members' rows say which marks wait, so a sweep finds those of a node that died within 30 s.
//! The reader's row is locked at the publication, so no member gets a mark twice, or an older one
//! after a newer one. Several nodes publish the marks of a conversation once a second each.
//!
//! In a group of 50, marks of all readers cost a quarter of the CPU and a tenth of the log this way
//! (`docs/measurements.md`). Pairs and small groups would gain little and see the delay. Ephemeral
//! frames would leave out a device that was offline. A job per conversation could end while a mark
//! commits, and leave that mark without a job. Moving the marks together as well would answer with
//! a mark that a crash takes back.

use std::{collections::HashSet, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::store;
use crate::{
    error::Result,
    ids::{ConversationId, MessageId, Principal},
    limits::quotas::READ_MARK_GATHERING,
    supervisor,
    work::UnitOfWork,
};

/// Moves read marks and publishes them. Clones share the conversations that wait.
#[derive(Clone)]
pub struct ReadMarks {
    work: UnitOfWork,
    waiting: Arc<Mutex<HashSet<ConversationId>>>,
    notify: Arc<Notify>,
}

impl ReadMarks {
    /// Starts the task that publishes gathered marks. It works on the connections of `background`.
    pub fn start(
        work: UnitOfWork,
        background: UnitOfWork,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> Self {
        let marks = ReadMarks {
            work,
            waiting: Arc::default(),
            notify: Arc::default(),
        };
        let gathered = marks.clone();
        supervisor::spawn_until(tasks, stop, "read_marks.tell", move || {
            gathered.clone().publish_gathered(background.clone())
        });
        marks
    }

    /// Moves the mark of a reader to a message.
    pub(super) async fn read_up_to(
        &self,
        conversation: ConversationId,
        reader: Principal,
        message: MessageId,
    ) -> Result<store::ReadMark> {
        let mark = self
            .work
            .run("conversations.read", async |tx| {
                store::read_up_to(tx, conversation, reader, message).await
            })
            .await?;
        if mark.is_gathered {
            self.waiting.lock().insert(conversation);
            self.notify.notify_one();
        }
        Ok(mark)
    }

    async fn publish_gathered(self, work: UnitOfWork) {
        loop {
            self.notify.notified().await;
            tokio::time::sleep(READ_MARK_GATHERING).await;
            let conversations = std::mem::take(&mut *self.waiting.lock());
            for conversation in conversations {
                if let Err(error) = publish(&work, conversation).await {
                    error.log_in("conversations.tell_marks", "the sweep publishes the marks");
                }
            }
        }
    }
}

async fn publish(work: &UnitOfWork, conversation: ConversationId) -> Result<()> {
    work.run("conversations.tell_marks", async |tx| {
        store::tell_marks(tx, conversation).await
    })
    .await
}

/// Tells the marks that no node has told.
pub async fn publish_forgotten_marks(work: &UnitOfWork) -> Result<()> {
    let mut after = None;
    loop {
        let some = store::conversations_with_untold_marks(work.db(), after).await?;
        for conversation in &some {
            if let Err(error) = publish(work, *conversation).await {
                error.log_in(
                    "conversations.tell_marks",
                    "the next sweep publishes the marks",
                );
            }
        }
        after = some.last().copied();
        if after.is_none() {
            return Ok(());
        }
    }
}
