//! `PATCH /agents/{agent_id}`.

use axum::{
    body::Body,
    extract::{Request, State as Handle},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::agents::{ManifestUpdate, UpdatedManifest};

use super::super::{
    Agents,
    manifest::{Manifest, Update},
    store,
};
use super::profile;
use crate::{
    auth::{
        agent::Agent,
        owned::{ActingAs, NamedAgent, OwnedAgent},
    },
    db::Db,
    error::{Code, Error, Result},
    events::Event,
    features::announcements::{self, Audience},
    http::{Data, body},
    limits::{
        Limiter,
        quotas::{MANIFEST_ENVELOPE_BYTES, MAX_MANIFEST_BYTES},
        table::Limit,
    },
    work::Tx,
};

/// `PATCH /agents/{agent_id}`: replaces the agent's manifest. With the owner's token it changes the
/// name and the purpose.
///
/// Caller: the agent or its owner. Limit: `agent_manifest_update`, charged only for a valid
/// manifest. Body of the agent: `{manifest, if_version?}` or the bare manifest. Answers 200 with
/// [`UpdatedManifest`]. Publishes `agent.manifest_updated` to the owner and related users. Errors:
/// `MANIFEST_TOO_LARGE` over 128 KB, `VERSION_MISMATCH`, `params {current_version}`. Body of the
/// owner: `{display_name?, description?}` and nothing else. Answers 200 with the agent. Errors:
/// `AGENT_NOT_REGISTERED`.
pub async fn change(
    named: NamedAgent,
    limiter: Limiter,
    Handle(agents): Handle<Agents>,
    request: Request,
) -> Result<Response> {
    let id = named.id;
    match named.by {
        ActingAs::Itself(token) => {
            let updated = update(&agents, &limiter, Agent { id, token }, request).await?;
            Ok(Data(updated).into_response())
        }
        ActingAs::Owner(owner, session) => {
            let agent = OwnedAgent { owner, session, id };
            Ok(profile::change(&agents, &agent, request)
                .await?
                .into_response())
        }
    }
}

async fn update(
    agents: &Agents,
    limiter: &Limiter,
    agent: Agent,
    request: Request,
) -> Result<UpdatedManifest> {
    let Update {
        manifest,
        if_version,
    } = admit(agents.work.db(), agent, request).await?;
    limiter.check(Limit::AgentManifestUpdate, agent.id).await?;

    let replaced = agents.work.run("agents.update_manifest", async |tx| {
        replace(tx, agent, &manifest, if_version).await
    });
    let (manifest_version, changed_scopes) = replaced.await?;
    let size_bytes = manifest.size_bytes();
    Ok(UpdatedManifest {
        manifest_version,
        size_bytes,
        warnings: manifest.warnings,
        changed_scopes,
    })
}

/// Stores a manifest. Returns its version and the changed scopes.
async fn replace(
    tx: &Tx,
    agent: Agent,
    manifest: &Manifest,
    if_version: Option<i32>,
) -> Result<(i32, Vec<String>)> {
    let named = NamedAgent {
        id: agent.id,
        by: ActingAs::Itself(agent.token),
    };
    let locked = store::lock_named(tx, &named).await?;
    let (earlier, version) = store::manifest(tx, agent.id).await?;
    must_be(if_version, version)?;
    let changed_scopes = manifest.changed_scopes(earlier.as_deref());
    let manifest_version = store::put_manifest(tx, agent.id, &manifest.text).await?;
    let event = Event::AgentManifestUpdated(ManifestUpdate {
        agent_id: agent.id,
        manifest_version,
        changed_scopes: changed_scopes.clone(),
    });
    let audience = Audience::of_agent(agent.id).and(locked.owner);
    announcements::broadcast(tx, &audience, &[event]).await?;
    Ok((manifest_version, changed_scopes))
}

/// Reads and checks the body, and the version that it replaces. Only a race is left to the
/// statement.
async fn admit(db: &Db, agent: Agent, request: Request<Body>) -> Result<Update> {
    let (parts, content) = request.into_parts();
    let bytes = body::read(
        &parts,
        content,
        MAX_MANIFEST_BYTES + MANIFEST_ENVELOPE_BYTES,
        Code::ManifestTooLarge,
    )
    .await?;
    let update = Update::from_body(&bytes)?;
    if update.if_version.is_some() {
        must_be(
            update.if_version,
            store::manifest_version(db, agent.id).await?,
        )?;
    }
    Ok(update)
}

fn must_be(wanted: Option<i32>, version: i32) -> Result<()> {
    if wanted.is_none_or(|wanted| wanted == version) {
        return Ok(());
    }
    Err(Error::from(Code::VersionMismatch).with("current_version", version))
}
