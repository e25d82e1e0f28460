//! Forged access tokens, and the set of keys that sign genuine ones.

use std::time::Duration;

use base64::{
    Engine,
    engine::general_purpose::{STANDARD as BASE64, URL_SAFE_NO_PAD as B64},
};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Caller, claims_of, nodes_with, ulid};

const RAISED_LIMITS: (&str, &str) = (
    "LIMIT_OVERRIDES",
    "default_user=100000/s,default_ip=100000/s",
);

fn kid_of(token: &str) -> (String, String) {
    let part = token.split('.').next().expect("a header");
    let header: Value = serde_json::from_slice(&B64.decode(part).expect("base64")).expect("JSON");
    let text = |name: &str| header[name].as_str().expect(name).to_owned();
    (text("kid"), text("alg"))
}

fn header(alg: Algorithm, kid: &str, typ: Option<&str>) -> Header {
    Header {
        typ: typ.map(str::to_owned),
        kid: Some(kid.to_owned()),
        ..Header::new(alg)
    }
}

/// PKCS#8 around a seed, as the library wants it.
fn ed25519(seed: u8) -> EncodingKey {
    let mut der = vec![
        0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20,
    ];
    der.extend([seed; 32]);
    EncodingKey::from_ed_der(&der)
}

/// A ring of an HS256 key of ones and an Ed25519 key of threes.
fn ring() -> String {
    format!(
        "k1:{},k3:ed25519:{}",
        BASE64.encode([1; 32]),
        BASE64.encode([3; 32])
    )
}

/// Good claims with one of them wrong, or without it.
fn wrong_claims(right: &Value) -> Vec<Value> {
    let exp = right["exp"].as_i64().expect("a number");
    let id = ulid().to_string();
    let mut all = Vec::new();
    for (name, values) in [
        (
            "exp",
            vec![
                json!(exp.to_string()),
                json!("9999999999"),
                json!(exp as f64 + 0.5),
                json!(-1),
                json!(0),
                json!(exp - 1000),
                json!(1e300),
                json!(u64::MAX),
                Value::Null,
                json!([exp]),
                json!({}),
                json!(true),
            ],
        ),
        ("nbf", vec![json!(exp.to_string()), json!("x")]),
        (
            "iat",
            vec![json!("x"), Value::Null, json!(exp + 1), json!(1.5)],
        ),
        (
            "iss",
            vec![
                json!("https://evil"),
                json!(""),
                Value::Null,
                json!(["https://evil"]),
                json!(7),
            ],
        ),
        (
            "aud",
            vec![
                json!("other"),
                json!(""),
                Value::Null,
                json!(["other"]),
                json!([]),
            ],
        ),
        (
            "sub",
            vec![
                json!("x"),
                json!(id),
                Value::Null,
                json!(right["sub"].as_str().expect("an id").to_lowercase()),
            ],
        ),
        (
            "sid",
            vec![json!(id), json!(7), Value::Null, json!("' or 1=1 --")],
        ),
        ("did", vec![json!(["x"]), Value::Null, json!(7)]),
        ("jti", vec![Value::Null, json!(7)]),
    ] {
        for value in values {
            let mut other = right.clone();
            other[name] = value;
            all.push(other);
        }
    }
    for name in ["iss", "aud", "sub", "did", "sid", "iat", "exp", "jti"] {
        let mut other = right.clone();
        other.as_object_mut().expect("an object").remove(name);
        all.push(other);
    }
    all
}

