//! Messages that are looked for in a conversation's history.

use std::collections::HashMap;

use blindpipe_protocol::{
    ids::{ConversationId, MessageId, Principal},
    messages::Message,
};

use super::Session;
use crate::{Result, transport::Call};

const HISTORY_PAGE_MESSAGES: u32 = 100;

impl Session {
    fn history_path(&self, id: ConversationId) -> String {
        match self.me {
            Principal::User(_) => format!("/conversations/{id}/messages"),
            Principal::Agent(me) => format!("/agents/{me}/conversations/{id}/messages"),
        }
    }

    /// The wanted messages with the number `seq` and above, as far as the history has them.
    pub(crate) async fn messages_since(
        &self,
        id: ConversationId,
        seq: i64,
        wanted: &[MessageId],
    ) -> Result<HashMap<MessageId, Message>> {
        let (mut found, mut cursor) = (HashMap::new(), None);
        loop {
            let call = Call::get(self.history_path(id))
                .query("limit", Some(HISTORY_PAGE_MESSAGES))
                .query("cursor", cursor);
            let page = self.http.page::<Message>(call).await?;
            let is_end = page.data.last().is_none_or(|oldest| oldest.seq <= seq);
            for message in page.data {
                if wanted.contains(&message.message_id) {
                    found.insert(message.message_id, message);
                }
            }
            cursor = page.next_cursor;
            if is_end || cursor.is_none() || found.len() == wanted.len() {
                return Ok(found);
            }
        }
    }
}
