//! What other nodes want of the streams that began here.

use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{EphemeralEvents, table::Key};
use crate::{
    delivery::backplane::messages::{ControlMessage, Wanted},
    error::Result,
    ids::NodeId,
};

/// What a node was answered lately, and from which delta on: what it asks for again was on its way.
type AnsweredRequests = Cache<(NodeId, Key), u64>;

/// Answers until `stop`, one after the other.
pub async fn serve(
    ephemeral: EphemeralEvents,
    mut requests: mpsc::Receiver<ControlMessage>,
    stop: CancellationToken,
) {
    let answered = AnsweredRequests::builder()
        .max_capacity(10_000)
        .time_to_live(Duration::from_secs(1))
        .build();
    loop {
        let request = tokio::select! {
            Some(request) = requests.recv() => request,
            () = stop.cancelled() => return,
            else => return,
        };
        match request {
            ControlMessage::StreamWanted(wanted) => {
                if let Err(error) = tell(&ephemeral, &answered, wanted).await {
                    error.log();
                }
            }
            ControlMessage::StreamEnded {
                agent,
                stream,
                conversation,
                text,
                ..
            } => {
                ephemeral
                    .tell_end(&Key { agent, stream }, conversation, text.into())
                    .await;
            }
            ControlMessage::Invalidate { .. } | ControlMessage::StreamMoved { .. } => {}
        }
    }
}

/// Tells a node of the one stream that is meant, if whoever asks there may hear it.
async fn tell(
    ephemeral: &EphemeralEvents,
    answered: &AnsweredRequests,
    wanted: Wanted,
) -> Result<()> {
    let Wanted {
        by,
        listener,
        stream,
        from,
    } = wanted;
    for (key, conversation) in ephemeral.streams.own(&stream) {
        if !ephemeral.audience.includes(listener, conversation).await? {
            continue;
        }
        let to = (by, key.clone());
        if answered.get(&to).is_none_or(|before| before > from) {
            answered.insert(to, from);
            ephemeral
                .backplane
                .tell_stream(by, &ephemeral.streams.recall(&key, from));
        }
        break;
    }
    Ok(())
}