fn forged(token: &str) -> Vec<String> {
    let claims = claims_of(token);
    let (hmac, edwards) = (EncodingKey::from_secret(&[1; 32]), ed25519(3));
    let typ = Some("at+jwt");
    let sign = |header: &Header, claims: &Value, key: &EncodingKey| {
        encode(header, claims, key).expect("a token")
    };
    let right = header(Algorithm::HS256, "k1", typ);
    // Keys, names of keys and kinds of token that are not ours.
    let mut all = vec![
        sign(&right, &claims, &EncodingKey::from_secret(&[9; 32])),
        sign(&right, &claims, &EncodingKey::from_secret(b"")),
        sign(&header(Algorithm::EdDSA, "k3", typ), &claims, &ed25519(9)),
        // A key under the other's name, and the other algorithm with either.
        sign(&header(Algorithm::HS256, "k3", typ), &claims, &hmac),
        sign(&header(Algorithm::EdDSA, "k1", typ), &claims, &edwards),
        sign(
            &header(Algorithm::HS256, "k3", typ),
            &claims,
            &EncodingKey::from_secret(&[3; 32]),
        ),
        sign(&header(Algorithm::HS512, "k1", typ), &claims, &hmac),
        sign(&header(Algorithm::HS384, "k1", typ), &claims, &hmac),
        sign(
            &Header {
                kid: None,
                ..right.clone()
            },
            &claims,
            &hmac,
        ),
    ];
    // The public key, which anyone may know, taken for a secret.
    let public = jsonwebtoken::jwk::Jwk::from_encoding_key(&edwards, Algorithm::EdDSA)
        .expect("a public key");
    if let jsonwebtoken::jwk::AlgorithmParameters::OctetKeyPair(pair) = public.algorithm {
        let raw = B64.decode(&pair.x).expect("base64");
        all.push(sign(
            &header(Algorithm::HS256, "k3", typ),
            &claims,
            &EncodingKey::from_secret(&raw),
        ));
        all.push(sign(
            &header(Algorithm::HS256, "k3", typ),
            &claims,
            &EncodingKey::from_secret(pair.x.as_bytes()),
        ));
    }
    for kid in [
        "k2",
        "",
        "K1",
        "k1 ",
        "../../dev/null",
        "' or 1=1 --",
        "k1\u{0}",
        "http://evil/key",
        "0",
    ] {
        all.push(sign(&header(Algorithm::HS256, kid, typ), &claims, &hmac));
    }
    for typ in [
        None,
        Some("JWT"),
        Some("at+JWT "),
        Some("refresh"),
        Some(""),
    ] {
        all.push(sign(&header(Algorithm::HS256, "k1", typ), &claims, &hmac));
    }
    for claims in wrong_claims(&claims) {
        all.push(sign(&right, &claims, &hmac));
        all.push(sign(
            &header(Algorithm::EdDSA, "k3", typ),
            &claims,
            &edwards,
        ));
    }
    // Headers that bring their own key or ask for no signature.
    let body = B64.encode(claims.to_string());
    for alg in [
        "none", "None", "nOnE", "HS256", "RS256", "ES256", "EdDSA", "",
    ] {
        for extra in [
            json!({}),
            json!({ "jwk": { "kty": "oct", "k": B64.encode([9; 32]) } }),
            json!({ "jku": "https://evil/keys" }),
            json!({ "x5u": "https://evil/cert" }),
            json!({ "crit": ["exp"] }),
        ] {
            let mut header = extra;
            for (name, value) in [("alg", alg), ("kid", "k1"), ("typ", "at+jwt")] {
                header[name] = json!(value);
            }
            let header = B64.encode(header.to_string());
            all.extend([
                format!("{header}.{body}."),
                format!("{header}.{body}.AAAA"),
                format!("{header}.{body}"),
            ]);
        }
    }
    // A genuine one, damaged.
    let parts: Vec<&str> = token.split('.').collect();
    let other = |from: &str| {
        from.chars()
            .map(|c| if c == 'A' { 'B' } else { 'A' })
            .collect::<String>()
    };
    all.extend([
        format!("{}.{}.{}", parts[0], other(parts[1]), parts[2]),
        format!("{}.{}.{}", parts[0], parts[1], other(parts[2])),
        format!("{}.{}.", parts[0], parts[1]),
        format!("{}.{}", parts[0], parts[1]),
        format!("{token}.{}", parts[2]),
        format!("{token}="),
        format!(".{}.{}", parts[1], parts[2]),
        "..".to_owned(),
        "x".repeat(5000),
        String::new(),
    ]);
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn attacks_15_and_16_no_forged_token_is_accepted() {
    let keys = ring();
    let [a, b] = nodes_with(&[RAISED_LIMITS, ("ACCESS_TOKEN_KEYS", &keys)]).await;
    let alice = a.user("alice").await;
    // The yardstick: made by us in the same way, from the same claims, both are genuine.
    let claims = claims_of(&alice.access_token);
    let typ = Some("at+jwt");
    let genuine = [
        encode(
            &header(Algorithm::HS256, "k1", typ),
            &claims,
            &EncodingKey::from_secret(&[1; 32]),
        ),
        encode(&header(Algorithm::EdDSA, "k3", typ), &claims, &ed25519(3)),
    ];
    for token in genuine {
        alice
            .on(&b)
            .with_token(&token.expect("a token"))
            .get("/users/me")
            .await
            .expect(200);
    }
    let forged = forged(&alice.access_token);
    assert!(forged.len() >= 200, "{}", forged.len());
    for (n, token) in forged.iter().enumerate() {
        let node = if n % 2 == 0 { &a } else { &b };
        // Bytes that cannot stand in a header cannot be sent.
        let Ok(value) = format!("Bearer {token}").parse::<reqwest::header::HeaderValue>() else {
            continue;
        };
        let caller = node.anon();
        let request = caller
            .request(Method::GET, "/users/me")
            .header("authorization", value);
        let answer = caller.send(request).await;
        assert_eq!(
            (answer.status, answer.code()),
            (401, "UNAUTHORIZED"),
            "{token}"
        );
    }
    // Nor by a socket, for a taste.
    for token in forged.iter().step_by(40) {
        let mut socket = crate::support::Socket::open(&a.anon()).await;
        socket
            .say(json!({ "type": "auth", "access_token": token }))
            .await;
        let said = socket.expect_close(4401).await;
        assert_eq!(said.len(), 1, "{said:?}");
    }
    alice.get("/users/me").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_are_changed_without_anybody_noticing() {
    let old = format!("old:{}", BASE64.encode([1; 32]));
    let new = format!("new:ed25519:{}", BASE64.encode([2; 32]));
    let [before] = nodes_with(&[RAISED_LIMITS, ("ACCESS_TOKEN_KEYS", &old)]).await;
    let world = before.world.clone();
    let start = async |keys: String| {
        world
            .node_with(&[("ACCESS_TOKEN_KEYS", keys.as_str())])
            .await
    };
    let good = async |caller: &Caller, nodes: &[&crate::support::TestNode]| {
        for node in nodes {
            caller.on(node).get("/users/me").await.expect(200);
        }
    };
    // 1: every node learns the new key; while they do, those that have not are not asked to know
    // it.
    let learns = start(format!("{old},{new}")).await;
    let alice = before.user("alice").await;
    assert_eq!(
        kid_of(&alice.access_token),
        ("old".to_owned(), "HS256".to_owned())
    );
    let from_learner = alice.on(&learns).refreshed().await;
    assert_eq!(kid_of(&from_learner.access_token).0, "old");
    good(&from_learner, &[&before, &learns]).await;
    // 2: node by node, it signs.
    let signs = start(format!("{new},{old}")).await;
    let fresh = from_learner.on(&signs).refreshed().await;
    assert_eq!(
        kid_of(&fresh.access_token),
        ("new".to_owned(), "EdDSA".to_owned())
    );
    good(&fresh, &[&signs, &learns]).await;
    good(&alice, &[&signs, &learns, &before]).await;
    // A socket goes on over the change.
    let mut socket = alice.on(&learns).connect().await;
    socket
        .say(json!({ "type": "auth.renew", "access_token": fresh.access_token }))
        .await;
    socket.expect("auth.renewed").await;
    // 3: five minutes later nobody holds a token of the old key, and it goes.
    world.advance(Duration::from_secs(306)).await;
    let after = start(new).await;
    let fresh = fresh.on(&signs).refreshed().await;
    good(&fresh, &[&signs, &after]).await;
    let late = before.user("bob").await;
    late.on(&signs).get("/users/me").await.expect(200);
    late.on(&after)
        .get("/users/me")
        .await
        .refused(401, "UNAUTHORIZED");
    // Refresh cookies do not depend on these keys.
    late.on(&after)
        .refreshed()
        .await
        .get("/users/me")
        .await
        .expect(200);
}
