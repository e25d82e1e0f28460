//! A client: it reads its inbox through a subscription of some node, and comes back to another.

use std::{sync::Arc, time::Duration};

use history::{Heard, Said};
use parking_lot::Mutex;

use super::{
    postgres::{Connection, EPOCH},
    world::{SimulatedNode, World},
};
use crate::{
    cursor::Cursor,
    delivery::{Hub, Subscription, SubscriptionGuard, subscription::UNKNOWN_SEQ},
    events::EncodedEvent,
    gateway::reorder_buffer::{Page, Reader, ReorderBuffer},
    ids::{CredentialId, PrincipalId},
};

/// The socket has ended.
struct SocketEnd;

/// The socket of a client.
struct Socket<'a> {
    hub: Hub,
    connection: Connection,
    subscription: SubscriptionGuard,
    world: &'a World,
    node: &'a SimulatedNode,
    heard: &'a Mutex<Vec<Heard>>,
}

impl Reader for Socket<'_> {
    type End = SocketEnd;

    fn sent(&self) -> i64 {
        self.subscription.sent()
    }

    fn has_expired(&self) -> bool {
        false
    }

    async fn write(&mut self, seq: i64, encoded: EncodedEvent) -> Result<bool, SocketEnd> {
        self.world.faults.runs(self.node.id).await;
        if self.hub.is_fenced() {
            return Ok(false);
        }
        if self.subscription.is_ended() {
            return Err(SocketEnd);
        }
        let mut parts = encoded
            .split(' ')
            .map(|part| part.parse().expect("a number"));
        let mut part = || parts.next().expect("three numbers");
        let (conversation, seq_there, tag) = (part(), part(), part());
        self.heard.lock().push(Heard {
            number: seq.unsigned_abs(),
            message: Some(Said {
                conversation: usize::try_from(conversation).expect("it fits"),
                seq: seq_there,
                tag,
            }),
        });
        self.subscription.set_sent(seq);
        Ok(true)
    }

    async fn flush(&mut self) -> Result<(), SocketEnd> {
        tokio::time::sleep(self.world.chance.ms(0, 2)).await;
        Ok(())
    }

    async fn page(&mut self, after: i64) -> Result<Page, SocketEnd> {
        let read = self.connection.page(self.subscription.principal, after);
        Ok(match read.await {
            Ok(entries) => Page::Entries(entries, None),
            Err(_) => Page::Away(self.world.chance.ms(1_000, 5_000)),
        })
    }
}

/// Reads for ever.
pub async fn listen(world: Arc<World>, principal: PrincipalId, heard: Arc<Mutex<Vec<Heard>>>) {
    loop {
        let Some(node) = world.node_for_client() else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let gone = node.stop.cancelled();
        tokio::select! {
            // A connection to a dead node breaks.
            () = gone => {}
            () = read(&world, &node, principal, &heard) => {}
        }
        tokio::time::sleep(world.chance.ms(10, 1_500)).await;
    }
}

/// Reads through a node until the socket ends. It now and then ends by itself.
async fn read(
    world: &World,
    node: &SimulatedNode,
    principal: PrincipalId,
    heard: &Mutex<Vec<Heard>>,
) {
    let hub = node.backplane.hub().clone();
    let credential = CredentialId(principal.0);
    let subscription = hub.join(Subscription::new(principal, credential, UNKNOWN_SEQ));
    let connection = world.postgres.of(node.id);
    let Ok(head) = connection.head(principal).await else {
        return;
    };
    let from = heard
        .lock()
        .last()
        .map_or(0, |last| last.number.cast_signed());
    subscription.set_start(Cursor {
        epoch: EPOCH,
        seq: from,
    });
    let mut socket = Socket {
        hub,
        connection,
        subscription,
        world,
        node,
        heard,
    };
    let mut buffer = ReorderBuffer::default();
    let caught_up = buffer.read_to(head, &mut socket).await;
    if caught_up.is_err() || socket.sent() < head {
        return;
    }
    let life = tokio::time::sleep(world.chance.ms(1_000, 60_000));
    let mut life = std::pin::pin!(life);
    loop {
        tokio::select! {
            () = socket.subscription.notified() => {}
            () = buffer.overdue() => {}
            () = &mut life, if world.is_harmed() => return,
        }
        world.faults.runs(node.id).await;
        let mail = socket.subscription.take();
        if mail.end.is_some() {
            return;
        }
        let delivered = buffer.deliver(mail.items, mail.head, false, &mut socket);
        if delivered.await.is_err() {
            return;
        }
    }
}
