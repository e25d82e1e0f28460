use blindpipe_protocol::{devices::DeviceKeyChange, keys::BackupAccess};
use tokio_postgres::Row;

use super::{
    http::{Backup, DeviceKeys, Directory, Kept, Upload},
    public::{Description, describe, introduction},
    rules::{Argon2Params, BackupId, Blob, key_id},
};
use crate::{
    auth::user::User,
    db::Conn,
    error::{Code, Error, Result},
    events::Event,
    features::{
        announcements::{self, Audience},
        devices::{self, ListedKey},
    },
    ids::{Principal, UserId},
    limits::quotas::{MAX_KEY_BACKUP_VERSIONS, REAUTH_WINDOW_FOR_KEYS},
    work::Tx,
};

/// The directory's entry of a device, and the newest of its backups.
struct Current {
    key_id: Option<String>,
    newest: i32,
}

/// Stores an upload as the next version and updates the directory. Names the device if its id is
/// provisional.
pub async fn put(tx: &Tx, user: &User, upload: &Upload) -> Result<Kept> {
    let device = upload.device_id.0.as_str();
    lock_user(tx, user.id).await?;
    let fresh = devices::name(tx, user, device, REAUTH_WINDOW_FOR_KEYS.as_secs_f64()).await?;
    let Current {
        key_id: shown,
        newest,
    } = current(tx, user.id, device).await?;
    if upload.version.is_some_and(|version| version != newest) {
        return Err(Error::from(Code::VersionMismatch).with("current_version", newest));
    }
    let key = key_id(&upload.public_key.0, &upload.signing_public_key.0);
    let (other, pushes_out) = (
        shown.as_ref().is_some_and(|shown| *shown != key),
        newest >= MAX_KEY_BACKUP_VERSIONS,
    );
    if (other || pushes_out) && !fresh {
        return Err(Code::ReauthRequired.into());
    }
    let kept = keep(tx, user, upload, &key, newest + 1).await?;
    let (who, said) = (Principal::User(user.id), description(upload));
    let is_shown = shown.as_ref() == Some(&key);
    if is_shown {
        devices::repoint_key(tx, user.id, &kept.device_id, kept.version).await?;
        if !describe(tx, who, device, &key, said).await? {
            return Ok(kept);
        }
        devices::bump_list(tx, user.id).await?;
    } else {
        let listed = ListedKey {
            device_id: &kept.device_id,
            key_id: &kept.key_id,
            version: kept.version,
            created_at: kept.created_at,
        };
        devices::list_key(tx, user.id, &listed).await?;
        describe(tx, who, device, &key, said).await?;
    }
    let change = |key_id| DeviceKeyChange {
        user_id: user.id,
        device_id: device.to_owned(),
        key_id,
    };
    let removed = shown
        .filter(|_| !is_shown)
        .map(|before| Event::KeyDeviceRemoved(change(before)));
    let events: Vec<Event> = removed
        .into_iter()
        .chain([Event::KeyDeviceAdded(change(key))])
        .collect();
    announcements::broadcast(tx, &Audience::of_user(user.id), &events).await?;
    Ok(kept)
}

/// The statements of an upload about its keys.
pub fn description(upload: &Upload) -> Description<'_> {
    Description {
        schemes: upload.schemes.as_deref(),
        introduction: upload.introduction.as_ref(),
    }
}

async fn lock_user(tx: &Tx, user: UserId) -> Result<()> {
    tx.query_opt(
        "-- keys.lock_user
        select 1 from user_account where user_id = $1 and deleted_at is null for update",
        &[&user],
    )
    .await?
    .ok_or(Code::Unauthorized)?;
    Ok(())
}

async fn current(tx: &Tx, user: UserId, device: &str) -> Result<Current> {
    let row = tx
        .query_opt(
            "-- keys.current
            select d.key_id, coalesce((select max(version) from key_backup b where b.user_id = $1 and b.device_id = $2), 0)
                       as newest_version
            from device d where d.user_id = $1 and d.device_id = $2",
            &[&user, &device],
        )
        .await?
        .ok_or(Code::Unauthorized)?;
    Ok(Current {
        key_id: row.get("key_id"),
        newest: row.get("newest_version"),
    })
}

async fn keep(tx: &Tx, user: &User, upload: &Upload, key: &str, version: i32) -> Result<Kept> {
    let Upload {
        public_key,
        signing_public_key,
        backup_a,
        backup_b,
        argon2_salt,
        ..
    } = upload;
    let Argon2Params { m, t, p } = upload.argon2_params;
    let device = upload.device_id.0.as_str();
    let row = tx
        .query_one(
            "-- keys.keep
            insert into key_backup (user_id, device_id, version, session_id, key_id, public_key, signing_public_key,
                                    backup_a, backup_b, argon2_salt, argon2_m, argon2_t, argon2_p)
            values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
            returning created_at",
            &[
                &user.id,
                &device,
                &version,
                &user.session,
                &key,
                &public_key.0.as_slice(),
                &signing_public_key.0.as_slice(),
                &backup_a.0,
                &backup_b.0,
                &argon2_salt.0.as_slice(),
                &m,
                &t,
                &p,
            ],
        )
        .await?;
    tx.execute(
        "-- keys.forget_old
        select forget_key_backups($1, $2, $3)",
        &[&user.id, &device, &(version - MAX_KEY_BACKUP_VERSIONS)],
    )
    .await?;
    Ok(Kept {
        device_id: device.to_owned(),
        key_id: key.to_owned(),
        version,
        created_at: row.get("created_at"),
    })
}

