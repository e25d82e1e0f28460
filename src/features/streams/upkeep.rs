//! The end of silent streams.
//!
//! Each node takes streams that are due for a look, so the end of a stream needs no particular
//! node. Of many looks at a silent stream, one ends it.

use std::time::Duration;

use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    IDLE, Streams,
    id::StreamKey,
    state::{Ending, Look},
};
use crate::{ids::ConversationId, metrics, redis::Away, supervisor};

/// The pause between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_secs(1);

impl Streams {
    /// Ends silent streams until `stop`.
    pub fn start(&self, tasks: &TaskTracker, stop: &CancellationToken) {
        let streams = self.clone();
        supervisor::spawn_until(tasks, stop, "streams.tidy", move || streams.clone().run());
    }

    async fn run(self) {
        loop {
            let next = self.clock.now() + ROUND_INTERVAL;
            self.clock.sleep_until(next).await;
            while self.look_at_due().await.is_ok_and(|found| found) {}
            for (key, conversation) in self.heard.take_silent() {
                self.look_up(&key, conversation).await;
            }
            metrics::streams_open(self.heard.len());
        }
    }

    /// Looks at some streams that are due. False if there are none.
    async fn look_at_due(&self) -> Result<bool, Away> {
        let due = self.state.take_due().await?;
        let idle = Ending::Cancelled(Some(IDLE.to_owned()));
        for key in &due {
            match self.state.look(key, &idle).await? {
                Look::Idle(home) => {
                    self.publish_cancel(key, home.conversation, &idle).await;
                }
                Look::Later(at_ms, Some(home)) => {
                    self.state.list(key, home.conversation, at_ms).await;
                }
                Look::Later(at_ms, None) => self.state.set_due(key, at_ms).await?,
                Look::Gone => self.state.forget_due(key).await,
            }
        }
        Ok(!due.is_empty())
    }

    /// Ends a stream for the listeners of this node if it is over, or if Redis has lost it.
    async fn look_up(&self, key: &StreamKey, conversation: ConversationId) {
        let known = self.state.load(key).await.map_or(None, |(_, known)| known);
        let known = known.filter(|known| known.home.conversation == conversation);
        let ending = match known {
            Some(known) if known.ending.is_none() => return,
            Some(known) => known.ending,
            None => None,
        };
        let Ok(listeners) = self.audience.all(conversation).await else {
            return;
        };
        if self.heard.forget(key) {
            let idle = || Ending::Cancelled(Some(IDLE.to_owned()));
            let ending = ending.unwrap_or_else(idle);
            self.publish_end_here(&listeners, key, conversation, &ending);
        }
    }
}
