//! What other nodes want of the streams that began here.

use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Streams,
    id::StreamKey,
    messages::{StreamControl, StreamWanted},
};
use crate::{error::Result, ids::NodeId};

/// What a node was answered lately, and from which delta on: what it asks for again was on its way.
type AnsweredRequests = Cache<(NodeId, StreamKey), u64>;

/// Answers until `stop`, one after the other.
pub async fn serve(
    streams: Streams,
    mut requests: mpsc::Receiver<StreamControl>,
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
            StreamControl::Wanted(wanted) => {
                if let Err(error) = answer(&streams, &answered, wanted).await {
                    error.log();
                }
            }
            StreamControl::Ended {
                agent,
                stream,
                conversation,
                text,
                ..
            } => {
                streams
                    .publish_end(&StreamKey { agent, stream }, conversation, text.into())
                    .await;
            }
            StreamControl::Moved { .. } => {}
        }
    }
}

/// Tells a node of the one stream that is meant, if whoever asks there may hear it.
async fn answer(
    streams: &Streams,
    answered: &AnsweredRequests,
    wanted: StreamWanted,
) -> Result<()> {
    let StreamWanted {
        by,
        listener,
        stream,
        from,
    } = wanted;
    for (key, conversation) in streams.table.own(&stream) {
        if !streams.audience.includes(listener, conversation).await? {
            continue;
        }
        let to = (by, key.clone());
        if answered.get(&to).is_none_or(|before| before > from) {
            answered.insert(to, from);
            let events = streams.table.recall(&key, from);
            streams.backplane.answer_node(by, &events);
        }
        break;
    }
    Ok(())
}
