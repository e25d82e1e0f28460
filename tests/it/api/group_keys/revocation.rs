//! Keys that a revoked device holds are replaced.

use super::*;

/// Waits until nothing is to be done now for devices that were lost.
async fn seen_to(node: &TestNode) {
    let client = connect(&node.world.database).await;
    let due = "select count(*) from job where kind = 'replace_keys' and run_at <= app_now()";
    for _ in 0..400 {
        if client
            .query_one(due, &[])
            .await
            .expect("a count")
            .get::<_, i64>(0)
            == 0
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("lost devices wait");
}

async fn is_required(user: &User, group: &str) -> bool {
    own(user, group, "").await["rotation_required"]
        .as_bool()
        .expect("a flag")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_device_has_the_keys_replaced_that_it_holds() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    let [phone, tablet] = [
        alice.login(&b, Some("phone")).await,
        alice.login(&b, Some("tablet")).await,
    ];
    let without = alice.login(&b, Some("bare")).await;
    for user in [&alice, &phone, &tablet, &bob] {
        with_keys(user).await;
    }
    let all = |text: &str| {
        json!([
            key_for(&alice, &alice.device_id, text),
            key_for(&alice, "phone", text),
            key_for(&alice, "tablet", text),
            key_for(&bob, &bob.device_id, text)
        ])
    };
    let mut groups = Vec::new();
    for owner in [&alice, &bob, &alice, &bob] {
        let other = if owner.id == alice.id { &bob } else { &alice };
        groups.push(owner.group_with(&[other]).await);
    }
    let direct = alice.direct_with(&bob).await;
    let [two, left, bare, old] = [&groups[0], &groups[1], &groups[2], &groups[3]];
    for id in [two, left, old, &direct] {
        rotate(&alice, id, 0, all("first")).await.expect(201);
    }
    // A group that she has left has been asked to rotate by that.
    alice
        .delete(format!("/groups/{left}/members/{}", alice.id))
        .await
        .expect(200);
    rotate(
        &bob,
        left,
        1,
        json!([key_for(&bob, &bob.device_id, "second")]),
    )
    .await
    .expect(201);
    // A device without keys was given none.
    alice
        .delete(format!("/users/me/devices/{}", without.device_id))
        .await
        .expect(200);
    seen_to(&a).await;
    assert!(!is_required(&bob, two).await);

    let mut bob_socket = bob.on(&b).connect().await;
    alice
        .on(&b)
        .delete("/users/me/devices/phone")
        .await
        .expect(200);
    let mut told = Vec::new();
    for _ in 0..3 {
        let event = bob_socket.event("conversation.updated").await;
        assert_eq!(
            (&event["data"]["rotation_required"], &event["data"]["epoch"]),
            (&json!(true), &json!(1))
        );
        told.push(
            event["data"]["conversation_id"]
                .as_str()
                .expect("an id")
                .to_owned(),
        );
    }
    told.sort();
    let mut expected = vec![two.clone(), old.clone(), direct.clone()];
    expected.sort();
    assert_eq!(told, expected);
    seen_to(&a).await;
    for (id, required) in [
        (two, true),
        (old, true),
        (&direct, true),
        (bare, false),
        (left, false),
    ] {
        assert_eq!(is_required(&bob, id).await, required, "{id}");
    }
    // The tablet goes, too: it is asked for already, and nobody is told twice.
    alice.delete("/users/me/devices/tablet").await.expect(200);
    seen_to(&a).await;
    rotate(&bob, two, 1, all("second"))
        .await
        .refused(409, "RECIPIENTS_MISMATCH");
    let rest = json!([
        key_for(&alice, &alice.device_id, "second"),
        key_for(&bob, &bob.device_id, "second")
    ]);
    rotate(&bob, two, 1, rest.clone()).await.expect(201);
    // The second round finds nothing that is new, and then the losses are forgotten.
    a.advance(Duration::from_secs(31)).await;
    seen_to(&a).await;
    assert_eq!(
        (is_required(&bob, two).await, is_required(&bob, old).await),
        (false, true)
    );
    let client = connect(&a.world.database).await;
    let noted = client
        .query_one("select count(*) from job where kind = 'replace_keys'", &[])
        .await
        .expect("a count");
    assert_eq!(noted.get::<_, i64>(0), 0);
    bob_socket.say(json!({ "type": "ping" })).await;
    loop {
        let frame = bob_socket.next().await.expect("open");
        assert_ne!(frame["event"], "conversation.updated");
        if frame["type"] == "pong" {
            break;
        }
    }
    // Back with keys of its own it is a recipient again, and no reason to rotate.
    let alice = alice.refreshed().await;
    let phone = alice.login(&b, Some("phone")).await;
    with_keys(&phone).await;
    let mut back = rest.as_array().expect("a list").clone();
    back.push(key_for(&alice, "phone", "third"));
    rotate(&bob.refreshed().await, two, 2, json!(back))
        .await
        .expect(201);
    seen_to(&a).await;
    assert!(!is_required(&bob, two).await);
}

/// Bob rotates the group's keys, and Alice's device is revoked while the rotation waits for its end.
async fn revoked_under_way(node: &TestNode, bob: &User, alice: &User, group: &str) -> Answer {
    let device = &alice.device_id;
    let keys = json!([
        key_for(alice, device, "first"),
        key_for(bob, &bob.device_id, "first")
    ]);
    // It has seen the device and waits with its event for Bob's inbox.
    let mut client = connect(&node.world.database).await;
    let id: uuid::Uuid = bob.id.parse::<ulid::Ulid>().expect("a ULID").into();
    let tx = client.transaction().await.expect("begun");
    tx.execute(
        "select 1 from inbox where principal_id = $1 for update",
        &[&id],
    )
    .await
    .expect("locked");
    let rotation = spawn({
        let (bob, group) = (bob.clone(), group.to_owned());
        async move { rotate(&bob, &group, 0, keys).await }
    });
    blocked(&tx, 1).await;
    // The changes of a revocation, but for its event, which would wait for that inbox, too.
    let job = json!({ "replace_keys": { "user": alice.id, "device_id": device } });
    let revocation = format!(
        "update device set revoked_at = app_now(), key_id = null where device_id = '{device}';
        insert into job (kind, payload, run_at) select 'replace_keys', '{job}', app_now() + late
        from unnest(array[interval '0', interval '30 s']) as late"
    );
    psql(&node.world.database, &revocation).await;
    seen_to(node).await;
    tx.commit().await.expect("released");
    rotation.await.expect("no panic")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rotation_under_way_when_its_recipient_is_revoked_is_asked_for_again() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let [alice, bob] = [a.user("alice").await, a.user("bob").await];
    with_keys(&bob).await;
    let group = alice.group_with(&[&bob]).await;
    for device in ["phone", "tablet", "laptop", "desktop"] {
        let lost = alice.login(&b, Some(device)).await;
        with_keys(&lost).await;
        let rotated = revoked_under_way(&a, &bob, &lost, &group).await;
        if rotated.status == 409 {
            // The machine was slow: the rotation gave its lock up, and its next try saw the end.
            rotated.refused(409, "RECIPIENTS_MISMATCH");
            continue;
        }
        rotated.expect(201);
        assert!(!is_required(&bob, &group).await);
        a.advance(Duration::from_secs(31)).await;
        seen_to(&a).await;
        assert!(is_required(&bob, &group).await);
        return;
    }
    panic!("each rotation began again");
}
