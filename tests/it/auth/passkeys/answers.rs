//! Answers that are forged, stale, raced or of a copied passkey.

use super::*;

/// Row 22 of the attacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_challenge_is_for_a_single_answer_within_five_minutes() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let mut key = Authenticator::enrol(&alice, "key").await;
    let caller = a.anon();

    // A challenge that was answered, rightly or wrongly, is used up.
    let body = key.answer(&caller).await;
    complete(&caller.on(&b), &body).await.expect(200);
    complete(&caller, &body)
        .await
        .refused(400, "CHALLENGE_EXPIRED");
    let mut body = key.answer(&caller).await;
    let signature = body["credential"]["response"]["signature"].take();
    body["credential"]["response"]["signature"] = json!("MEUCIQDD");
    complete(&caller, &body)
        .await
        .refused(401, "PASSKEY_INVALID");
    body["credential"]["response"]["signature"] = signature;
    complete(&caller, &body)
        .await
        .refused(400, "CHALLENGE_EXPIRED");

    // A moment inside its five minutes, and a moment after.
    for (age, passes) in [(295, true), (301, false)] {
        let body = key.answer(&caller).await;
        a.advance(Duration::from_secs(age)).await;
        let answer = complete(&caller.on(&b), &body).await;
        if passes {
            answer.expect(200)
        } else {
            answer.refused(400, "CHALLENGE_EXPIRED")
        };
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_to_another_challenge_signs_nobody_in() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let mut key = Authenticator::enrol(&alice, "key").await;
    let caller = a.anon();

    // The answer to another challenge; a challenge that never was.
    let (first, second) = (key.answer(&caller).await, key.answer(&caller).await);
    let mixed =
        json!({ "challenge_id": first["challenge_id"], "credential": second["credential"] });
    complete(&caller, &mixed)
        .await
        .refused(401, "PASSKEY_INVALID");
    let unknown = json!({ "challenge_id": ulid().to_string(), "credential": second["credential"] });
    complete(&caller, &unknown)
        .await
        .refused(400, "CHALLENGE_EXPIRED");
    // An enrolment's challenge is none for a login, and a user's is none for another.
    let alice = alice.refreshed().await;
    let begun = alice
        .post("/users/me/passkeys/begin", json!({}))
        .await
        .expect(200);
    let foreign =
        json!({ "challenge_id": begun.data()["challenge_id"], "credential": second["credential"] });
    complete(&caller, &foreign)
        .await
        .refused(400, "CHALLENGE_EXPIRED");
    let credential = Authenticator::default().create(&begun.data()["public_key"]);
    let enrolment =
        json!({ "challenge_id": begun.data()["challenge_id"], "credential": credential });
    let bob = bob.refreshed().await;
    bob.post("/users/me/passkeys/complete", enrolment.clone())
        .await
        .refused(400, "CHALLENGE_EXPIRED");
    alice
        .post("/users/me/passkeys/complete", enrolment)
        .await
        .expect(201);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_not_the_users_own_signs_nobody_in() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let (alice, bob) = (a.user("alice").await, a.user("bob").await);
    let mut key = Authenticator::enrol(&alice, "key").await;
    let mut bobs = Authenticator::enrol(&bob, "key").await;
    let caller = a.anon();

    // A page elsewhere; one on another port; a key of another relying party.
    for origin in [
        "https://evil.example",
        "https://localhost:8443",
        "http://localhost",
    ] {
        let begun = caller
            .post("/auth/passkey/begin", json!({}))
            .await
            .expect(200);
        let mut options = begun.data()["public_key"].clone();
        let mut elsewhere = key.clone().at(origin);
        if origin == "https://evil.example" {
            options["rpId"] = json!("evil.example");
        }
        let body = json!({ "challenge_id": begun.data()["challenge_id"], "credential": elsewhere.get(&options) });
        complete(&caller, &body)
            .await
            .refused(401, "PASSKEY_INVALID");
    }

    // Another user's: the right key under a foreign name, and a name nobody has.
    let handle = |of: &Value| of["credential"]["response"]["userHandle"].clone();
    let mut body = key.answer(&caller).await;
    body["credential"]["response"]["userHandle"] = handle(&bobs.answer(&caller).await);
    complete(&caller, &body)
        .await
        .refused(401, "PASSKEY_INVALID");
    for nobody in [
        json!("AAAAAAAAAAAAAAAAAAAAAA"),
        json!(""),
        json!("AAAA"),
        Value::Null,
    ] {
        let mut body = key.answer(&caller).await;
        body["credential"]["response"]["userHandle"] = nobody;
        complete(&caller, &body)
            .await
            .refused(401, "PASSKEY_INVALID");
    }
    // Bob's signature over Alice's key.
    let mut body = key.answer(&caller).await;
    body["credential"]["response"] = bobs.answer(&caller).await["credential"]["response"].clone();
    body["credential"]["response"]["userHandle"] = handle(&key.answer(&caller).await);
    complete(&caller, &body)
        .await
        .refused(401, "PASSKEY_INVALID");

    // Nobody showed a finger.
    let begun = caller
        .post("/auth/passkey/begin", json!({}))
        .await
        .expect(200);
    let mut options = begun.data()["public_key"].clone();
    options["userVerification"] = json!("discouraged");
    let body =
        json!({ "challenge_id": begun.data()["challenge_id"], "credential": key.get(&options) });
    complete(&caller, &body)
        .await
        .refused(401, "PASSKEY_INVALID");

    // After all that the key is as good as before.
    key.sign_in(&caller).await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_who_answer_one_challenge_on_two_nodes_one_signs_in() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let mut key = Authenticator::enrol(&alice, "key").await;
    let callers = [a.anon(), b.anon()];
    for _ in 0..10 {
        let body = key.answer(&callers[0]).await;
        let answers = join_all((0..8).map(|n| complete(&callers[n % 2], &body))).await;
        assert_eq!(
            answers.iter().filter(|answer| answer.status == 200).count(),
            1
        );
        for answer in answers.into_iter().filter(|answer| answer.status != 200) {
            answer.refused(400, "CHALLENGE_EXPIRED");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copied_passkey_is_found_out_and_removed() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let mut key = Authenticator::enrol(&alice, "key").await;
    let mut other = Authenticator::enrol(&alice, "other").await;
    let caller = a.anon();
    key.sign_in(&caller).await.expect(200);
    let mut copy = key.clone();
    copy.sign_in(&caller.on(&b)).await.expect(200);
    // A process of its own, because tests share the counters of this one.
    let node = ProcessNode::start(&a).await;
    // The user's own is the one that shows it; from then on neither counts.
    key.sign_in(&caller.at(&node.base))
        .await
        .refused(401, "PASSKEY_INVALID");
    assert_eq!(node.metric("passkey_logins_total", "copied").await, 1.0);
    copy.sign_in(&caller.on(&b))
        .await
        .refused(401, "PASSKEY_INVALID");
    let listed = alice.get("/users/me/passkeys").await.expect(200);
    assert_eq!(listed.data().as_array().expect("a list").len(), 1);
    other.sign_in(&caller).await.expect(200);
}
