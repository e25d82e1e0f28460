//! Push: routes, what wakes a device and when, faults, the end of subscriptions, the server's secret.

mod ends;
mod faults;
mod routes;
mod server_secret;
mod service;
mod wakes;
mod windows;

use self::service::{PushService, path};
use crate::support::{TestNode, User, nodes_with};

const BUSY: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "push_register=10000/s,default_user=10000/s,user_message_send=1000/s,agent_tier_1=10000/s,\
     agent_grant_request=1000/s,agent_manifest_update=1000/s,approval_request=1000/s,ws_connect=1000/s",
);

/// Two nodes. Alice, who has a push service and no socket, and Bob, who talks with her.
struct Scene {
    nodes: [TestNode; 2],
    alice: User,
    bob: User,
    service: PushService,
    conversation: String,
}

impl Scene {
    async fn new() -> Self {
        Self::with(&[BUSY]).await
    }

    async fn with(settings: &[(&str, &str)]) -> Self {
        let nodes: [TestNode; 2] = nodes_with(settings).await;
        let alice = nodes[0].user("alice").await;
        let bob = nodes[1].user("bob").await;
        let conversation = bob.direct_with(&alice).await;
        let service = PushService::start().await;
        service.subscribe(&alice).await;
        Scene {
            nodes,
            alice,
            bob,
            service,
            conversation,
        }
    }

    /// Bob says something, and returns the message's id.
    async fn says(&self, text: &str) -> String {
        let said = self.bob.say(&self.conversation, text).await.expect(201);
        said.data()["message_id"]
            .as_str()
            .expect("an id")
            .to_owned()
    }

    async fn advance(&self, seconds: u64) {
        let by = std::time::Duration::from_secs(seconds);
        self.nodes[0].advance(by).await;
    }

    /// Waits for `n` pushes, and until their answers are recorded, which takes a moment.
    async fn settles_at(&self, n: usize) {
        self.service.receives(n).await;
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
    }

    /// Asserts that nothing comes within real time: a worker looks each second.
    async fn stays_at(&self, n: usize) {
        tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
        assert_eq!(
            self.service.pushes().len(),
            n,
            "{:?}",
            self.service.events()
        );
    }
}
