//! `GET /conversations/{conversation_id}/messages`, `GET
//! /agents/{agent_id}/conversations/{conversation_id}/messages`.

use axum::{
    extract::State,
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::messages::Direction;
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
}

/// `GET /conversations/{conversation_id}/messages`: the messages since the caller joined, newest
/// first.
///
/// Caller: user who is a member. Limit: `user_messages_list`, 60/min. Query `limit`, `cursor` (the
/// last message seen), `direction=backward|forward`. Answers 200 `{data: [message], next_cursor}`.
/// A page ends early rather than grow past 4 MB. A purged message has `payload` null and `purged`
/// true. Errors: `NOT_FOUND`.
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
/// Caller: agent who is a member by an active relation.
pub async fn of_agent(
    agent: Agent,
    _: RoomForPage,
    State(db): State<Db>,
    Path((_, conversation)): Path<(AgentId, ConversationId)>,
    Query(walk): Query<Walk>,
) -> Result<Response> {
    let found = db.run("messages.history_of_agent", async |tx| {
        let found = find(tx, conversation, Principal::Agent(agent.id), &walk).await?;
        let read = found.span.map(|span| Read {
            conversation,
            items: i64::try_from(found.messages.len()).unwrap_or(i64::MAX),
            span: Some(span),
        });
        access_log::record(tx, agent.id, AccessKind::History, read.as_slice()).await?;
        Ok(found)
    });
    Ok(answer(&found.await?))
}

async fn find(
    client: &Conn,
    conversation: ConversationId,
    reader: Principal,
    walk: &Walk,
) -> Result<store::Page> {
    let (page, forward) = (&walk.page, walk.direction == Direction::Forward);
    let (cursor, rows) = (page.cursor, page.rows());
    store::history(client, conversation, reader, cursor, forward, rows).await
}

fn answer(found: &store::Page) -> Response {
    let next = found
        .next
        .map_or("null".to_owned(), |id| format!("\"{id}\""));
    let text = format!(
        r#"{{"data":[{}],"next_cursor":{next}}}"#,
        found.messages.join(",")
    );
    let json = HeaderValue::from_static("application/json");
    ([(header::CONTENT_TYPE, json)], text).into_response()
}
