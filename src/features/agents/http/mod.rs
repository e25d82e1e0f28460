//! `POST /agents`, `GET /agents`, `GET /agents/{agent_id}`, `DELETE /agents/{agent_id}`.

mod ack;
mod keys;
mod manifest;
mod profile;
mod tokens;

use axum::{
    body::Body,
    extract::{Request, State as Handle},
    response::{IntoResponse, Response},
};
use blindpipe_protocol::{
    agents::{
        Agent, AgentCard, AgentTokenInfo, Connection, ConnectionMode, CreateAgent, CreatedAgent,
        DeletedAgent, InboxInfo,
    },
    raw::RawJson,
    text::Secret,
    time::Timestamp,
};
use chrono::{DateTime, Utc};
use secrecy::ExposeSecret;

pub use self::{
    ack::ack,
    keys::{check_key, list_keys, register_key},
    manifest::change,
    tokens::{regenerate_token, revoke_token},
};
use super::{
    AgentState, Agents,
    manifest::{Manifest, wrapped},
    store::{self, AgentRow, Viewer},
};
use crate::{
    auth::{
        owned::{AgentView, OwnedAgent},
        user::{self, User},
    },
    error::{Code, Error, Result},
    features::accounts::{self, SecurityChange},
    http::{Created, Data, List, Page, Query, RoomForPage, body, json},
    ids::{AgentId, Principal},
    inbox::groups,
    limits::{
        quotas::{MANIFEST_ENVELOPE_BYTES, MAX_MANIFEST_BYTES},
        slots::{self, ConnectionKind},
    },
};

/// `POST /agents`: makes an agent and its token.
///
/// Caller: user. Body `{display_name, description?, manifest?}`. Answers 201 with [`CreatedAgent`].
/// Errors: `AGENT_LIMIT_EXCEEDED` for the 51st (operator's setting), `params {limit, alias}`;
/// `MANIFEST_TOO_LARGE`.
pub async fn create(
    user: User,
    Handle(agents): Handle<Agents>,
    request: Request,
) -> Result<Created<CreatedAgent>> {
    let (body, manifest) = read_agent(request).await?;
    let id = AgentId::generate(agents.work.random());
    let new = store::NewAgent {
        id,
        owner: user.id,
        display_name: &body.display_name.0,
        description: body.description.as_ref().map(|text| text.0.as_str()),
        manifest: manifest.as_ref().map(|manifest| manifest.text.as_str()),
    };
    // The reservation comes before the costly hash, so that a refused request costs nothing.
    let reserved = agents.work.run("agents.reserve", async |tx| {
        store::reserve(tx, &new, user.session, agents.quotas.agents_per_user).await
    });
    reserved.await?;
    match open(&agents, id, &user).await {
        Ok((token, created_at)) => Ok(Created(CreatedAgent {
            agent_id: id,
            token,
            display_name: body.display_name.0,
            state: AgentState::Registered,
            created_at: created_at.into(),
        })),
        Err(error) => {
            let given_up = agents.work.run("agents.give_up", async |tx| {
                store::give_up(tx, id, user.id).await
            });
            if let Err(error) = given_up.await {
                error.log_in(
                    "agents.give_up",
                    "the owner finds an agent without a token, to be used or deleted",
                );
            }
            Err(error)
        }
    }
}

async fn read_agent(request: Request<Body>) -> Result<(CreateAgent, Option<Manifest>)> {
    let (parts, content) = request.into_parts();
    let bytes = body::read(
        &parts,
        content,
        MAX_MANIFEST_BYTES + MANIFEST_ENVELOPE_BYTES,
        Code::ManifestTooLarge,
    )
    .await?;
    let body: CreateAgent = json::parse(&bytes)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| Error::field("", "json", "is not UTF-8"))?;
    let manifest = wrapped(text)
        .map(|text| Manifest::read(text, "manifest"))
        .transpose()?;
    Ok((body, manifest))
}

async fn open(agents: &Agents, agent: AgentId, owner: &User) -> Result<(Secret, DateTime<Utc>)> {
    let (token, hash) = agents.generate().await?;
    let opened = agents.work.run("agents.open", async |tx| {
        user::lock_live_session(tx, owner.id, owner.session).await?;
        let created_at = store::open(tx, agent)
            .await?
            .ok_or(Code::AgentNotRegistered)?;
        store::add_token(tx, agent, (&token.lookup, &hash), owner.session).await?;
        accounts::notify(tx, owner.id, SecurityChange::AgentMade).await?;
        Ok(created_at)
    });
    let created_at = opened.await?;
    Ok((token.token.expose_secret().into(), created_at))
}

/// The database holds only JSON that was checked on arrival.
fn raw(manifest: Option<String>) -> Option<RawJson> {
    manifest.and_then(|text| RawJson::parse(text).ok())
}

fn connection(shown: slots::Connection) -> Connection {
    Connection {
        connection_id: shown.connection_id,
        kind: shown.kind,
        connected_at: shown.connected_at.into(),
        mode: None,
        group: None,
        conversations: None,
        lag: None,
    }
}

