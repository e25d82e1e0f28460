//! A quiet conversation, in which no next message pushes a late one along.

use std::{cell::Cell, rc::Rc, time::Duration};

use history::{Actor, Moment, Span, Subscriber, Wait};
use serde_json::json;

use super::{Stage, text};
use crate::{
    Result,
    scenarios::history::clients::{Listener, Name},
};

const SPEAKER: usize = 2;
const LISTENER: usize = 3;
/// The longest time from an acknowledgement to the arrival. A harm lasts for some seconds, and the
/// sweep reads every two.
const BOUND: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(150);

impl Stage {
    /// Says a word when the last one has been heard.
    pub(super) async fn speak_quietly(&self, over: &Cell<bool>) -> Result<()> {
        let (speaker, opened) = (&self.users[SPEAKER], Rc::new(Cell::new(0)));
        let listener = self.users[LISTENER].id().to_owned();
        let mut ears = Listener::new(&self.world, listener, Name::User(LISTENER, 0), 0, &opened);
        while ears.next().await.ok_or("no socket")?["type"] != "caught_up" {}
        let path = format!("/conversations/{}/messages", self.quiet);
        while !over.get() {
            let id = self.id();
            let word =
                json!({ "payload": { "type": "text" }, "client_message_id": speaker.fresh_id() });
            let sent = self.must(speaker, "POST", &path, word, &[200, 201]);
            let (sent, span) = sent.await?;
            let message = text(&sent["data"], "message_id")?;
            let hearing = async {
                while let Some(frame) = ears.next().await {
                    if frame["data"]["message_id"] == *message {
                        return;
                    }
                }
            };
            // A little longer, so that a wait of exactly the bound is judged by its own length.
            let heard = tokio::time::timeout(BOUND + PAUSE, hearing).await;
            let span = Span {
                began: span.ended.unwrap_or_default(),
                ended: heard.ok().map(|()| self.now()),
            };
            let bound = Moment::try_from(BOUND.as_nanos())?;
            let wait = Wait { id, span, bound };
            self.found.borrow_mut().waits.push(wait);
            tokio::time::sleep(PAUSE).await;
        }
        Ok(())
    }
}
