//! `GET /conversations/{conversation_id}/streams`.

use axum::extract::State;
use blindpipe_protocol::streams::LiveStream;
use futures_util::future::try_join_all;

use super::{Streams, away};
use crate::{
    auth::user::User,
    error::{Code, Result},
    http::{List, Path},
    ids::ConversationId,
};

/// `GET /conversations/{conversation_id}/streams`: the streams that go on in a conversation, oldest
/// first.
///
/// Caller: user, a member. Answers 200 with [`LiveStream`]s on a single page. Errors: `NOT_FOUND`,
/// `SERVICE_UNAVAILABLE` while their state is away.
pub async fn list(
    user: User,
    State(streams): State<Streams>,
    Path(conversation): Path<ConversationId>,
) -> Result<List<LiveStream>> {
    let asked = [conversation];
    let heard = streams.audience.of_listener(user.id.into(), &asked).await?;
    if !heard.contains(&conversation) {
        return Err(Code::NotFound.into());
    }
    let found = streams.state.of_conversation(conversation).await;
    let found = found.map_err(away)?;
    let loads = found.iter().map(|key| streams.state.load(key));
    let loaded = try_join_all(loads).await.map_err(away)?;
    let live = found.iter().zip(loaded).filter_map(|(key, (_, known))| {
        let known = known.filter(|known| known.ending.is_none())?;
        let home = (known.home.conversation == conversation).then_some(known.home)?;
        Some(LiveStream {
            stream_id: key.stream.clone(),
            agent_id: key.agent,
            in_reply_to: home.in_reply_to,
            generation: home.generation,
            n: known.next,
            started_at: home.started_at,
        })
    });
    let mut live: Vec<LiveStream> = live.collect();
    live.sort_by_key(|stream| stream.started_at);
    Ok(List {
        data: live,
        next_cursor: None,
    })
}
