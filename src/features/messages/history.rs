//! `GET /conversations/{conversation_id}/messages`, `GET
//! /agents/{agent_id}/conversations/{conversation_id}/messages`.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::messages::{Direction, HistoryInclude};
use serde::Deserialize;

use super::store;
use crate::{
    access_log::{self, AccessKind, Read},
    auth::{agent::Agent, user::User},
    db::{Conn, Db},
    error::Result,
    http::{Path, Query, RoomForPage, page::Page},
    ids::{AgentId, ConversationId, MessageId, Principal},
};

/// The query of a history.
#[derive(Deserialize)]
pub struct Walk {
    #[serde(flatten)]
    page: Page<MessageId>,
    #[serde(default)]
    direction: Direction,
    include: Option<HistoryInclude>,
}

/// A page, with the messages that refer to it if the caller asks for them.
struct FoundPage {
    page: store::Page,
    referring: Option<store::Referring>,
}

/// `GET /conversations/{conversation_id}/messages`: the messages since the caller joined, newest
/// first.
///
/// Caller: user who is a member. Limit: `user_messages_list`, 60/min. Query `limit`, `cursor` (the
/// last message seen), `direction=backward|forward`, `include=refs`. Answers 200 with a
/// [`HistoryPage`](blindpipe_protocol::messages::HistoryPage). A page ends early rather than grow
/// past 4 MB, and with `include=refs` both lists are within that. A purged message has `payload`
/// null and `purged` true; a deleted one has `payload` null, `deleted_at` and `deleted_by`. Errors:
/// `NOT_FOUND`.
pub async fn of_user(
    user: User,
    _: RoomForPage,
    State(db): State<Db>,
    Path(conversation): Path<ConversationId>,
    Query(walk): Query<Walk>,
) -> Result<Response> {
    let client = db.read().await?;
    let found = find(&client, conversation, Principal::User(user.id), &walk).await?;
    Ok(answer(&found))
}

/// `GET /agents/{agent_id}/conversations/{conversation_id}/messages`: the history for an agent. An
/// agent with the visibility `addressed` sees its own messages and those that name it.
///
/// Caller: agent who is a member by an active relation. Both lists enter the access log.
pub async fn of_agent(
    agent: Agent,
    _: RoomForPage,
    State(db): State<Db>,
    Path((_, conversation)): Path<(AgentId, ConversationId)>,
    Query(walk): Query<Walk>,
) -> Result<Response> {
    let found = db.run("messages.history_of_agent", async |tx| {
        let found = find(tx, conversation, Principal::Agent(agent.id), &walk).await?;
        let referring = found.referring.as_ref();
        let reads = [Some(&found.page.seqs), referring.map(|found| &found.seqs)];
        let reads = reads.into_iter().flatten();
        let reads: Vec<Read> = reads
            .filter_map(|seqs| read_of(conversation, seqs))
            .collect();
        access_log::record(tx, agent.id, AccessKind::History, &reads).await?;
        Ok(found)
    });
    Ok(answer(&found.await?))
}

/// The read of these messages; none for an empty list.
fn read_of(conversation: ConversationId, seqs: &[i64]) -> Option<Read> {
    let span = seqs.iter().copied().min().zip(seqs.iter().copied().max())?;
    Some(Read {
        conversation,
        items: i64::try_from(seqs.len()).unwrap_or(i64::MAX),
        span: Some(span),
    })
}

async fn find(
    client: &Conn,
    conversation: ConversationId,
    reader: Principal,
    walk: &Walk,
) -> Result<FoundPage> {
    let (page, forward) = (&walk.page, walk.direction == Direction::Forward);
    let (cursor, rows) = (page.cursor, page.rows());
    let page = store::history(client, conversation, reader, cursor, forward, rows).await?;
    let referring = match walk.include {
        Some(HistoryInclude::Refs) => {
            Some(store::referring(client, conversation, reader, &page).await?)
        }
        None => None,
    };
    Ok(FoundPage { page, referring })
}

fn answer(FoundPage { page, referring }: &FoundPage) -> Response {
    let next = page
        .next
        .map_or("null".to_owned(), |id| format!("\"{id}\""));
    let refs = referring.as_ref().map_or(String::new(), |found| {
        let (messages, is_truncated) = (found.messages.join(","), found.is_truncated);
        format!(r#","refs":[{messages}],"refs_truncated":{is_truncated}"#)
    });
    let text = format!(
        r#"{{"data":[{}],"next_cursor":{next}{refs}}}"#,
        page.messages.join(",")
    );
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], text).into_response()
}
