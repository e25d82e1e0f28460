//! The behaviours of receivers, and the outcome of each for the caller. Real time passes where a
//! receiver waits, because the deadline under test is real.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use blindpipe::{
    clock::Clock,
    egress::{Egress, EgressError, EgressSettings, MAX_REPLY_BYTES},
    features::webhooks::signature::{Signer, WebhookSecret},
    ids::DeliveryId,
    random::Random,
};
use bytes::Bytes;
use futures_util::future::join_all;

use super::{egress, loopback, post, stock_verifies, verify, word};
use crate::support::{
    Authority,
    Behaviour::{self, *},
    FaultyReceiver,
};

/// The deadline of exchanges here; ten seconds in production.
const TIMEOUT: Duration = Duration::from_secs(4);

/// Every behaviour, with the outcome of a delivery by plain HTTP and over TLS.
pub(super) const OUTCOMES: &[(Behaviour, &str)] = &[
    (Well, "200"),
    (Accepted, "202"),
    (NoContent, "204"),
    (UntilClose, "200"),
    (ConnectionClose, "200"),
    (ClosedUnderUs, "200"),
    (AnswersEarly, "200"),
    (Endless, "200"),
    (HugeLength, "200"),
    (GzipBomb, "200"),
    (TrailingAnswer, "200"),
    (Informational, "200"),
    (MovedPermanently, "301"),
    (RedirectInside, "302"),
    (BadRequest, "400"),
    (Gone, "410"),
    (TooMany, "429"),
    (TooManyUntil, "429"),
    (UnavailableFor, "503"),
    (Unavailable, "503"),
    (ServerError, "500"),
    (SwitchingProtocols, "101"),
    (Hangs, "timeout"),
    (NeverReads, "timeout"),
    (DripsHeaders, "timeout"),
    (DripsBody, "timeout"),
    (EndlessContinue, "timeout"),
    (ClosesAtOnce, "closed"),
    (Resets, "closed"),
    (ClosesUnanswered, "closed"),
    (CutsHeaders, "closed"),
    (CutsBody, "closed"),
    (CutsChunk, "closed"),
    (NotHttp, "protocol"),
    (ManyHeaders, "protocol"),
    (HugeHeader, "protocol"),
    (BadChunk, "protocol"),
    (TwoLengths, "protocol"),
];

/// The behaviours that need TLS.
pub(super) const TLS_OUTCOMES: &[(Behaviour, &str)] = &[
    (Http2, "200"),
    (Http2Reset, "protocol"),
    (Http2HugeHeaders, "protocol"),
    (Expired, "tls"),
    (WrongName, "tls"),
    (UnknownAuthority, "tls"),
    (PlainText, "tls"),
];

fn client(authority: &Authority) -> Egress {
    egress(EgressSettings {
        timeout: TIMEOUT,
        roots: Some(authority.roots()),
        ..loopback(None)
    })
}

/// Delivers a signed body. Returns what was wrong.
async fn deliver(
    egress: &Egress,
    receiver: &FaultyReceiver,
    behaviour: Behaviour,
    expected: &str,
) -> Option<String> {
    let clock = Clock::default();
    let random = Random::new(clock.clone());
    let secret = WebhookSecret::generate(&random);
    // A large body for the one who does not wait for it.
    let large = behaviour == AnswersEarly;
    let body = Bytes::from(vec![b'x'; if large { 900_000 } else { 300 }]);
    let signer = Signer::new(&"Service".parse().expect("a brand"));
    let headers = signer.headers(
        &secret,
        None,
        DeliveryId::generate(&random),
        clock.now(),
        &body,
    );
    let started = Instant::now();
    let outcome = egress.post(&receiver.url(), headers, body.clone()).await;
    let took = started.elapsed();
    let (found, written) = (word(&outcome), receiver.written());
    let late = took > TIMEOUT + Duration::from_secs(2);
    let early = expected == "timeout" && took < TIMEOUT;
    let genuine = receiver.requests().iter().all(|request| {
        request.accepted == expected.starts_with('2')
            && request.body == body
            && stock_verifies(secret.expose(), &request.headers, &body)
            && verified(
                secret.expose(),
                &request.headers,
                &body,
                clock.now().timestamp(),
            )
    });
    (found != expected || late || early || written > 1 << 20 || !genuine).then(|| {
        let url = receiver.url();
        format!("{behaviour:?} at {url}: {found}, {took:?}, {written} bytes, genuine: {genuine}")
    })
}

