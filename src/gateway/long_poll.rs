//! `GET /agents/{agent_id}/messages/poll` reads an agent's inbox without a socket.

use std::time::Duration;

use axum::{
    extract::State,
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;

use crate::{
    auth::agent::{Agent, AgentToken, AgentTokens},
    cursor::Cursor,
    delivery::{End, Hub, Subscription},
    error::{Error, Result},
    events,
    features::agents::ReachabilityTracker,
    http::{Query, RoomForPage},
    ids::Principal,
    inbox::{Bounds, Entry, Inbox, Reader, Start},
    limits::quotas::{MAX_POLL_EVENTS, MAX_POLL_WAIT_SECONDS},
};

/// The query of a poll.
#[derive(Deserialize)]
pub struct PollQuery {
    cursor: Option<String>,
    limit: Option<i64>,
    wait: Option<u64>,
}

impl PollQuery {
    /// The cursor, the most events of an answer, and the seconds to wait for the first one.
    fn read(&self) -> Result<(Option<Cursor>, i64, u64)> {
        let limit = self.limit.unwrap_or(50);
        if !(1..=MAX_POLL_EVENTS).contains(&limit) {
            return Err(Error::field("limit", "range", "must be from 1 to 1000"));
        }
        let wait = self.wait.unwrap_or(0);
        if wait > MAX_POLL_WAIT_SECONDS {
            return Err(Error::field("wait", "range", "must be from 0 to 25"));
        }
        let cursor = self.cursor.as_deref().map(str::parse::<Cursor>);
        Ok((cursor.transpose()?, limit, wait))
    }
}

/// `GET /agents/{agent_id}/messages/poll?cursor=&limit=&wait=`: the events after a cursor.
///
/// Caller: agent. Limit: `agent_poll`, 60/min per agent. A cursor acks everything up to it; without
/// one, reading starts after the last ack. `wait` (0-25 s) holds an empty answer back until
/// something comes. Answers 200 `{data: [event], next_cursor}`. Errors: `CURSOR_EXPIRED`.
pub async fn poll(
    (caller, _): (Agent, RoomForPage),
    State(inbox): State<Inbox>,
    State(hub): State<Hub>,
    State(tokens): State<AgentTokens>,
    State(reachability): State<ReachabilityTracker>,
    Query(query): Query<PollQuery>,
) -> Result<Response> {
    let (cursor, limit, wait) = query.read()?;
    let reader = Reader::new(Principal::Agent(caller.id), "");
    let bounds = inbox.bounds(&reader).await?;
    let Start::After(after) = bounds.start(cursor) else {
        return Err(bounds.expired());
    };
    if cursor.is_some() && after > bounds.acked {
        inbox
            .ack_by_token(caller.id, caller.token, bounds.cursor(after))
            .await?;
    }
    if cursor.is_some() {
        reachability.acked(&[caller.id]).await?;
    }
    // The subscription begins before the first read, so that no event falls in between.
    let subscription = (wait > 0).then(|| {
        hub.join(Subscription::new(
            reader.principal.id(),
            caller.token.into(),
            after,
        ))
    });
    if let Some(subscription) = &subscription {
        subscription.set_start(bounds.cursor(after));
    }
    let expired = async || Ok::<_, Error>(inbox.bounds(&reader).await?.expired());
    let Some(mut events) = inbox.poll(caller.id, bounds.cursor(after), limit).await? else {
        return Err(expired().await?);
    };
    if let Some(subscription) = subscription.filter(|_| events.is_empty()) {
        tokio::select! {
            () = tokio::time::sleep(Duration::from_secs(wait)) => {}
            () = subscription.notified() => {
                if matches!(subscription.take().end, Some(End::EpochChanged { .. })) {
                    return Err(expired().await?);
                }
                // The token may have been revoked during the wait.
                AgentToken { agent: caller.id, token: caller.token }.check_live(inbox.db(), &tokens.revoked).await?;
                events = match inbox.poll(caller.id, bounds.cursor(after), limit).await? {
                    Some(events) => events,
                    None => return Err(expired().await?),
                };
            }
        }
    }
    Ok(answer(&bounds, after, &events))
}

fn answer(bounds: &Bounds, after: i64, events: &[Entry]) -> Response {
    let next = bounds.cursor(events.last().map_or(after, |last| last.seq));
    let objects: Vec<String> = events
        .iter()
        .map(|event| events::object(bounds.cursor(event.seq), &event.encoded))
        .collect();
    let text = format!(
        r#"{{"data":[{}],"next_cursor":"{next}"}}"#,
        objects.join(",")
    );
    let mut headers = HeaderMap::new();
    headers.insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    (headers, text).into_response()
}
