//! The public keys of a conversation's members, for those who wrap keys and verify signatures.

use blindpipe_protocol::{
    group_keys::{KeyHolder, KeyHolders, PublicKeys},
    text::Blob,
};
use tokio_postgres::Row;

use crate::{
    db::Conn,
    error::{Code, Result},
    features::keys::introduction,
    http::Page,
    ids::{ConversationId, Principal, PrincipalId},
};

/// Retired keys that are shown of a principal, the last ones. A backup holds as many.
const MAX_RETIRED_KEYS: i64 = 160;

/// A page of the members of `id` with their keys, or only `about`, which may have left it. 404 for
/// those who are no members.
pub async fn read(
    client: &Conn,
    id: ConversationId,
    asker: Principal,
    about: Option<Principal>,
    page: &Page<Principal>,
) -> Result<KeyHolders> {
    let (about, after) = (about.map(Principal::id), page.cursor.map(Principal::id));
    let rows = client
        .query(
            "-- group_keys.holders
            select c.epoch, c.rotation_required, m.principal_kind, m.principal_id, m.is_member, m.visibility,
                   coalesce(u.key_list_version, a.key_list_version, 0) as list_version,
                   k.device_id, k.key_id, k.public_key, k.signing_public_key, k.schemes, k.introduced_by, k.introduction,
                   k.shown_at, k.retired_at
            from active_member asker join conversation c using (conversation_id)
            left join lateral (
                (select principal_kind, principal_id, true as is_member, visibility from active_member
                 where conversation_id = $1 and ($3::uuid is null or principal_id = $3)
                   and ($4::uuid is null or principal_id > $4)
                 order by principal_id limit $5)
                union all
                (select k.principal_kind, k.principal_id, false, null from public_key k
                 where k.principal_id = $3
                   and exists (select from group_key g where g.conversation_id = $1 and g.principal_id = $3)
                   and not exists (select from active_member m where m.conversation_id = $1 and m.principal_id = $3)
                 limit 1)
            ) m on true
            left join user_account u on u.user_id = m.principal_id
            left join agent a on a.agent_id = m.principal_id
            left join lateral (
                select * from public_key of_member where of_member.principal_id = m.principal_id
                  and (of_member.retired_at is null or of_member.retired_at > app_now())
                union all
                (select * from public_key of_member
                 where of_member.principal_id = m.principal_id and of_member.retired_at <= app_now()
                 order by of_member.retired_at desc limit $6)
            ) k on true
            where asker.conversation_id = $1 and asker.principal_id = $2
            order by m.principal_id, k.retired_at desc nulls first, k.shown_at, k.device_id, k.key_id",
            &[
                &id,
                &asker.id(),
                &about,
                &after,
                &page.rows(),
                &MAX_RETIRED_KEYS,
            ],
        )
        .await?;
    let first = rows.first().ok_or(Code::NotFound)?;
    let mut members: Vec<KeyHolder> = Vec::new();
    for row in &rows {
        let Some(who) = row.get::<_, Option<PrincipalId>>("principal_id") else {
            continue;
        };
        if members
            .last()
            .is_none_or(|last| last.principal_id.id() != who)
        {
            members.push(holder(row));
        }
        if let Some(last) = members.last_mut() {
            last.devices.extend(keys(row));
        }
    }
    if about.is_some() && members.is_empty() {
        return Err(Code::NotFound.into());
    }
    let list = page.of(members, |member| member.principal_id);
    Ok(KeyHolders {
        conversation_id: id,
        epoch: first.get("epoch"),
        rotation_required: first.get("rotation_required"),
        members: list.data,
        next_cursor: list.next_cursor,
    })
}

fn holder(row: &Row) -> KeyHolder {
    let principal = Principal::from_row(row.get("principal_kind"), row.get("principal_id"));
    KeyHolder {
        principal_type: principal.kind(),
        principal_id: principal,
        is_member: row.get("is_member"),
        visibility: match principal {
            Principal::Agent(_) => row.get("visibility"),
            Principal::User(_) => None,
        },
        list_version: row.get("list_version"),
        devices: Vec::new(),
    }
}

fn keys(row: &Row) -> Option<PublicKeys> {
    let device: String = row.get::<_, Option<String>>("device_id")?;
    Some(PublicKeys {
        device_id: Some(device).filter(|device| !device.is_empty()),
        key_id: row.get("key_id"),
        public_key: Blob(row.get("public_key")),
        signing_public_key: Blob(row.get("signing_public_key")),
        schemes: row.get("schemes"),
        introduction: introduction(row),
        created_at: row.get("shown_at"),
        retired_at: row.get("retired_at"),
    })
}
