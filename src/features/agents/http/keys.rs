//! `POST /agents/{agent_id}/keys/register`, `POST /agents/{agent_id}/keys/check`, `GET
//! /agents/{agent_id}/keys`.

use axum::extract::State as Handle;
use blindpipe_protocol::{
    agents::{
        AgentKey, AgentKeyRegistration, AgentKeys, CheckAgentKey, CheckedAgentKey,
        RegisterAgentKey, RegisteredAgentKey,
    },
    time::Timestamp,
};

use super::super::{
    AgentState, Agents, move_to,
    proof::{self, Keys, encode},
    store::{self, Key, Viewer},
};
use crate::{
    auth::owned::{AgentView, NamedAgent},
    db::Db,
    error::{Code, Error, Result},
    events::Event,
    features::{
        announcements::{self, Audience},
        keys::{self, Description},
    },
    http::{Created, Data, Json},
    ids::Principal,
    jobs::Job,
    work::Tx,
};

/// `POST /agents/{agent_id}/keys/register`: registers a new key pair of an agent.
///
/// Caller: the agent or its owner. Body [`RegisterAgentKey`], signed by the new signing key. The
/// key before it stays valid for 7 days. An agent's first key makes it `active`. Answers 201 with
/// [`RegisteredAgentKey`]; a repeat with the current key changes at most its schemes and
/// introduction. Publishes `agent.key_registered` to related users, and `agent.state_changed` to
/// the owner if it has. Within seconds, publishes `conversation.updated` where the members have a
/// key, because another one is required. Errors: `VALIDATION_ERROR` (keys, time),
/// `AGENT_KEYS_MISMATCH` (signature), `AGENT_NOT_REGISTERED`.
pub async fn register_key(
    agent: NamedAgent,
    Handle(agents): Handle<Agents>,
    Json(body): Json<RegisterAgentKey>,
) -> Result<Created<RegisteredAgentKey>> {
    let keys = proof::prove(&body, agent.id, agents.clock.now())?;
    let said = Description {
        schemes: body.schemes.as_deref(),
        introduction: body.introduction.as_ref(),
    };
    said.check()?;
    let previous = agents.work.run("agents.register_key", async |tx| {
        make_current(tx, &agent, &keys, said).await
    });
    let previous = previous.await?;
    let previous_valid_until = previous
        .as_ref()
        .and_then(|key| key.valid_until)
        .map(Timestamp);
    Ok(Created(RegisteredAgentKey {
        key_id: keys.id(),
        previous_key_id: previous.map(|key| key.id),
        previous_valid_until,
    }))
}

/// Makes `keys` the agent's current ones, unless they are already. Returns the keys before, while
/// they are valid.
async fn make_current(
    tx: &Tx,
    agent: &NamedAgent,
    keys: &Keys,
    said: Description<'_>,
) -> Result<Option<Key>> {
    let key_id = keys.id();
    let locked = store::lock_named(tx, agent).await?;
    let before = store::keys(tx, agent.id).await?;
    let is_current = |key: &Key| key.valid_until.is_none() && key.id == key_id;
    let (who, is_repeat) = (Principal::Agent(agent.id), before.iter().any(is_current));
    if !is_repeat {
        store::end_current_key(tx, agent.id, &key_id).await?;
        store::put_key(tx, agent.id, keys).await?;
        if locked.state == AgentState::Registered {
            move_to(tx, &locked, AgentState::Active).await?;
        }
    }
    let is_described = keys::describe(tx, who, "", &key_id, said).await?;
    if is_repeat && is_described {
        store::bump_list(tx, agent.id).await?;
    }
    if !is_repeat || is_described {
        let registered = Event::AgentKeyRegistered(AgentKeyRegistration {
            agent_id: agent.id,
            key_id: key_id.clone(),
        });
        announcements::broadcast(tx, &Audience::of_agent(agent.id), &[registered]).await?;
    }
    if !is_repeat {
        tx.enqueue(Job::ReplaceAgentKeys { agent: agent.id });
    }
    let now = store::keys(tx, agent.id).await?;
    Ok(now.into_iter().find(|key| key.id != key_id))
}

/// `POST /agents/{agent_id}/keys/check`: checks whether a key is still valid.
///
/// Caller: the agent, its owner, a related user. Body `{key_id}`. Answers 200 with
/// [`CheckedAgentKey`]. Errors: `AGENT_KEYS_MISMATCH`, `params {expected_key_ids}`;
/// `AGENT_NOT_REGISTERED`.
pub async fn check_key(
    about: AgentView,
    Handle(agents): Handle<Agents>,
    Json(body): Json<CheckAgentKey>,
) -> Result<Data<CheckedAgentKey>> {
    let keys = keys_for(agents.work.db(), &about).await?;
    match keys.iter().find(|key| key.id == body.key_id) {
        Some(key) => Ok(Data(CheckedAgentKey {
            key_id: key.id.clone(),
            current: key.valid_until.is_none(),
            valid_until: key.valid_until.map(Timestamp),
        })),
        None => {
            let expected: Vec<String> = keys.into_iter().map(|key| key.id).collect();
            Err(Error::from(Code::AgentKeysMismatch).with("expected_key_ids", expected))
        }
    }
}

/// `GET /agents/{agent_id}/keys`: the agent's valid keys, the current one first.
///
/// Caller: the agent, its owner, a related user. Answers 200 with [`AgentKeys`]. Errors:
/// `AGENT_NOT_REGISTERED`.
pub async fn list_keys(
    about: AgentView,
    Handle(agents): Handle<Agents>,
) -> Result<Data<AgentKeys>> {
    let keys = keys_for(agents.work.db(), &about)
        .await?
        .into_iter()
        .map(|key| AgentKey {
            public_key: encode(&key.public),
            signing_public_key: encode(&key.signing),
            schemes: key.schemes,
            introduction: key.introduction,
            created_at: key.created_at.into(),
            current: key.valid_until.is_none(),
            valid_until: key.valid_until.map(Timestamp),
            key_id: key.id,
        });
    let client = agents.work.db().read().await?;
    Ok(Data(AgentKeys {
        agent_id: about.agent,
        list_version: store::key_list_version(&client, about.agent).await?,
        keys: keys.collect(),
    }))
}

async fn keys_for(db: &Db, about: &AgentView) -> Result<Vec<Key>> {
    let seen = store::find_visible(db, about.agent, about.who.principal().id()).await?;
    seen.filter(|(_, viewer)| *viewer != Viewer::Unrelated)
        .ok_or(Code::AgentNotRegistered)?;
    store::keys(&db.read().await?, about.agent).await
}
