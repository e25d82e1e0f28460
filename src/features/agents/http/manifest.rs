//! `PATCH /agents/{agent_id}`.

use axum::{
    body::Body,
    extract::{Request, State as Handle},
};
use serde::Serialize;
use serde_json::json;

use super::super::{
    Agents,
    manifest::{Update, Warning},
    store,
};
use crate::{
    auth::{
        agent::Agent,
        owned::{ActingAs, NamedAgent},
    },
    db::Db,
    error::{Code, Error, Result},
    events::EventKind,
    features::inbox,
    http::{Data, body},
    ids::EventId,
    limits::{
        Limiter,
        quotas::{MANIFEST_ENVELOPE_BYTES, MAX_MANIFEST_BYTES},
        table::Limit,
    },
};

/// What became of a manifest.
#[derive(Serialize)]
pub struct Updated {
    manifest_version: i32,
    size_bytes: usize,
    warnings: Vec<Warning>,
    changed_scopes: Vec<String>,
}

/// `PATCH /agents/{agent_id}`: replaces the agent's manifest.
///
/// Caller: agent. Limit: `agent_manifest_update`, for what could be stored. Body `{manifest, if_version?}` or the bare manifest. Answers 200 with [`Updated`]. Tells the owner and
/// related users `agent.manifest_updated`. Errors: `MANIFEST_TOO_LARGE` over 128 KB, `VERSION_MISMATCH`,
/// `params {current_version}`.
pub async fn update(
    agent: Agent,
    limiter: Limiter,
    Handle(agents): Handle<Agents>,
    request: Request,
) -> Result<Data<Updated>> {
    let Update {
        manifest,
        if_version,
    } = admit(&agents.db, agent, request).await?;
    limiter.take(Limit::AgentManifestUpdate, agent.id).await?;

    let tx = agents.db.begin("agents.update_manifest").await?;
    let named = NamedAgent {
        id: agent.id,
        by: ActingAs::Itself(agent.token),
    };
    let locked = store::lock_named(&tx, &named).await?;
    let (earlier, version) = store::manifest(&tx, agent.id).await?;
    must_be(if_version, version)?;
    let changed_scopes = manifest.changed_scopes(earlier.as_deref());
    let manifest_version = store::put_manifest(&tx, agent.id, &manifest.text).await?;
    let mut told_to = store::related_users(&tx, agent.id).await?;
    if !told_to.contains(&locked.owner.0) {
        told_to.push(locked.owner.0);
    }
    let data = json!({
        "agent_id": agent.id, "manifest_version": manifest_version, "changed_scopes": changed_scopes,
    });
    let kind = EventKind::AgentManifestUpdated;
    let told = inbox::append(
        &tx,
        EventId::generate(&agents.random),
        kind,
        None,
        &data.to_string(),
        &told_to,
    )
    .await?;
    tx.commit().await?;

    agents.tell([told]);
    let size_bytes = manifest.size_bytes();
    Ok(Data(Updated {
        manifest_version,
        size_bytes,
        warnings: manifest.warnings,
        changed_scopes,
    }))
}

/// Reads the body and judges it, and what it wants to replace: everything but the race for it.
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
