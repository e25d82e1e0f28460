//! Attacks on access and refresh tokens.

mod sockets;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::support::{
    Answer, Caller, PASSWORD, TestNode, User, nodes, nodes_with, patiently, spawn,
};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "default_user=100000/s,default_ip=100000/s,auth_refresh=100000/s,auth_login_ip=100000/s",
);

async fn refresh(caller: &Caller, cookie: &str) -> Answer {
    caller
        .send(
            caller
                .request(Method::POST, "/auth/refresh")
                .header("cookie", cookie),
        )
        .await
}

fn cookie_of(answer: &Answer) -> String {
    answer
        .header("set-cookie")
        .expect("a cookie")
        .split(';')
        .next()
        .expect("a value")
        .to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_17_a_token_is_over_six_seconds_after_its_end() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    a.advance_to(alice.after_its_end(4)).await;
    alice.on(&b).get("/users/me").await.expect(200);
    a.advance_to(alice.after_its_end(6)).await;
    for node in [&a, &b] {
        alice
            .on(node)
            .get("/users/me")
            .await
            .refused(401, "UNAUTHORIZED");
    }
    alice
        .refreshed()
        .await
        .on(&b)
        .get("/users/me")
        .await
        .expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_18_a_stolen_refresh_token_ends_the_session() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let phone = alice.login(&b, Some("phone")).await;
    let socket = alice.on(&b).connect().await;
    let second = cookie_of(&refresh(&a.anon(), &alice.cookie).await.expect(200));
    a.advance(Duration::from_secs(11)).await;
    // The thief is the first or the second to come, nobody can say: both are out.
    refresh(&b.anon(), &alice.cookie)
        .await
        .refused(401, "TOKEN_EXPIRED");
    for node in [&a, &b] {
        refresh(&node.anon(), &second)
            .await
            .refused(401, "TOKEN_EXPIRED");
        alice
            .on(node)
            .get("/users/me")
            .await
            .refused(401, "UNAUTHORIZED");
    }
    let last = socket.expect_close(4403).await.pop().expect("a frame");
    assert_eq!(
        (&last["type"], &last["reason"]),
        (&json!("session.invalidated"), &json!("refresh_reuse"))
    );
    // The other device is not concerned.
    phone.refreshed().await.get("/users/me").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_19_two_tabs_that_refresh_at_once_get_one_successor() {
    let [a, b] = nodes().await;
    let alice = a.user("alice").await;
    let callers = [a.anon(), b.anon()];
    let unavailable = AtomicUsize::new(0);
    let (callers, refused) = (&callers, &unavailable);
    let refresh = async |n: usize, cookie: &str| {
        let (answer, times) = patiently(async || refresh(&callers[n % 2], cookie).await).await;
        refused.fetch_add(times, Ordering::Relaxed);
        answer
    };
    let answers = join_all((0..20).map(|n| refresh(n, &alice.cookie))).await;
    let second = cookie_of(&answers[0]);
    assert!(
        answers
            .iter()
            .all(|answer| answer.status == 200 && cookie_of(answer) == second)
    );
    assert_ne!(second, alice.cookie);
    // An answer that was lost, within ten seconds; real time passes, too.
    a.advance(Duration::from_secs(5)).await;
    assert_eq!(
        cookie_of(&refresh(1, &alice.cookie).await.expect(200)),
        second
    );
    let third = cookie_of(&refresh(0, &second).await.expect(200));
    assert_eq!(cookie_of(&refresh(1, &second).await.expect(200)), third);
    // Sixty a minute, over both nodes, whichever token of the session it is.
    let answers = join_all((0..60).map(|n| refresh(n, &third))).await;
    let limited: Vec<_> = answers
        .iter()
        .filter(|answer| answer.status == 429)
        .collect();
    // Twenty-three have been used above, and one by each that was told to come again.
    assert_eq!(limited.len(), 23 + unavailable.load(Ordering::Relaxed));
    assert!(
        limited
            .iter()
            .all(|answer| answer.body["error"]["params"]["scope"] == "auth_refresh")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_slides_thirty_days_and_ends_after_a_hundred_and_eighty() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let idle = alice.login(&b, Some("idle")).await;
    let day = Duration::from_secs(86_400);
    let mut cookie = alice.cookie.clone();
    for _ in 0..6 {
        a.advance(day * 29).await;
        cookie = cookie_of(&refresh(&b.anon(), &cookie).await.expect(200));
    }
    refresh(&a.anon(), &idle.cookie)
        .await
        .refused(401, "TOKEN_EXPIRED");
    a.advance(day * 5).await;
    let answer = refresh(&a.anon(), &cookie).await.expect(200);
    a.advance(day * 2).await;
    refresh(&a.anon(), &cookie_of(&answer))
        .await
        .refused(401, "TOKEN_EXPIRED");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_20_another_page_cannot_use_the_cookie() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let with = async |path: &str, headers: &[(&str, &str)], body: Option<&'static str>| {
        let mut request = alice.request(Method::POST, path);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        alice.send(request.body(body.unwrap_or_default())).await
    };
    let own = alice.cookie.as_str();
    for origin in [
        "https://evil.example",
        "null",
        "http://localhost",
        "https://localhost.evil.example",
    ] {
        for path in [
            "/auth/refresh",
            "/auth/logout",
            "/auth/login",
            "/auth/register",
            "/auth/login-code",
        ] {
            let headers = [("cookie", own), ("origin", origin)];
            with(path, &headers, None)
                .await
                .refused(403, "ORIGIN_NOT_ALLOWED");
        }
    }
    // A browser that sends no `Origin` says all the same that another site's page asks.
    for (site, status) in [("cross-site", 403), ("same-site", 403), ("odd", 403)] {
        for path in ["/auth/refresh", "/auth/logout", "/auth/login"] {
            let headers = [("cookie", own), ("sec-fetch-site", site)];
            let answer = with(path, &headers, None).await;
            answer.refused(status, "ORIGIN_NOT_ALLOWED");
        }
    }
    for headers in [
        [("sec-fetch-site", "same-origin"), ("x-nothing", "")],
        [("sec-fetch-site", "none"), ("x-nothing", "")],
        // The allow-list decides about a page that says where it is from.
        [
            ("sec-fetch-site", "cross-site"),
            ("origin", "https://localhost"),
        ],
    ] {
        let answer = with("/auth/logout", &headers, None).await;
        answer.expect(200);
    }
    // A form cannot log its victim in as the attacker.
    let form = format!(
        "email={}&account_password={PASSWORD}&turnstile_token=dev-pass",
        alice.email
    );
    for kind in [
        "application/x-www-form-urlencoded",
        "text/plain",
        "multipart/form-data; boundary=x",
    ] {
        let request = alice
            .request(Method::POST, "/auth/login")
            .header("content-type", kind);
        alice
            .send(request.body(form.clone()))
            .await
            .refused(400, "VALIDATION_ERROR");
    }
    // A cookie that a neighbour page has planted beside the real one.
    let bob = a.user("bob").await;
    for cookies in [
        format!("{own}; {}", bob.cookie),
        format!("{own}; {own}"),
        format!("refresh_token=; {own}"),
    ] {
        with("/auth/refresh", &[("cookie", &cookies)], None)
            .await
            .refused(401, "TOKEN_EXPIRED");
    }
    let two = [("cookie", own), ("cookie", bob.cookie.as_str())];
    with("/auth/refresh", &two, None)
        .await
        .refused(401, "TOKEN_EXPIRED");
    // To the letter as the interface has it, and from our own page.
    let headers = [("cookie", own), ("origin", "https://localhost")];
    let answer = with("/auth/refresh", &headers, None).await.expect(200);
    let (_, attributes) = answer
        .header("set-cookie")
        .expect("a cookie")
        .split_once(';')
        .expect("attributes");
    assert_eq!(
        attributes,
        " HttpOnly; Secure; SameSite=Strict; Path=/auth; Max-Age=2592000"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_21_a_refresh_token_counts_in_its_cookie_only() {
    let [a] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let token = alice.cookie.trim_start_matches("refresh_token=");
    let nobody = a.anon();
    nobody
        .post("/auth/refresh", json!({ "refresh_token": token }))
        .await
        .refused(401, "TOKEN_EXPIRED");
    nobody
        .post(format!("/auth/refresh?refresh_token={token}"), json!({}))
        .await
        .refused(401, "TOKEN_EXPIRED");
    nobody
        .with_token(token)
        .post("/auth/refresh", json!({}))
        .await
        .refused(401, "TOKEN_EXPIRED");
    nobody
        .with_token(token)
        .get("/users/me")
        .await
        .refused(401, "UNAUTHORIZED");
    for cookie in [
        "",
        "refresh_token=",
        "refresh_token=junk",
        &format!("Refresh_Token={token}"),
        &format!("refresh_token={}", &token[..token.len() - 2]),
        &format!("refresh_token={token}AA"),
        &format!("refresh_token={}", alice.access_token),
    ] {
        refresh(&nobody, cookie).await.refused(401, "TOKEN_EXPIRED");
    }
    // Any one byte changed.
    for at in 0..token.len() {
        let mut other = token.to_owned().into_bytes();
        other[at] = if other[at] == b'A' { b'B' } else { b'A' };
        let cookie = format!("refresh_token={}", String::from_utf8(other).expect("ASCII"));
        if cookie != alice.cookie {
            refresh(&nobody, &cookie)
                .await
                .refused(401, "TOKEN_EXPIRED");
        }
    }
    refresh(&nobody, &alice.cookie).await.expect(200);
}

/// Requests under way on both nodes while a session is ended, and 200 issued after the answer.
async fn drill(
    nodes: &[TestNode; 2],
    victim: &User,
    end: impl Future<Output = Answer>,
) -> (usize, usize) {
    let callers = [victim.on(&nodes[0]), victim.on(&nodes[1])];
    let (over, before) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicUsize::new(0)),
    );
    let under_way = (0..4).map(|n| {
        let (caller, over, before) = (callers[n % 2].clone(), over.clone(), before.clone());
        spawn(async move {
            let mut seen = Vec::new();
            while !over.load(Ordering::Acquire) {
                let issued = Instant::now();
                let answer = caller.get("/users/me").await;
                before.fetch_add(1, Ordering::Relaxed);
                seen.push((issued, answer.status));
            }
            seen
        })
    });
    let under_way: Vec<_> = under_way.collect();
    while before.load(Ordering::Relaxed) < 4 {
        tokio::task::yield_now().await;
    }
    end.await.expect(200);
    let ended = Instant::now();
    let after = join_all((0..200).map(|n| callers[n % 2].get("/users/me"))).await;
    over.store(true, Ordering::Release);
    let mut trials = after.len();
    let mut accepted = after.iter().filter(|answer| answer.status != 401).count();
    for task in under_way {
        let late: Vec<_> = task
            .await
            .expect("no panic")
            .into_iter()
            .filter(|(issued, _)| *issued > ended)
            .collect();
        trials += late.len();
        accepted += late.iter().filter(|(_, status)| *status != 401).count();
    }
    (trials, accepted)
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_23_nothing_is_accepted_after_the_answer_to_a_revocation() {
    let [a, b] = nodes_with(&[RAISED_LIMITS]).await;
    let alice = a.user("alice").await;
    let nodes = [a, b];
    let (mut trials, mut accepted) = (0, 0);
    for n in 0..50 {
        let name = format!("phone-{n}");
        let victim = alice.login(&nodes[n % 2], Some(&name)).await;
        let by = alice.on(&nodes[n / 2 % 2]);
        let (tried, passed) = match n % 3 {
            0 => {
                drill(
                    &nodes,
                    &victim,
                    victim.on(&nodes[n % 2]).with_cookie("/auth/logout"),
                )
                .await
            }
            _ => {
                drill(
                    &nodes,
                    &victim,
                    by.delete(format!("/users/me/devices/{name}")),
                )
                .await
            }
        };
        trials += tried;
        accepted += passed;
    }
    assert!(trials >= 10_000, "{trials}");
    assert_eq!(accepted, 0, "of {trials}");
    alice.get("/users/me").await.expect(200);
}
