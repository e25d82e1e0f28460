//! The answers to other nodes' requests for streams that began here.

use std::time::Duration;

use moka::sync::Cache;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::{
    Streams,
    id::StreamKey,
    messages::{StreamControl, StreamWanted},
    replays::first_heard,
};
use crate::{error::Result, ids::NodeId};

/// The recent answers, with their first delta. A repeated request was sent before its answer
/// arrived.
type AnsweredRequests = Cache<(NodeId, StreamKey), u64>;

/// Answers requests one after the other until `stop`.
pub async fn serve(
    streams: &Streams,
    requests: &mut mpsc::Receiver<StreamControl>,
    stop: &CancellationToken,
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
                if let Err(error) = answer(streams, &answered, wanted).await {
                    error.log_in("streams.replay", "the listener asks for its stream again");
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

/// Sends a node the one matching stream, if the node's listener may receive it.
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
    let own = streams.table.own(&stream).into_iter();
    let own = own.map(|(key, conversation)| (conversation, key)).collect();
    if let Some(key) = first_heard(streams, listener, own).await? {
        let to = (by, key.clone());
        if answered.get(&to).is_none_or(|before| before > from) {
            answered.insert(to, from);
            let events = streams.table.recall(&key, from);
            streams.backplane.answer_node(by, &events);
        }
    }
    Ok(())
}
