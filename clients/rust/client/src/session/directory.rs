//! Keys of other principals, from the server into the pins.

use blindpipe_e2ee::trust::{DirectoryKey, Introduction, Notice};
use blindpipe_protocol::{
    agents::AgentKeys,
    group_keys::{KeyHolder, KeyHolders, PublicKeys},
    ids::{ConversationId, Principal},
    keys::KeyDirectory,
    text::Blob,
};

use tracing::warn;

use super::{Session, principal, types::unix_ms};
use crate::{
    Result,
    transport::{Call, is_missing},
};

const PAGE_MEMBERS: u32 = 100;

/// A member's current keys, as the server names the recipients of a rotation.
#[derive(Clone, Debug)]
pub(crate) struct Recipient {
    pub(crate) principal: Principal,
    pub(crate) keys: Vec<DirectoryKey>,
}

impl Session {
    /// Reads the keys of all members, and pins what is new.
    pub(super) async fn read_recipients(&self, of: ConversationId) -> Result<Vec<Recipient>> {
        let mut recipients = Vec::new();
        let mut cursor = None;
        loop {
            let call = Call::get(format!("/keys/groups/{of}/recipients"))
                .query("limit", Some(PAGE_MEMBERS))
                .query("cursor", cursor);
            let page: KeyHolders = self.http.data(call).await?;
            for holder in page.members {
                self.pin_holder(&holder, of);
                // The directory keeps retired keys for old signatures; nothing is given to them.
                let current = holder.devices.iter().filter(|key| key.retired_at.is_none());
                recipients.push(Recipient {
                    principal: holder.principal_id,
                    keys: current.map(directory_key).collect(),
                });
            }
            cursor = page.next_cursor;
            if cursor.is_none() {
                return Ok(recipients);
            }
        }
    }

    /// Reads the keys of somebody who spoke in a conversation and may have left it.
    pub(crate) async fn read_speaker(&self, of: ConversationId, who: Principal) -> Result<()> {
        let call = Call::get(format!("/keys/groups/{of}/recipients"));
        let call = call.query("principal_id", Some(who));
        match self.http.data::<KeyHolders>(call).await {
            Ok(page) => page
                .members
                .iter()
                .for_each(|holder| self.pin_holder(holder, of)),
            Err(error) if is_missing(&error) => {}
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Reads the keys of a single principal, and pins what is new.
    pub(crate) async fn read_keys(&self, who: Principal) -> Result<()> {
        let read: Result<Vec<PublicKeys>> = match who {
            Principal::User(id) => {
                let call = Call::get(format!("/keys/users/{id}/devices"));
                let list = self.http.data::<KeyDirectory>(call).await;
                list.map(|list| list.devices.into_iter().map(of_device).collect())
            }
            Principal::Agent(id) => {
                let call = Call::get(format!("/agents/{id}/keys"));
                let list = self.http.data::<AgentKeys>(call).await;
                list.map(|list| list.keys.into_iter().filter_map(of_agent).collect())
            }
        };
        let keys = match read {
            Ok(keys) => keys,
            Err(error) if is_missing(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        let keys: Vec<_> = keys.iter().map(directory_key).collect();
        self.pin(who, &keys, None);
        Ok(())
    }

    /// A device on one's own list that one did not add is an alarm.
    pub(crate) async fn check_own_list(&self) {
        if let Err(error) = self.read_keys(self.me).await {
            warn!(error = error.kind(), "the own list of keys was not read");
        }
    }

    fn pin_holder(&self, holder: &KeyHolder, of: ConversationId) {
        let keys = holder.devices.iter().map(directory_key);
        self.pin(holder.principal_id, &keys.collect::<Vec<_>>(), Some(of));
    }

    /// `conversation_id`: where these keys were read.
    pub(crate) fn pin(
        &self,
        of: Principal,
        keys: &[DirectoryKey],
        conversation_id: Option<ConversationId>,
    ) {
        let now = self.clock.now_ms();
        let notices: Vec<Notice> = self.trust.lock().directory(principal(of), keys, now);
        self.mark_dirty();
        for notice in notices {
            self.keys_changed(notice.about);
            self.tell(&[notice], conversation_id);
        }
    }
}

fn directory_key(shown: &PublicKeys) -> DirectoryKey {
    let introduction = shown.introduction.as_ref().and_then(|by| {
        Some(Introduction {
            by: unhex(&by.by_key_id.0)?,
            signature: by.signature.0.as_slice().try_into().ok()?,
        })
    });
    DirectoryKey {
        device_id: shown.device_id.clone(),
        public_key: key32(&shown.public_key),
        signing_public_key: key32(&shown.signing_public_key),
        schemes: shown.schemes.clone(),
        introduction,
        retired: false,
        // The end of a replaced key's grace may lie ahead; until then it signs.
        retired_at: shown.retired_at.map(unix_ms),
    }
}

fn of_device(key: blindpipe_protocol::keys::DeviceKeys) -> PublicKeys {
    PublicKeys {
        device_id: Some(key.device_id),
        key_id: key.key_id,
        public_key: key.public_key,
        signing_public_key: key.signing_public_key,
        schemes: key.schemes,
        introduction: key.introduction,
        created_at: key.created_at,
        retired_at: None,
    }
}

fn of_agent(key: blindpipe_protocol::agents::AgentKey) -> Option<PublicKeys> {
    let blob = |text: &str| blindpipe_e2ee::from_base64(text).ok().map(Blob);
    Some(PublicKeys {
        device_id: None,
        key_id: key.key_id,
        public_key: blob(&key.public_key)?,
        signing_public_key: blob(&key.signing_public_key)?,
        schemes: key.schemes,
        introduction: key.introduction,
        created_at: key.created_at,
        retired_at: key.valid_until,
    })
}

/// Other bytes than 32 become the key of zeros, which nobody accepts.
fn key32(bytes: &Blob) -> [u8; 32] {
    bytes.0.as_slice().try_into().unwrap_or_default()
}

/// A key id as the service writes it.
pub(crate) fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn unhex(text: &str) -> Option<[u8; 16]> {
    let number = u128::from_str_radix(text, 16).ok()?;
    (text.len() == 32).then(|| number.to_be_bytes())
}
