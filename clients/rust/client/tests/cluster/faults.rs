//! Answers that do not come, come late, or are cut off: nothing is lost by them.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use axum::{
    body::{Body, Bytes},
    http::StatusCode,
    response::Response,
};
use blindpipe_client::{Client, Error, client::ClientEvent, testing::TestUser};
use futures_util::{StreamExt, stream};
use tokio::{sync::Semaphore, task::yield_now, time::timeout};

use crate::{
    proxy::Proxy,
    support::{PATIENCE, Shared, cluster, direct, texts, until},
};

/// The ways in which an answer is no answer.
#[derive(Clone)]
pub enum Fault {
    /// The node is asked once there is a permit.
    Wait(Arc<Semaphore>),
    /// The connection ends within the body.
    Cut,
    /// The node is not asked, and refuses.
    Refusal(u16),
}

pub fn refusal(status: u16) -> Response {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    response
}

/// Half of a body, which goes out, and then a lost connection.
pub fn cut(bytes: Bytes) -> Body {
    let half = bytes.slice(..bytes.len() / 2);
    let lost = async {
        yield_now().await;
        Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset))
    };
    Body::from_stream(stream::iter([Ok(half)]).chain(stream::once(lost)))
}

/// Has calls that are named so end in the faults, one after the other. Answers the count of them.
pub fn fail(
    proxy: &Proxy,
    call: String,
    faults: impl IntoIterator<Item = Fault>,
) -> Arc<AtomicU32> {
    let calls = Arc::<AtomicU32>::default();
    let count = calls.clone();
    let mut faults = Vec::from_iter(faults).into_iter();
    proxy.on_call(move |asked| {
        if asked != call {
            return None;
        }
        count.fetch_add(1, Ordering::Relaxed);
        faults.next()
    });
    calls
}

async fn behind(cluster: &Shared, name: &str) -> (TestUser, Proxy) {
    let proxy = Proxy::before(cluster, 1).await;
    let builder = Client::builder(proxy.server());
    let user = cluster.user_with(name, builder).await;
    (user.expect("a person"), proxy)
}

#[tokio::test]
async fn an_event_that_nobody_was_shown_is_not_acknowledged() {
    let never = vec![Fault::Wait(Arc::new(Semaphore::new(0)))];
    for faults in [never.clone(), [vec![Fault::Cut; 5], never].concat()] {
        let cluster = cluster().await;
        let ada = cluster.user("ada").await.expect("a person");
        let (bob, proxy) = behind(&cluster, "bob").await;
        let conversation = direct(&ada, &bob).await;
        let read = format!("GET /conversations/{}", conversation.id());
        let last_fault = u32::try_from(faults.len()).expect("a few");
        let calls = fail(&proxy, read, faults);
        conversation.send("for Bob").await.expect("sent");

        let mut events = bob.client.events().expect("a socket");
        let is_shown = async {
            while !matches!(
                events.next().await.expect("an event"),
                ClientEvent::Message { .. }
            ) {}
        };
        tokio::select! {
            () = is_shown => panic!("it is shown without its keys"),
            () = until(|| calls.load(Ordering::Relaxed) == last_fault) => {}
        }
        events.close().await;

        let mut events = bob.client.events().expect("a socket");
        let next = async {
            loop {
                match events.next().await.expect("an event") {
                    ClientEvent::Message { received, .. } => return received.text().to_owned(),
                    ClientEvent::CaughtUp => panic!("the message does not come again"),
                    _ => {}
                }
            }
        };
        let text = timeout(PATIENCE, next).await.expect("in time");
        assert_eq!(text, "for Bob");
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_off_is_asked_for_again_where_a_repeat_changes_nothing() {
    let cluster = cluster().await;
    let (ada, proxy) = behind(&cluster, "ada").await;
    let bob = cluster.user("bob").await.expect("a person");
    let conversation = direct(&ada, &bob).await;
    let path = format!("/conversations/{}", conversation.id());
    let reads = fail(&proxy, format!("GET {path}"), [Fault::Cut]);
    let sends = fail(&proxy, format!("POST {path}/messages"), [Fault::Cut]);
    conversation.send("once").await.expect("sent");
    assert!(reads.load(Ordering::Relaxed) >= 2);
    assert_eq!(sends.load(Ordering::Relaxed), 2);
    assert_eq!(texts(&conversation).await, ["once"]);

    // To open a group twice would make two.
    let opened = fail(&proxy, "POST /conversations".to_owned(), [Fault::Cut]);
    let bob_id = bob.client.user_id().expect("an id");
    let group = ada.client.open_group("group", vec![bob_id]).await;
    assert!(matches!(group, Err(Error::ConnectionLost { .. })));
    assert_eq!(opened.load(Ordering::Relaxed), 1);
}
