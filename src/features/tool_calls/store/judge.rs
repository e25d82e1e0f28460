//! The decision on a request: under which grant it may run, and whether a person is asked.

use blindpipe_protocol::{agents::Sensitivity, tool_calls::RequestArtifact};

use super::super::rules::{self, Devices};
use crate::{
    error::Result,
    features::{agents, conversations::AskedUser},
    ids::{AgentId, ConversationId, GrantId, UserId},
    limits::quotas::{CONSENT_WINDOW, MAX_CONSENT},
    work::Tx,
};

/// The decision on a request.
pub(super) struct Judgment {
    pub(super) grant: Option<GrantId>,
    pub(super) sensitivity: Sensitivity,
    pub(super) device: Option<String>,
    pub(super) prompt_required: bool,
    pub(super) consented_devices: Vec<String>,
}

/// Decides under which grant a call may run, and whether a person must be asked. An agent cannot
/// lower a sensitivity after the user has read it: the higher of then and now counts. Errors:
/// `SCOPE_NOT_DECLARED`.
pub(super) async fn judge(
    tx: &Tx,
    agent: AgentId,
    asked: &AskedUser,
    request: &RequestArtifact,
    device: Option<String>,
) -> Result<Judgment> {
    let scope = &request.scope.0;
    let declared = agents::declared(tx, agent).await?;
    let declared = rules::declared_sensitivity(&declared, &request.tool.0, scope)?;
    let held = match declared {
        Some(declared) => hold_grant(tx, agent, asked.user, request.conversation_id, scope)
            .await?
            .map(|(grant, then)| (grant, declared.max(then))),
        None => None,
    };
    let Some((grant, sensitivity)) = held else {
        return Ok(Judgment {
            grant: None,
            sensitivity: declared.unwrap_or(Sensitivity::High),
            device,
            prompt_required: false,
            consented_devices: Vec::new(),
        });
    };
    let devices = match sensitivity {
        Sensitivity::Medium => devices(tx, agent, asked.user, request, device.as_deref()).await?,
        _ => Devices::default(),
    };
    Ok(Judgment {
        grant: Some(grant),
        sensitivity,
        device,
        prompt_required: rules::prompt_required(sensitivity, &devices),
        consented_devices: devices.consented,
    })
}

/// A grant that holds now, with the sensitivity that the user has read. It is not revoked before
/// the transaction ends.
async fn hold_grant(
    tx: &Tx,
    agent: AgentId,
    user: UserId,
    conversation: ConversationId,
    scope: &str,
) -> Result<Option<(GrantId, Sensitivity)>> {
    let row = tx
        .query_opt(
            "-- tool_calls.find_grant
            select grant_id, sensitivities[array_position(requested_scopes, $4)] as sensitivity from agent_grant_shown
            where agent_id = $1 and user_id = $2 and conversation_id = $3 and state = 'approved'
                and status in ('pending', 'approved') and $4 = any(scopes)
            order by expires_at desc nulls first limit 1",
            &[&agent, &user, &conversation, &scope],
        )
        .await?;
    let Some(row) = row else { return Ok(None) };
    let grant: GrantId = row.get("grant_id");
    let held = tx
        .query_opt(
            "-- tool_calls.hold_grant
            select 1 from agent_grant where grant_id = $1 and status = 'approved' for share",
            &[&grant],
        )
        .await?;
    Ok(held.map(|_| (grant, row.get("sensitivity"))))
}

/// The devices that can answer: those that are signed in.
async fn devices(
    tx: &Tx,
    agent: AgentId,
    user: UserId,
    request: &RequestArtifact,
    device: Option<&str>,
) -> Result<Devices> {
    let rows = tx
        .query(
            "-- tool_calls.devices
            select d.device_id, c.used_at > app_now() - make_interval(secs => $6)
                and c.prompted_at > app_now() - make_interval(secs => $7) as is_silent
            from device d
            left join tool_consent c on c.user_id = d.user_id and c.device_id = d.device_id and c.agent_id = $2
                and c.conversation_id = $3 and c.scope = $4
            where d.user_id = $1 and d.revoked_at is null and ($5::text is null or d.device_id = $5)
                and exists (select from live_session s where s.user_id = d.user_id and s.device_id = d.device_id)
            order by d.device_id",
            &[
                &user,
                &agent,
                &request.conversation_id,
                &request.scope.0,
                &device,
                &CONSENT_WINDOW.as_secs_f64(),
                &MAX_CONSENT.as_secs_f64(),
            ],
        )
        .await?;
    let consented = rows
        .iter()
        .filter(|row| row.get::<_, Option<bool>>("is_silent") == Some(true));
    Ok(Devices {
        all: rows.len(),
        consented: consented.map(|row| row.get("device_id")).collect(),
    })
}
