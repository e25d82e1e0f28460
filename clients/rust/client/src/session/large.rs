//! Contents that do not fit an envelope, and events that do not fit a delivery.

use blindpipe_e2ee::content::{MAX_CONTENT_BYTES, parse_within};
use blindpipe_protocol::{
    ids::{ConversationId, Principal},
    raw::RawJson,
};
use serde_json::Value;

use super::Session;
use crate::{
    Content, Error, InboxEvent, NewFile, OpenedMessage, Result, content,
    files::{self, read_signed},
    transport::is_missing,
};

/// A reader takes no larger content from a file.
const MAX_LARGE_CONTENT_BYTES: usize = 16 * 1024 * 1024;
/// Of a content, for what a send adds to it.
const RESERVED_BYTES: usize = 1024;

impl Session {
    fn files_path(&self) -> String {
        match self.me {
            Principal::User(_) => "/files".to_owned(),
            Principal::Agent(id) => format!("/agents/{id}/files"),
        }
    }

    /// The content, or the reference to the file that it was put into.
    pub(crate) async fn fitting(&self, of: ConversationId, content: Content) -> Result<Content> {
        let bytes = content::encode(&content)?;
        if bytes.len() <= MAX_CONTENT_BYTES - RESERVED_BYTES {
            return Ok(content);
        }
        if bytes.len() > MAX_LARGE_CONTENT_BYTES {
            return Err(blindpipe_e2ee::Error::Malformed.into());
        }
        let file = NewFile {
            name: "content".to_owned(),
            content_type: "application/json".to_owned(),
            bytes,
        };
        let path = self.files_path();
        let stored = Box::pin(files::upload(&self.http, &path, of, file)).await?;
        let of_file = ["file_id", "object_key", "size", "sha256", "key"];
        let mut reference: Content = stored
            .into_iter()
            .filter(|(name, _)| of_file.contains(&name.as_str()))
            .collect();
        reference.insert("type".to_owned(), "content_ref".into());
        Ok(reference)
    }

    /// The message with the content that a reference leads to; any other message as it is.
    pub(super) async fn resolved(&self, mut opened: OpenedMessage) -> Result<OpenedMessage> {
        let content = &opened.content;
        let size = content.get("size").and_then(Value::as_u64);
        let fits = size.is_some_and(|size| size <= MAX_LARGE_CONTENT_BYTES as u64);
        if !fits || content.get("type").is_none_or(|kind| kind != "content_ref") {
            return Ok(opened);
        }
        let bytes = match files::download_reference(&self.http, content).await {
            Ok(bytes) => bytes,
            Err(Error::Decrypt(_)) => return Ok(opened),
            // A file that is gone leads nowhere; one that cannot be read now is read later.
            Err(error) if is_missing(&error) => return Ok(opened),
            Err(error) => return Err(error),
        };
        let inner = parse_within(&bytes, MAX_LARGE_CONTENT_BYTES);
        let (Ok(Value::Object(mut inner)), Ok(source)) = (inner, String::from_utf8(bytes)) else {
            return Ok(opened);
        };
        if inner.get("type").is_some_and(|kind| kind == "content_ref") {
            return Ok(opened);
        }
        let re = content.get("re").cloned();
        inner.extend(re.map(|re| ("re".to_owned(), re)));
        (opened.content, opened.source) = (inner, source);
        Ok(opened)
    }

    /// The event with its data, if a delivery has a reference in their place.
    pub(crate) async fn resolved_event(&self, mut event: InboxEvent) -> Result<InboxEvent> {
        let data: Content = event.data().unwrap_or_default();
        if let Some(named) = data.get("object_ref").and_then(Value::as_object)
            && data.len() == 1
        {
            let bytes = read_signed(&self.http, named).await?;
            let data: Value = serde_json::from_slice(&bytes).map_err(|_| Error::lost())?;
            event.data = RawJson::of(&data).map_err(Error::other)?;
        }
        Ok(event)
    }
}
