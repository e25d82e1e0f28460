//! The keys of an agent: which one signs, and that it stays registered.

use std::{sync::atomic::Ordering, time::Duration};

use blindpipe_e2ee::{PrivateKeys, to_base64, trust::DirectoryKey};
use blindpipe_protocol::{
    agents::{AgentKeys, CheckAgentKey, CheckedAgentKey, RegisterAgentKey, RegisteredAgentKey},
    errors::Code,
    ids::AgentId,
    text::Scheme,
};
use serde_json::Value;
use tracing::warn;

use super::core::Core;
use crate::{
    ApiError, Clock, Error, Result,
    session::hex,
    transport::{Call, Http},
};

/// A key's grace after a new token is seven days.
const KEY_CHECK_INTERVAL: Duration = Duration::from_secs(24 * 3600);

impl Core {
    /// Keeps the key that signs registered: a new token gives it an end.
    pub(super) async fn watch_key(&self) {
        loop {
            self.session.clock.sleep(KEY_CHECK_INTERVAL).await;
            self.check_key_daily().await;
        }
    }

    /// Registers the key that signs once more if it is about to end. It asks once a day.
    pub(super) async fn check_key_daily(&self) {
        let now = self.session.clock.now_ms();
        let before = self.key_checked_at.load(Ordering::Relaxed);
        if Duration::from_millis(now.saturating_sub(before)) < KEY_CHECK_INTERVAL {
            return;
        }
        self.key_checked_at.store(now, Ordering::Relaxed);
        if let Err(error) = self.renew_key().await {
            warn!(error = error.kind(), "the agent's key was not checked");
        }
    }

    async fn renew_key(&self) -> Result<()> {
        let Some(keys) = &self.session.keys else {
            return Ok(());
        };
        let (http, clock) = (&self.http, &self.session.clock);
        match check_key(http, self.agent_id, &keys.signer).await? {
            Checked::Known { current: true } => Ok(()),
            Checked::Known { current: false } => {
                put_back(http, self.agent_id, &keys.signer, clock).await
            }
            Checked::Another(mismatch) => Err(mismatch.into()),
        }
    }
}

/// Checks the keys that are held, and puts the one that fits first. A key is never replaced in
/// silence.
pub(super) async fn check_keys(
    http: &Http,
    agent_id: AgentId,
    mut held: Vec<PrivateKeys>,
    clock: &Clock,
) -> Result<Vec<PrivateKeys>> {
    for at in 0..held.len() {
        let mismatch = match check_key(http, agent_id, &held[at]).await? {
            Checked::Known { current } => {
                // The key that fits signs. The others open secrets that were wrapped for them.
                held[..=at].rotate_right(1);
                if !current {
                    put_back(http, agent_id, &held[0], clock).await?;
                }
                return Ok(held);
            }
            Checked::Another(mismatch) => mismatch,
        };
        let expected = mismatch.params.get("expected_key_ids");
        let has_key = expected
            .and_then(Value::as_array)
            .is_some_and(|ids| !ids.is_empty());
        if has_key && at + 1 == held.len() {
            return Err(mismatch.into());
        }
    }
    if let Some(newest) = held.first() {
        register_key(http, agent_id, newest, clock).await?;
    }
    Ok(held)
}

/// The server's word on a key.
enum Checked {
    /// It is the agent's. Unless it is current, it ends soon.
    Known {
        current: bool,
    },
    Another(ApiError),
}

async fn check_key(http: &Http, agent_id: AgentId, keys: &PrivateKeys) -> Result<Checked> {
    let key_id = hex(&keys.key_id());
    let path = format!("/agents/{agent_id}/keys/check");
    let call = Call::post(path, &CheckAgentKey { key_id }).repeatable();
    match http.data::<CheckedAgentKey>(call).await {
        Ok(CheckedAgentKey { current, .. }) => Ok(Checked::Known { current }),
        Err(Error::Api(error)) if error.code == Some(Code::AgentKeysMismatch) => {
            Ok(Checked::Another(*error))
        }
        Err(error) => Err(error),
    }
}

/// A new token gave the key an end; registered once more, it has none. A key that another one has
/// replaced is left as it is.
async fn put_back(http: &Http, agent_id: AgentId, keys: &PrivateKeys, clock: &Clock) -> Result<()> {
    let call = Call::get(format!("/agents/{agent_id}/keys"));
    let listed = http.data::<AgentKeys>(call).await?;
    if listed.keys.iter().any(|key| key.current) {
        warn!("another key than this agent's is the current one: this one ends");
        return Ok(());
    }
    warn!("the agent's key was about to end and is registered again");
    register_key(http, agent_id, keys, clock).await
}

async fn register_key(
    http: &Http,
    agent_id: AgentId,
    keys: &PrivateKeys,
    clock: &Clock,
) -> Result<()> {
    let public_key = to_base64(keys.public().public_key());
    let signing_public_key = to_base64(keys.public().signing_public_key());
    let timestamp = clock.now();
    let text = format!("keys-register|{agent_id}|{public_key}|{signing_public_key}|{timestamp}");
    let body = RegisterAgentKey {
        public_key,
        signing_public_key,
        timestamp,
        signature: to_base64(&keys.sign(text.as_bytes())),
        introduction: None,
        schemes: Some(vec![Scheme("bp1".to_owned())]),
    };
    let call = Call::post(format!("/agents/{agent_id}/keys/register"), &body);
    http.data::<RegisteredAgentKey>(call.repeatable()).await?;
    Ok(())
}

pub(super) fn directory_key(keys: &PrivateKeys) -> DirectoryKey {
    DirectoryKey {
        device_id: None,
        public_key: *keys.public().public_key(),
        signing_public_key: *keys.public().signing_public_key(),
        schemes: vec!["bp1".to_owned()],
        introduction: None,
        retired: false,
        retired_at: None,
    }
}
