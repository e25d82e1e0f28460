//! This device's keys: made, backed up, restored.

use blindpipe_e2ee::{
    KeyId, PrivateKeys, PublicKeys, Secret,
    backup::{self, Backup, BackupKey, BackupOwner, Costs},
    introduce,
};
use blindpipe_protocol::{
    devices::{Device, RevokedDevice},
    ids::{Principal, UserId},
    keys::{Argon2Params, Introduction, KeyBackup, KeyDirectory, PutKeyBackup, StoredKeyBackup},
    push::{DeletedPush, PushKey, PushSubscription, PutPush},
    text::{Blob, DeviceId, Key32, Scheme},
};

use serde_json::Value;

use super::{Client, state::DeviceKeys};
use crate::{
    Error, Result,
    session::{hex, principal},
    transport::{Call, rng},
};

/// The devices of a person, and this device's keys.
pub struct Devices<'a>(pub(super) &'a Client);

/// A backup that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// The directory shows another key for the backup's device, or none. Such a backup opens less,
    /// and it introduces nobody: other people confirm this device's key.
    pub is_old: bool,
}

impl Devices<'_> {
    /// All devices.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn list(&self) -> Result<Vec<Device>> {
        let mut devices = Vec::new();
        let mut cursor = None;
        loop {
            let call = Call::get("/users/me/devices").query("cursor", cursor);
            let page = self.0.http().page::<Device>(call).await?;
            devices.extend(page.data);
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(devices);
            }
        }
    }

    /// The id of the key that the directory shows for a device of this person, in hex.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn shown_key(&self, device_id: &str) -> Result<Option<String>> {
        let directory = self.directory().await?;
        let mut shown = directory.devices.into_iter();
        let shown = shown.find(|device| device.device_id == device_id);
        Ok(shown.map(|device| device.key_id))
    }

    async fn directory(&self) -> Result<KeyDirectory> {
        let call = Call::get(format!("/keys/users/{}/devices", self.0.user_id()?));
        self.0.http().data(call).await
    }

    /// Revokes a device at once. The conversations of the last seven days get fresh secrets now,
    /// the others with the next sends.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn revoke(&self, device_id: &str) -> Result<RevokedDevice> {
        let call = Call::delete(format!("/users/me/devices/{device_id}"));
        let revoked = self.0.http().data(call).await?;
        if self.0.has_keys() {
            Box::pin(self.0.rotate_recent()).await;
        }
        Ok(revoked)
    }

    /// The server's key, which a push service wants: P-256 in base64url.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn push_key(&self) -> Result<String> {
        let call = Call::get("/push/key");
        let key: PushKey = self.0.http().data(call).await?;
        Ok(key.public_key)
    }

    /// Lets the server wake this device through a push service, which learns when something waits,
    /// and never what. The subscription ends with the session, so it is made at each start.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn subscribe(&self, target: &PutPush) -> Result<PushSubscription> {
        let call = Call::put(self.push_path(None)?, target);
        self.0.http().data(call).await
    }

    /// The subscription of a device; of this one without an id.
    ///
    /// # Errors
    ///
    /// Every refusal of the service; `NOT_FOUND` without a subscription.
    pub async fn subscription(&self, device_id: Option<&str>) -> Result<PushSubscription> {
        let call = Call::get(self.push_path(device_id)?);
        self.0.http().data(call).await
    }

    /// Ends the pushes to a device; to this one without an id.
    ///
    /// # Errors
    ///
    /// Every refusal of the service; `NOT_FOUND` without a subscription.
    pub async fn unsubscribe(&self, device_id: Option<&str>) -> Result<DeletedPush> {
        let call = Call::delete(self.push_path(device_id)?);
        self.0.http().data(call).await
    }

    fn push_path(&self, device_id: Option<&str>) -> Result<String> {
        let own = self.0.device_id()?;
        let device_id = device_id.unwrap_or(&own);
        Ok(format!("/users/me/devices/{device_id}/push"))
    }

    /// The other devices whose keys `device_id` introduced, directly or by another one: after a
    /// theft, these may be the thief's. This device is not among them.
    ///
    /// # Errors
    ///
    /// [`Error::KeyUnavailable`] before this device has keys; every refusal of the service.
    pub async fn introduced_by(&self, device_id: &str) -> Result<Vec<String>> {
        let (session, own) = (self.0.session()?, self.0.device_id()?);
        session.read_keys(session.me).await?;
        let found = session.introduced_by(device_id);
        Ok(found.into_iter().filter(|id| *id != own).collect())
    }

    /// Revokes a device, and those that [`Self::introduced_by`] names.
    ///
    /// # Errors
    ///
    /// As [`Self::introduced_by`].
    pub async fn revoke_with_introduced(&self, device_id: &str) -> Result<()> {
        let others = self.introduced_by(device_id).await?;
        for other in others {
            self.revoke(&other).await?;
        }
        self.revoke(device_id).await?;
        Ok(())
    }

    /// Makes keys for this device and backs them up under `password`: 12 characters or more, and
    /// not the account's.
    ///
    /// # Errors
    ///
    /// `malformed` for a password that is too short, and for that of this run's sign-in, which the
    /// server has seen; every refusal of the service.
    pub async fn create(&self, password: &str) -> Result<()> {
        self.check_password(password)?;
        self.set_up(password, Vec::new(), None).await
    }

    /// Backs this device's keys up once more, under another protection password. The service keeps
    /// the last ten backups of a device, and those of before open with their own password.
    ///
    /// # Errors
    ///
    /// As [`Self::create`]; [`Error::KeyUnavailable`] before this device has keys.
    pub async fn back_up(&self, password: &str) -> Result<()> {
        self.check_password(password)?;
        let keys = self.0.0.held.lock().keys.clone();
        let keys = keys.ok_or(Error::KeyUnavailable("this device has no keys yet"))?;
        self.store_backup(password, &keys, None).await
    }

    fn check_password(&self, password: &str) -> Result<()> {
        backup::check_password(password)?;
        if self.0.0.account.is_password(password) {
            return Err(blindpipe_e2ee::Error::Malformed.into());
        }
        Ok(())
    }

    /// Reads the newest backup that opens. Backups of keys that the directory shows go first.
    /// Restored keys open old messages and introduce this device, which gets keys of its own.
    ///
    /// # Errors
    ///
    /// `wrong_key` for a wrong password; every refusal of the service.
    pub async fn restore(&self, password: &str) -> Result<Restored> {
        let user_id = self.0.user_id()?;
        let call = Call::get("/keys/backup");
        let backups = self.0.http().page::<Value>(call).await?.data;
        // A backup that is malformed, or costs too much, is a wrong one beside the others.
        let read = |backup| serde_json::from_value::<KeyBackup>(backup).ok();
        let mut backups: Vec<_> = backups.into_iter().filter_map(read).collect();
        let directory = self.directory().await?;
        backups.sort_by_key(|backup| !is_shown(&directory, backup));
        let mut fault = Error::Decrypt(blindpipe_e2ee::Error::NoEpochKey);
        for backup in backups {
            match open(user_id, &backup, password).await {
                Ok(opened) => {
                    let is_old = !is_shown(&directory, &backup);
                    self.take(&backup, opened, is_old, password).await?;
                    return Ok(Restored { is_old });
                }
                Err(error @ Error::Decrypt(_)) => fault = error,
                Err(error) => return Err(error),
            }
        }
        Err(fault)
    }

    async fn take(
        &self,
        of: &KeyBackup,
        opened: backup::Restored,
        is_old: bool,
        password: &str,
    ) -> Result<()> {
        let backup::Restored { keys, mut earlier } = opened;
        if of.device_id == self.0.device_id()? && !is_old {
            let signer = keys;
            return self.0.hold(DeviceKeys { signer, earlier });
        }
        earlier.insert(0, (keys.key_id(), keys.x25519().clone()));
        let by = (!is_old).then_some(keys);
        self.set_up(password, earlier, by).await
    }

    async fn set_up(
        &self,
        password: &str,
        earlier: Vec<(KeyId, Secret)>,
        by: Option<PrivateKeys>,
    ) -> Result<()> {
        let (user_id, device_id) = (self.0.user_id()?, self.0.device_id()?);
        let keys = PrivateKeys::random(&mut rng());
        let introduction = match by {
            Some(by) => Some(introduction(&by, user_id, &device_id, keys.public())?),
            None => None,
        };
        let signer = keys;
        let keys = DeviceKeys { signer, earlier };
        // Held before they are shown: keys that are lost cannot be opened with.
        self.0.hold(keys.clone())?;
        self.store_backup(password, &keys, introduction).await
    }

    async fn store_backup(
        &self,
        password: &str,
        keys: &DeviceKeys,
        introduction: Option<Introduction>,
    ) -> Result<()> {
        let (user_id, device_id) = (self.0.user_id()?, self.0.device_id()?);
        let DeviceKeys { signer, earlier } = keys;
        let key = derived(password, None).await?;
        let user = user_id.0.into_bytes();
        let Backup { backup_a, backup_b } =
            backup::seal(&key, user, &device_id, signer, earlier, &mut rng())?;
        let body = PutKeyBackup {
            backup_a: Blob(backup_a),
            backup_b: Blob(backup_b),
            argon2_salt: Key32(*key.salt()),
            argon2_params: params(key.costs()),
            public_key: Key32(*signer.public().public_key()),
            signing_public_key: Key32(*signer.public().signing_public_key()),
            device_id: DeviceId(device_id),
            version: None,
            introduction,
            schemes: Some(vec![Scheme("bp1".to_owned())]),
        };
        let call = Call::post("/keys/backup", &body);
        self.0.http().data::<StoredKeyBackup>(call).await?;
        Ok(())
    }
}

