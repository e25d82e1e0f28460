//! `POST /conversations/{conversation_id}/stop`.

use axum::extract::State;
use blindpipe_protocol::stops::{StopTurn, StoppedTurns};

use super::{Stopper, Stops};
use crate::{
    auth::user::User,
    error::Result,
    http::{Data, JsonOrNothing, Path},
    ids::ConversationId,
};

/// `POST /conversations/{conversation_id}/stop`: tells agents to end what they do there.
///
/// Caller: user, a member. Limit: `turn_stop`, 30/min per user, shared with the `turn.stop` frames.
/// Body `{agent_id?, in_reply_to?}`, or none. Answers 200 with [`StoppedTurns`]. Publishes
/// `turn.stop` to the agents and `artifact_response` for their pending tool calls; their open
/// streams end with `stream.cancel`. Errors: `NOT_FOUND`.
pub async fn stop(
    user: User,
    State(stops): State<Stops>,
    Path(conversation): Path<ConversationId>,
    JsonOrNothing(body): JsonOrNothing<StopTurn>,
) -> Result<Data<StoppedTurns>> {
    let by = Stopper {
        user: user.id,
        session: user.session,
    };
    stops.stop(by, conversation, body).await.map(Data)
}
