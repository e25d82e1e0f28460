//! Row 55 of the attacks: the time of a refusal does not tell how much of a secret was right.

use std::time::Instant;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD as BASE64};
use reqwest::Method;

use crate::support::{Caller, FULL_HASHES, Shift, User, nodes_with};

/// The seconds of calls with two kinds of wrong secrets, alternating, so that both meet the same
/// noise.
async fn times(pairs: usize, call: impl AsyncFn(bool)) -> Shift {
    let (mut near, mut far) = (Vec::new(), Vec::new());
    for n in 0..2 * pairs {
        let is_near = n % 2 == 0;
        let started = Instant::now();
        call(is_near).await;
        let took = started.elapsed().as_secs_f64();
        if is_near { &mut near } else { &mut far }.push(took);
    }
    Shift::between(&near, &far)
}

/// Asserts that a shift is chance. A real difference comes again, in the same direction.
async fn tells_nothing(what: &str, pairs: usize, call: impl AsyncFn(bool)) {
    let first = times(pairs, &call).await;
    if first.is_material() {
        let again = times(pairs, &call).await;
        let real = again.is_material() && (first.medians > 0.0) == (again.medians > 0.0);
        assert!(!real, "{what}: {first:?}, then {again:?}");
    }
}

/// The text with another character at `at`.
fn altered(text: &str, at: usize) -> String {
    let mut bytes = text.as_bytes().to_vec();
    bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
    String::from_utf8(bytes).expect("ASCII")
}

async fn refused(caller: &Caller, cookie: &str) {
    let request = caller.request(Method::POST, "/auth/refresh");
    let answer = caller.send(request.header("cookie", cookie)).await;
    answer.refused(401, "TOKEN_EXPIRED");
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_55_refusals_do_not_tell_how_much_was_right() {
    let limits = (
        "LIMIT_OVERRIDES",
        "default_ip=1000000/s,agent_token_unknown=1000000/s,agent_token_wrong=1000000/s,\
         auth_refresh=1000000/s",
    );
    let [a] = nodes_with(&[limits, FULL_HASHES]).await;
    let alice: User = a.user("alice").await;
    let caller = a.anon();
    // The MAC of a refresh token, wrong in its first or in its last byte.
    let token = alice.cookie.trim_start_matches("refresh_token=");
    let bytes = BASE64.decode(token).expect("base64");
    let wrong_at = |at: usize| {
        let mut wrong = bytes.clone();
        wrong[at] ^= 1;
        format!("refresh_token={}", BASE64.encode(wrong))
    };
    let [far, near] = [wrong_at(20), wrong_at(51)];
    tells_nothing("refresh token", 250, async |is_near| {
        refused(&caller, if is_near { &near } else { &far }).await;
    })
    .await;
    // The signature of an access token.
    let signature = alice.access_token.rfind('.').expect("a signature") + 1;
    let [far, near] = [
        altered(&alice.access_token, signature),
        altered(&alice.access_token, alice.access_token.len() - 2),
    ]
    .map(|token| caller.with_token(&token));
    tells_nothing("access token", 250, async |is_near| {
        let caller = if is_near { &near } else { &far };
        caller.get("/users/me").await.refused(401, "UNAUTHORIZED");
    })
    .await;
    // The public characters of an agent token: of an agent, or of none. Its checksum is wrong.
    let agent = a.agent(&alice, "helper").await;
    let [far, near] = [
        altered(&altered(&agent.token, 6), 43),
        altered(&agent.token, 43),
    ]
    .map(|token| caller.with_token(&token));
    tells_nothing("agent token", 250, async |is_near| {
        let caller = if is_near { &near } else { &far };
        caller
            .get("/limits")
            .await
            .refused(401, "AGENT_TOKEN_INVALID");
    })
    .await;
}