/// At most `most` backups, newest first, after `cursor`. Refuses a cursor that is not the user's.
pub async fn backups(
    tx: &Tx,
    user: UserId,
    device: Option<&str>,
    cursor: Option<&BackupId>,
    limit: i64,
) -> Result<Vec<Backup>> {
    let (after_device, after_version) = cursor
        .map(|BackupId(device, version)| (device, version))
        .unzip();
    if cursor.is_some() {
        tx.query_opt(
            "-- keys.find_cursor
            select 1 from key_backup where user_id = $1 and device_id = $2 and version = $3",
            &[&user, &after_device, &after_version],
        )
        .await?
        .ok_or_else(|| Error::field("cursor", "unknown", "is no id of this list"))?;
    }
    let rows = tx
        .query(
            "-- keys.backups
            select b.device_id, b.version, b.key_id, b.backup_a, b.backup_b, b.argon2_salt, b.argon2_m, b.argon2_t, b.argon2_p,
                   b.public_key, b.signing_public_key, b.created_at
            from key_backup b
            left join key_backup seen on seen.user_id = $1 and seen.device_id = $3 and seen.version = $4
            where b.user_id = $1 and ($2::text is null or b.device_id = $2)
              and ($3::text is null or (b.created_at, b.device_id, b.version) < (seen.created_at, seen.device_id, seen.version))
            order by b.created_at desc, b.device_id desc, b.version desc
            limit $5",
            &[&user, &device, &after_device, &after_version, &limit],
        )
        .await?;
    Ok(rows.iter().map(backup).collect())
}

fn backup(row: &Row) -> Backup {
    Backup {
        device_id: row.get("device_id"),
        version: row.get("version"),
        key_id: row.get("key_id"),
        backup_a: Blob(row.get("backup_a")),
        backup_b: Blob(row.get("backup_b")),
        argon2_salt: Blob(row.get("argon2_salt")),
        argon2_params: Argon2Params {
            m: row.get("argon2_m"),
            t: row.get("argon2_t"),
            p: row.get("argon2_p"),
        },
        public_key: Blob(row.get("public_key")),
        signing_public_key: Blob(row.get("signing_public_key")),
        created_at: row.get("created_at"),
    }
}

/// Notifies the user's devices that one of them has read backups. Refused if its session has ended
/// meanwhile.
pub async fn emit_accessed(tx: &Tx, user: &User) -> Result<()> {
    let row = tx
        .query_opt(
            "-- keys.accessed
            select app_now() as now from live_session where session_id = $1 for share",
            &[&user.session],
        )
        .await?
        .ok_or(Code::Unauthorized)?;
    let event = Event::KeyBackupAccessed(BackupAccess {
        device_id: user.device_id.clone(),
        at: row.get("now"),
    });
    tx.emit(event, None, vec![user.id.into()])
}

/// The user's devices that have backups, the one with the latest backup first.
pub async fn backed_up_devices(tx: &Tx, user: UserId) -> Result<Vec<String>> {
    Ok(tx
        .query(
            "-- keys.backed_up_devices
            select device_id from key_backup where user_id = $1 group by device_id order by max(created_at) desc, device_id",
            &[&user],
        )
        .await?
        .iter()
        .map(|row| row.get("device_id"))
        .collect())
}

/// The directory of `user`, if `asker` may see it.
pub async fn directory(client: &Conn, asker: Principal, user: UserId) -> Result<Option<Directory>> {
    let rows = client
        .query(
            "-- keys.directory
            select u.key_list_version, d.device_id, d.key_id, k.public_key, k.signing_public_key, k.schemes,
                   k.introduced_by, k.introduction, d.key_since
            from user_account u
            left join (device d join public_key k on k.principal_id = d.user_id and k.device_id = d.device_id and k.key_id = d.key_id)
                on d.user_id = u.user_id
            where u.user_id = $1 and u.deleted_at is null and case when $3 = 'agent'
                then exists (select 1 from relation r where r.user_id = $1 and r.agent_id = $2 and r.state = 'active')
                else $1 = $2 or exists (select 1 from member mine join member theirs using (conversation_id)
                                        where mine.principal_id = $2 and theirs.principal_id = $1) end
            order by d.created_at, d.device_id",
            &[&user, &asker.id(), &asker.kind()],
        )
        .await?;
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let devices = rows.iter().filter_map(|row| {
        Some(DeviceKeys {
            device_id: row.get::<_, Option<String>>("device_id")?,
            key_id: row.get("key_id"),
            public_key: Blob(row.get("public_key")),
            signing_public_key: Blob(row.get("signing_public_key")),
            schemes: row.get("schemes"),
            introduction: introduction(row),
            created_at: row.get("key_since"),
        })
    });
    Ok(Some(Directory {
        user_id: user,
        list_version: first.get("key_list_version"),
        devices: devices.collect(),
    }))
}