/// Whether the documented code takes the delivery as genuine.
fn verified(secret: &str, headers: &HashMap<String, String>, body: &[u8], now: i64) -> bool {
    let header = |name: &str| headers.get(name).map(String::as_str);
    verify::verify(secret, header, body, now).is_some()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_behaviour_of_a_receiver_has_its_outcome_in_time() {
    let authority = Authority::new();
    let egress = client(&authority);
    let plain = OUTCOMES.iter().map(|case| (case, false));
    let tls = OUTCOMES.iter().chain(TLS_OUTCOMES).map(|case| (case, true));
    let faults = join_all(plain.chain(tls).map(async |(&(behaviour, expected), tls)| {
        let plan = move |_| behaviour;
        let receiver = if tls {
            FaultyReceiver::tls(&authority, plan).await
        } else {
            FaultyReceiver::plain(plan).await
        };
        deliver(&egress, &receiver, behaviour, expected).await
    }));
    let faults: Vec<String> = faults.await.into_iter().flatten().collect();
    assert!(faults.is_empty(), "{faults:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_answer_is_cut_and_a_compressed_one_stays_compressed() {
    let egress = client(&Authority::new());
    for behaviour in [Endless, HugeLength] {
        let receiver = FaultyReceiver::plain(move |_| behaviour).await;
        let reply = post(&egress, &receiver.url()).await.expect("an answer");
        assert!(reply.truncated && reply.body.len() == MAX_REPLY_BYTES);
        // The rest is not read: the next delivery takes another connection.
        post(&egress, &receiver.url()).await.expect("an answer");
        assert_eq!(receiver.connections(), 2);
    }
    let receiver = FaultyReceiver::plain(|_| GzipBomb).await;
    let reply = post(&egress, &receiver.url()).await.expect("an answer");
    assert!(!reply.truncated && reply.body.starts_with(b"\x1f\x8b\x08"));
    assert!((60_000..61_000).contains(&reply.body.len()));
    let receiver = FaultyReceiver::plain(|_| UntilClose).await;
    let reply = post(&egress, &receiver.url()).await.expect("an answer");
    assert_eq!(&reply.body[..], b"{\"until\": \"close\"}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_is_read_in_both_forms() {
    let egress = client(&Authority::new());
    let answers = [
        TooMany,
        UnavailableFor,
        TooManyUntil,
        Unavailable,
        ServerError,
    ];
    let receiver = FaultyReceiver::plain(move |n| answers[n % answers.len()]).await;
    let mut waits = Vec::new();
    for _ in answers {
        let reply = post(&egress, &receiver.url()).await.expect("an answer");
        waits.push(reply.retry_after);
    }
    let seven = Some(Duration::from_secs(7));
    assert_eq!(waits[..2], [seven, seven]);
    let years = Duration::from_secs(70 * 365 * 24 * 3600);
    for wait in &waits[2..4] {
        assert!(wait.is_some_and(|wait| wait > years), "{waits:?}");
    }
    assert_eq!(waits[4], None);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_are_kept_only_while_they_are_clean() {
    let authority = Authority::new();
    let egress = client(&authority);
    for (behaviour, expected, connections) in [
        (Well, "200", 1),
        (Http2, "200", 1),
        (NoContent, "204", 1),
        (ServerError, "500", 1),
        (ClosedUnderUs, "200", 5),
        (ConnectionClose, "200", 5),
        (UntilClose, "200", 5),
        // The second answer on the connection must not become the answer to the next delivery.
        (TrailingAnswer, "200", 5),
    ] {
        let receiver = FaultyReceiver::tls(&authority, move |_| behaviour).await;
        for n in 0..5 {
            let outcome = post(&egress, &receiver.url()).await;
            assert_eq!(word(&outcome), expected, "{behaviour:?}, {n}");
            // The receiver's close needs a moment to arrive.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(receiver.connections(), connections, "{behaviour:?}");
        assert_eq!(
            receiver.requests().len(),
            5,
            "{behaviour:?}: each is sent once"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_written_is_never_repeated() {
    let egress = client(&Authority::new());
    // The second request on an open connection is read and not answered.
    let receiver = FaultyReceiver::plain(|n| if n == 1 { ClosesUnanswered } else { Well }).await;
    let mut outcomes = Vec::new();
    for _ in 0..3 {
        outcomes.push(word(&post(&egress, &receiver.url()).await));
    }
    assert_eq!(outcomes, ["200", "closed", "200"]);
    assert_eq!(receiver.requests().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_closes_its_connection_and_returns_its_place() {
    let settings = EgressSettings {
        max_in_flight: 3,
        max_in_flight_per_origin: 2,
        ..loopback(None)
    };
    let egress = egress(settings);
    let hanging = FaultyReceiver::plain(|_| Hangs).await;
    let other = FaultyReceiver::plain(|_| Well).await;
    let url = hanging.url();
    {
        let mut calls = Box::pin(join_all([post(&egress, &url), post(&egress, &url)]));
        let both = async {
            while hanging.requests().len() < 2 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            _ = &mut calls => panic!("nobody answers"),
            () = both => {}
        }
        assert_eq!(post(&egress, &url).await.err(), Some(EgressError::Busy));
        assert_eq!(
            word(&post(&egress, &other.url()).await),
            "200",
            "another origin"
        );
    }
    let again = tokio::time::timeout(Duration::from_millis(200), post(&egress, &url)).await;
    assert!(
        again.is_err(),
        "the places came back, and the receiver still hangs"
    );
    assert_eq!(hanging.requests().len(), 3);
}
