//! Changes of a password that meet.

use super::*;

/// Changes the password to two others at once, one on each node: both have proven the one before
/// when the account's row is let go. None if one was not there in time.
async fn change_at_once(
    client: &mut Client,
    user: &User,
    nodes: [&TestNode; 2],
) -> Option<Vec<u16>> {
    let tx = client.transaction().await.expect("begun");
    tx.execute("select 1 from user_account for update", &[])
        .await
        .expect("locked");
    let calls = nodes.map(|node| {
        let (caller, new) = (
            user.on(node).caller,
            format!("a new password at {}", node.base),
        );
        let body = json!({ "current_password": PASSWORD, "new_account_password": new });
        spawn(async move { caller.post("/users/me/password", body).await.status })
    });
    while waiting(&tx).await < 2 && !calls.iter().any(tokio::task::JoinHandle::is_finished) {}
    let both = waiting(&tx).await == 2;
    tx.commit().await.expect("released");
    let statuses = join_all(calls)
        .await
        .into_iter()
        .map(|status| status.expect("no panic"))
        .collect();
    both.then_some(statuses)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_password_changes_that_both_begin_before_one_ends_one_wins_and_none_fails() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let mut client = connect(&a.world.database).await;
    let hash = "select password_hash from user_account";
    let hash: String = client.query_one(hash, &[]).await.expect("a hash").get(0);
    for attempt in 0.. {
        assert!(attempt < 20, "never were both there at once");
        if let Some(mut statuses) = change_at_once(&mut client, &alice, [&a, &b]).await {
            statuses.sort_unstable();
            assert_eq!(statuses, [200, 401]);
            break;
        }
        // Either has waited in vain for the other: from the start.
        client
            .execute("update user_account set password_hash = $1", &[&hash])
            .await
            .expect("changed back");
        client
            .batch_execute("delete from login_guard")
            .await
            .expect("forgotten");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_twenty_password_changes_at_once_one_wins() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let mut current = PASSWORD.to_owned();
    for round in 0..3 {
        let alice = alice.login_with(&a, &current).await;
        let both = [alice.on(&a), alice.on(&b)];
        let new: Vec<String> = (0..20)
            .map(|n| format!("password {n} of round {round}"))
            .collect();
        let calls = new.iter().enumerate().map(|(n, new)| {
            let body = json!({ "current_password": current, "new_account_password": new });
            let user = &both[n % 2];
            patiently(async move || user.post("/users/me/password", body.clone()).await)
        });
        let answers: Vec<_> = join_all(calls)
            .await
            .into_iter()
            .map(|(answer, _)| answer)
            .collect();
        let won: Vec<usize> = (0..20).filter(|n| answers[*n].status == 200).collect();
        assert_eq!(won.len(), 1, "{answers:?}");
        for answer in answers.iter().filter(|answer| answer.status != 200) {
            // Beyond five at once the count of failures says stop.
            let known = [(401, "INVALID_CREDENTIALS"), (423, "ACCOUNT_LOCKED")];
            assert!(
                known.contains(&(answer.status, answer.code())),
                "{answer:?}"
            );
        }
        current.clone_from(&new[won[0]]);
        a.advance(Duration::from_secs(901)).await;
    }
}
