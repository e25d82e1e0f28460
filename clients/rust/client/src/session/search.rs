//! Search tokens of messages that are sent, and of words that are looked for.

use blindpipe_e2ee::{envelope::Header, search};
use blindpipe_protocol::{ids::ConversationId, raw::RawJson, search::SearchToken};

use super::{Session, types::envelope_of};
use crate::{Content, ContentView, Result};

/// Each epoch is a search of its own, and the service allows ten in a minute.
const SEARCHED_EPOCHS: u32 = 8;

impl Session {
    /// The tokens of a content's words, under the secret that its payload is sealed with.
    pub(crate) async fn message_tokens(
        &self,
        id: ConversationId,
        content: &Content,
        payload: &RawJson,
    ) -> Result<Vec<SearchToken>> {
        let Ok(envelope) = envelope_of(Some(payload)) else {
            return Ok(Vec::new());
        };
        let header = Header::parse(&envelope)?;
        let entry = self.load(id).await?;
        let key = entry.room.epoch_key(header.epoch, header.sid);
        let mut words = search::words(ContentView::of(content).text);
        words.truncate(search::MAX_MESSAGE_TOKENS);
        let tokens = key.and_then(|key| search::tokens(key, &words));
        Ok(tokens.map(parsed).unwrap_or_default())
    }

    /// The tokens of words under each secret of the newest epochs that this member holds, the newest
    /// first.
    pub(crate) async fn epoch_tokens(
        &self,
        id: ConversationId,
        words: &[String],
    ) -> Result<Vec<Vec<SearchToken>>> {
        let mut entry = self.load(id).await?;
        // A client that follows no events has not heard of the newest epoch.
        self.read_wraps(&mut entry, None).await?;
        let newest = entry.room.server().epoch;
        let mut found = Vec::new();
        for epoch in (newest.saturating_sub(SEARCHED_EPOCHS) + 1..=newest).rev() {
            if entry.room.epoch_keys(epoch).next().is_none() {
                self.read_wraps(&mut entry, Some(epoch)).await?;
            }
            let keys = entry.room.epoch_keys(epoch);
            found.extend(
                keys.filter_map(|key| search::tokens(key, words))
                    .map(parsed),
            );
        }
        Ok(found)
    }
}

fn parsed(tokens: Vec<String>) -> Vec<SearchToken> {
    let parse = |token: String| token.parse().expect("32 digits of hex");
    tokens.into_iter().map(parse).collect()
}
