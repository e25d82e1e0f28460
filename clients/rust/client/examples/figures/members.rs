//! Members with keys, made without the cost of a key backup: nobody restores them.

use blindpipe_client::{
    Error, Result,
    e2ee::{PrivateKeys, to_base64},
    protocol::ids::UserId,
    testing::DevCluster,
};
use futures_util::{StreamExt, TryStreamExt, stream};
use rand::{SeedableRng, rngs::StdRng};
use serde_json::{Value, json};

const CONCURRENT: usize = 8;
/// The length of a backup with a single key.
const BACKUP_BYTES: usize = 78;

pub async fn register(cluster: &DevCluster, count: usize) -> Result<Vec<UserId>> {
    let authority = std::fs::read(cluster.ca_file()?).map_err(Error::other)?;
    let authority = reqwest::Certificate::from_pem(&authority).map_err(Error::other)?;
    let http = reqwest::Client::builder().tls_certs_only([authority]);
    let http = http.no_proxy().build().map_err(Error::other)?;
    let members = (0..count).map(|n| member(cluster, &http, n));
    stream::iter(members)
        .buffered(CONCURRENT)
        .try_collect()
        .await
}

async fn member(cluster: &DevCluster, http: &reqwest::Client, n: usize) -> Result<UserId> {
    let url = cluster.node(n)?.url().to_owned();
    let email = format!("member-{n}@example.com");
    let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
    post(http.post(format!("{url}/auth/send-code")), &body).await?;
    let body = json!({
        "email": email,
        "code": cluster.code(&email).await?,
        "account_password": format!("a password of member {n}"),
        "display_name": format!("Member {n}"),
        "device_locale": "en",
        "turnstile_token": "dev-pass",
        "device_id": format!("device-{n}"),
    });
    let made = post(http.post(format!("{url}/auth/register")), &body).await?;
    let token = made["access_token"].as_str().unwrap_or_default().to_owned();
    let mut rng = StdRng::seed_from_u64(n as u64);
    let keys = PrivateKeys::random(&mut rng);
    let body = json!({
        "backup_a": to_base64(&[1; BACKUP_BYTES]),
        "backup_b": to_base64(&[2; BACKUP_BYTES]),
        "argon2_salt": to_base64(&[3; 32]),
        "argon2_params": { "m": 65_536, "t": 3, "p": 1 },
        "public_key": to_base64(keys.public().public_key()),
        "signing_public_key": to_base64(keys.public().signing_public_key()),
        "device_id": format!("device-{n}"),
        "schemes": ["bp1"],
    });
    let backup = http.post(format!("{url}/keys/backup")).bearer_auth(token);
    post(backup, &body).await?;
    serde_json::from_value(made["user_id"].clone()).map_err(Error::other)
}

async fn post(request: reqwest::RequestBuilder, body: &Value) -> Result<Value> {
    let answer = request.json(body).send().await.map_err(Error::other)?;
    let answer = answer.error_for_status().map_err(Error::other)?;
    let answer: Value = answer.json().await.map_err(Error::other)?;
    Ok(answer["data"].clone())
}