/// Adds to the sockets of agents what each is given.
async fn add_shares(agents: &Agents, shown: &mut [Agent]) -> Result<()> {
    let ids: Vec<AgentId> = shown.iter().map(|agent| agent.agent_id).collect();
    let members = groups::members(&agents.work.db().read().await?, &ids).await?;
    for shown in shown.iter_mut().flat_map(|agent| &mut agent.connections) {
        if shown.kind != ConnectionKind::Websocket {
            continue;
        }
        let id = shown.connection_id;
        match members.iter().find(|member| member.connection == id) {
            Some(member) => {
                shown.mode = Some(ConnectionMode::Shared);
                shown.group = Some(member.group.clone());
                shown.conversations = Some(member.conversations);
                shown.lag = Some(member.lag);
            }
            None => shown.mode = Some(ConnectionMode::All),
        }
    }
    Ok(())
}

fn full(agent: AgentRow, connections: Vec<slots::Connection>) -> Agent {
    let grace_until = agent.grace_until.map(Timestamp);
    let token = agent
        .token
        .map(|(created_at, last_used_at)| AgentTokenInfo {
            created_at: created_at.into(),
            last_used_at: last_used_at.map(Timestamp),
            grace_until,
        });
    Agent {
        agent_id: agent.id,
        owner_user_id: agent.owner,
        display_name: agent.display_name,
        description: agent.description,
        state: agent.state,
        delivery_mode: agent.delivery_mode,
        manifest_version: agent.manifest_version,
        manifest_size_bytes: agent.manifest.as_ref().map_or(0, String::len) as u64,
        manifest: raw(agent.manifest),
        key_id: agent.key_id,
        token,
        connections: connections.into_iter().map(connection).collect(),
        inbox: InboxInfo {
            head_seq: agent.head_seq,
            acked_seq: agent.acked_seq,
            lag: agent.head_seq - agent.acked_seq,
        },
        unreachable_since: agent.unreachable_since.map(Timestamp),
        created_at: agent.created_at.into(),
    }
}

fn card(agent: AgentRow) -> AgentCard {
    AgentCard {
        agent_id: agent.id,
        display_name: agent.display_name,
        description: agent.description,
        state: agent.state,
        manifest_version: agent.manifest_version,
        manifest: raw(agent.manifest),
        key_id: agent.key_id,
        created_at: agent.created_at.into(),
    }
}

/// `GET /agents?limit=&cursor=`: the caller's agents, oldest first.
///
/// Caller: user. Answers 200 with a list of [`Agent`]. A page ends early rather than grow past
/// 4 MB of manifests.
pub async fn list(
    user: User,
    _: RoomForPage,
    Handle(agents): Handle<Agents>,
    Query(query): Query<Page<AgentId>>,
) -> Result<List<Agent>> {
    let (rows, cut) = store::list(agents.work.db(), user.id, query.cursor, query.rows()).await?;
    let List {
        data,
        mut next_cursor,
    } = query.of(rows, |agent| agent.id);
    if cut && next_cursor.is_none() {
        next_cursor = data.last().map(|last| last.id.to_string());
    }
    let ids: Vec<Principal> = data.iter().map(|agent| agent.id.into()).collect();
    let connections = agents.slots.connections(&ids).await;
    let data = data.into_iter().zip(connections);
    let mut data: Vec<Agent> = data
        .map(|(agent, connections)| full(agent, connections))
        .collect();
    add_shares(&agents, &mut data).await?;
    Ok(List { data, next_cursor })
}

/// `GET /agents/{agent_id}`: an agent.
///
/// Caller: user or the agent itself. Answers 200: the owner and the agent get the [`Agent`].
/// Users with a relation or a shared conversation get the [`AgentCard`]. Errors:
/// `AGENT_NOT_REGISTERED` for everybody else.
pub async fn read(about: AgentView, Handle(agents): Handle<Agents>) -> Result<Response> {
    let seen =
        store::find_visible(agents.work.db(), about.agent, about.who.principal().id()).await?;
    match seen {
        Some((agent, Viewer::Insider)) => {
            let connections = agents
                .slots
                .connections(&[about.agent.into()])
                .await
                .concat();
            let mut agent = full(agent, connections);
            add_shares(&agents, std::slice::from_mut(&mut agent)).await?;
            Ok(Data(agent).into_response())
        }
        Some((agent, Viewer::Related)) => Ok(Data(card(agent)).into_response()),
        Some((_, Viewer::Unrelated)) | None => Err(Code::AgentNotRegistered.into()),
    }
}

/// `DELETE /agents/{agent_id}`: deletes an agent permanently.
///
/// Caller: its owner. Tokens and keys are revoked at once; sockets get `session.invalidated`
/// (`token_revoked`). Within seconds its relations end and it leaves its groups; conversations stay
/// readable for their users. Answers 200 with [`DeletedAgent`]. Publishes `agent.state_changed` to
/// the owner, then `relation.revoked` to its users and `member.removed` to its groups. Errors:
/// `AGENT_NOT_REGISTERED`, also the second time.
pub async fn delete(
    agent: OwnedAgent,
    Handle(agents): Handle<Agents>,
) -> Result<Data<DeletedAgent>> {
    // The count comes before the revocation closes them.
    let sockets = agents.count_sockets(agent.id).await;
    let deleted = agents.work.run("agents.delete", async |tx| {
        let locked = store::lock_owned(tx, &agent).await?;
        let had_token = super::delete(tx, &locked).await?;
        Ok(DeletedAgent {
            agent_id: agent.id,
            deleted_at: store::deleted_at(tx, agent.id).await?.into(),
            connections_closed: if had_token { sockets } else { 0 },
        })
    });
    deleted.await.map(Data)
}