/// Whether the directory shows the backup's key for the backup's device.
fn is_shown(directory: &KeyDirectory, backup: &KeyBackup) -> bool {
    directory.devices.iter().any(|device| {
        device.device_id == backup.device_id
            && device.public_key == backup.public_key
            && device.signing_public_key == backup.signing_public_key
    })
}

fn introduction(
    by: &PrivateKeys,
    user_id: UserId,
    device_id: &str,
    keys: &PublicKeys,
) -> Result<Introduction> {
    let me = principal(Principal::User(user_id));
    let signature = introduce(by, me, Some(device_id), keys)?;
    Ok(Introduction {
        by_key_id: blindpipe_protocol::text::KeyId(hex(&by.key_id())),
        signature: Blob(signature.to_vec()),
    })
}

fn params(costs: Costs) -> Argon2Params {
    let cost = |cost: u32| i32::try_from(cost).unwrap_or(i32::MAX);
    Argon2Params {
        m: cost(costs.m),
        t: cost(costs.t),
        p: cost(costs.p),
    }
}

/// A third of a second of work, beside the other tasks.
async fn derived(password: &str, known: Option<([u8; 32], Costs)>) -> Result<BackupKey> {
    let password = password.to_owned();
    let derive = move || match known {
        Some((salt, costs)) => BackupKey::derive(&password, salt, costs),
        None => BackupKey::random(&password, &mut rng()),
    };
    let derived = tokio::task::spawn_blocking(derive).await;
    Ok(derived.map_err(Error::other)??)
}

async fn open(user: UserId, backup: &KeyBackup, password: &str) -> Result<backup::Restored> {
    let malformed = |_| blindpipe_e2ee::Error::Malformed;
    let array = |blob: &Blob| <[u8; 32]>::try_from(blob.0.as_slice()).map_err(malformed);
    let cost = |cost: i32| u32::try_from(cost).map_err(|_| blindpipe_e2ee::Error::Malformed);
    let Argon2Params { m, t, p } = backup.argon2_params;
    let costs = Costs {
        m: cost(m)?,
        t: cost(t)?,
        p: cost(p)?,
    };
    let key = derived(password, Some((array(&backup.argon2_salt)?, costs))).await?;
    let keys = PublicKeys::new(
        array(&backup.public_key)?,
        array(&backup.signing_public_key)?,
    )?;
    let owner = BackupOwner {
        user: user.0.into_bytes(),
        device_id: &backup.device_id,
        keys: &keys,
    };
    let sealed = Backup {
        backup_a: backup.backup_a.0.clone(),
        backup_b: backup.backup_b.0.clone(),
    };
    Ok(backup::open(&key, &owner, &sealed)?)
}
