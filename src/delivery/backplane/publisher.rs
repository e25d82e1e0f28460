//! The messages that wait to be published, in three queues by urgency. Urgent messages never wait
//! for others.

use tokio::sync::mpsc;

use super::{directory::WEBHOOK_WORKERS, worker::MAX_BATCH_MESSAGES};
use crate::{
    delivery::ephemeral::EphemeralEvent,
    events::EncodedEvent,
    ids::{NodeId, PrincipalId},
    inbox::InboxHead,
    metrics,
    telemetry::trace::TraceContext,
};

/// Control messages that may wait; they go first.
const CONTROL_QUEUE_CAPACITY: usize = 1_024;
/// Hints that may wait. More are dropped, and the reconciler finds their events.
const HINT_QUEUE_CAPACITY: usize = 8_192;
/// Ephemeral events that may wait; they go last.
const EPHEMERAL_QUEUE_CAPACITY: usize = 4_096;

/// A message that is not addressed and signed yet.
pub(super) struct Message {
    /// The epoch of the numbers in the content.
    pub epoch: u64,
    pub content: Content,
}

/// The content of a message, and whom it concerns.
pub(super) enum Content {
    /// An event, for the nodes that serve one of the inboxes' owners.
    Hint {
        heads: Vec<InboxHead>,
        encoded: EncodedEvent,
        trace: Option<TraceContext>,
    },
    /// Numbers that inboxes have reached, for the nodes that serve one of their owners.
    Heads { heads: Vec<InboxHead> },
    /// An ephemeral event, for the nodes that serve one of these principals.
    Ephemeral {
        principals: Vec<PrincipalId>,
        event: EphemeralEvent,
    },
    /// A control message for the nodes that deliver webhooks.
    WakeWebhooks { text: String },
    /// The number of messages that a node was sent.
    LastSequence { to: NodeId },
    /// A control message, for every node.
    Control { text: String },
}

impl Content {
    /// The principals whose nodes get the message.
    pub(super) fn principals(&self) -> Box<dyn Iterator<Item = PrincipalId> + '_> {
        match self {
            Content::Hint { heads, .. } | Content::Heads { heads } => {
                Box::new(heads.iter().map(|one| one.principal))
            }
            Content::Ephemeral { principals, .. } => Box::new(principals.iter().copied()),
            Content::WakeWebhooks { .. } => Box::new(std::iter::once(WEBHOOK_WORKERS)),
            _ => Box::new(std::iter::empty()),
        }
    }

    /// The inboxes that a sweep must look at if the message is lost.
    pub(super) fn inboxes(&self) -> Vec<PrincipalId> {
        match self {
            Content::Hint { .. } | Content::Heads { .. } => self.principals().collect(),
            _ => Vec::new(),
        }
    }
}

/// The urgency of a message.
#[derive(Clone, Copy)]
pub(super) enum Urgency {
    Control,
    Hint,
    Ephemeral,
}

/// The sending half; clones share the queues.
#[derive(Clone)]
pub(super) struct Publisher {
    control: mpsc::Sender<Message>,
    hints: mpsc::Sender<Message>,
    ephemeral: mpsc::Sender<Message>,
}

/// The messages that [`PubSubWorker`](super::PubSubWorker) publishes.
pub struct Outgoing {
    control: mpsc::Receiver<Message>,
    hints: mpsc::Receiver<Message>,
    ephemeral: mpsc::Receiver<Message>,
}

impl Publisher {
    /// Makes empty queues; returns their sending and their receiving half.
    pub(super) fn new() -> (Self, Outgoing) {
        let (control, first) = mpsc::channel(CONTROL_QUEUE_CAPACITY);
        let (hints, second) = mpsc::channel(HINT_QUEUE_CAPACITY);
        let (ephemeral, last) = mpsc::channel(EPHEMERAL_QUEUE_CAPACITY);
        let outgoing = Outgoing {
            control: first,
            hints: second,
            ephemeral: last,
        };
        let publisher = Publisher {
            control,
            hints,
            ephemeral,
        };
        (publisher, outgoing)
    }

    /// Queues a message. Returns it if its queue is full.
    pub(super) fn publish(&self, urgency: Urgency, message: Message) -> Result<(), Message> {
        let queue = match urgency {
            Urgency::Control => &self.control,
            Urgency::Hint => &self.hints,
            Urgency::Ephemeral => &self.ephemeral,
        };
        queue.try_send(message).map_err(|error| {
            metrics::hints("dropped", 1);
            error.into_inner()
        })
    }
}

impl Outgoing {
    /// Takes the most urgent messages; false at the end.
    pub(super) async fn next(&mut self, batch: &mut Vec<Message>) -> bool {
        let first = tokio::select! {
            biased;
            Some(control) = self.control.recv() => control,
            Some(hint) = self.hints.recv() => hint,
            Some(ephemeral) = self.ephemeral.recv() => ephemeral,
            else => return false,
        };
        batch.push(first);
        while batch.len() < MAX_BATCH_MESSAGES {
            let Ok(next) = self.control.try_recv().or_else(|_| self.hints.try_recv()) else {
                break;
            };
            batch.push(next);
        }
        // Few ephemeral events at a time, so that urgent messages need not wait for them.
        while batch.len() < MAX_BATCH_MESSAGES / 8 {
            let Ok(next) = self.ephemeral.try_recv() else {
                break;
            };
            batch.push(next);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn ephemeral_events_keep_nothing_else_waiting_or_out() {
        let (publisher, mut outgoing) = Publisher::new();
        let publish = |urgency, text: &str| {
            let text = text.to_owned();
            let (epoch, content) = (1, Content::Control { text });
            publisher.publish(urgency, Message { epoch, content }).ok();
        };
        for _ in 0..2 * EPHEMERAL_QUEUE_CAPACITY {
            publish(Urgency::Ephemeral, "ephemeral");
        }
        publish(Urgency::Hint, "hint");
        publish(Urgency::Control, "control");
        let mut batch = Vec::new();
        assert!(outgoing.next(&mut batch).await);
        let kinds: Vec<_> = batch
            .iter()
            .map(|one| match &one.content {
                Content::Control { text } => text.as_str(),
                _ => "",
            })
            .collect();
        assert_eq!(kinds[..3], ["control", "hint", "ephemeral"]);
        assert_eq!(kinds.len(), MAX_BATCH_MESSAGES / 8);
    }
}
