//! The durable events: their names, their data, and the object that carries them.

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};

use crate::{
    agents::{
        AgentKeyEnding, AgentKeyRegistration, AgentStateChange, ManifestUpdate, TokenRegeneration,
    },
    approvals::Approval,
    conversations::{Conversation, ReadReceipt},
    cursor::Cursor,
    devices::DeviceKeyChange,
    files::FileConfirmation,
    grants::Grant,
    group_keys::{KeyRotation, RotationRequest},
    groups::MemberChange,
    ids::{ConversationId, EventId},
    keys::BackupAccess,
    messages::{Message, MessageDeletion},
    raw::RawJson,
    relations::Relation,
    stops::TurnStop,
    time::Timestamp,
    tool_calls::{ToolCall, ToolCallOutcome},
};

macro_rules! events {
    // A name is a bare token, because a `literal` reaches the derives in a group, and the schema
    // would then not be renamed.
    ($($variant:ident($data:ty) = ($name:tt, $recipients:literal);)+) => {
        catalogue! {
            /// Durable events: (name on the wire, recipients).
            pub enum EventKind: (&'static str, &'static str) {
                $($variant = ($name, $recipients);)+
            }
        }

        /// A durable event with its data.
        #[derive(Clone, Debug, PartialEq, Serialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        #[serde(tag = "event", content = "data")]
        pub enum Event {
            $(
                #[doc = concat!("`", $name, "`, to ", $recipients, ".")]
                #[serde(rename = $name)]
                $variant($data),
            )+
        }

        impl Event {
            /// The kind of the event.
            pub fn kind(&self) -> EventKind {
                match self { $(Event::$variant(_) => EventKind::$variant,)+ }
            }

            /// The data as JSON.
            pub fn data_json(&self) -> serde_json::Result<String> {
                match self { $(Event::$variant(data) => serde_json::to_string(data),)+ }
            }

            /// Reads the data of an event of a known kind.
            pub fn from_parts(kind: EventKind, data: &str) -> serde_json::Result<Self> {
                match kind { $(EventKind::$variant => serde_json::from_str(data).map(Event::$variant),)+ }
            }
        }
    };
}

events! {
    MessageCreated(Message)                    = ("message.created",         "all members but the agent that sent it");
    MessageDeleted(MessageDeletion)            = ("message.deleted",         "all members that could see the message");
    MessageRead(ReadReceipt)                   = ("message.read",            "members who are users");
    ConversationCreated(Box<Conversation>)     = ("conversation.created",    "all members");
    ConversationUpdated(Box<Conversation>)     = ("conversation.updated",    "all members");
    MemberAdded(MemberChange)                  = ("member.added",            "all members and the one concerned");
    MemberRemoved(MemberChange)                = ("member.removed",          "all members and the one concerned");
    RelationCreated(Relation)                  = ("relation.created",        "the user and the agent");
    RelationRevoked(Relation)                  = ("relation.revoked",        "the user and the agent");
    KeyDeviceAdded(DeviceKeyChange)            = ("key.device_added",        "the user and everyone who shares a conversation");
    KeyDeviceRemoved(DeviceKeyChange)          = ("key.device_removed",      "the user and everyone who shares a conversation");
    KeyBackupAccessed(BackupAccess)            = ("key.backup_accessed",     "the user");
    KeyRotated(KeyRotation)                    = ("key.rotated",             "each member, with its own wrapped keys");
    KeyRotationRequested(RotationRequest)      = ("key.rotation_requested",  "the peer");
    FileConfirmed(FileConfirmation)            = ("file.confirmed",          "all members");
    AgentKeyRegistered(AgentKeyRegistration)   = ("agent.key_registered",    "related users");
    GrantRequested(Grant)                      = ("grant.requested",         "the user and the agent");
    GrantDecided(Grant)                        = ("grant.decided",           "the user and the agent");
    GrantRevoked(Grant)                        = ("grant.revoked",           "the user and the agent");
    ArtifactRequest(Box<ToolCall>)             = ("artifact_request",        "the user who is asked");
    ArtifactResponse(Box<ToolCallOutcome>)     = ("artifact_response",       "the agent and the user who was asked");
    ApprovalRequested(Box<Approval>)           = ("approval.requested",      "the users who are asked");
    ApprovalDecided(Box<Approval>)             = ("approval.decided",        "the agent and all members who are users");
    ApprovalClosed(Box<Approval>)              = ("approval.closed",         "the agent and all members who are users");
    TurnStop(TurnStop)                         = ("turn.stop",               "the agents that are stopped");
    AgentKeyEnding(AgentKeyEnding)             = ("agent.key_ending",        "the agent and the owner");
    AgentStateChanged(AgentStateChange)        = ("agent.state_changed",     "the owner");
    AgentTokenRegenerated(TokenRegeneration)   = ("agent.token_regenerated", "the owner");
    AgentManifestUpdated(ManifestUpdate)       = ("agent.manifest_updated",  "the owner and related users");
}

impl EventKind {
    /// The name on the wire.
    pub const fn name(self) -> &'static str {
        self.row().0
    }

    /// The principals that get it, in words.
    pub const fn recipients(self) -> &'static str {
        self.row().1
    }

    /// The kind of a name; `None` for one that a newer server has added.
    pub fn from_name(name: &str) -> Option<Self> {
        EventKind::ALL
            .iter()
            .copied()
            .find(|kind| kind.name() == name)
    }
}

/// An event in its reader's inbox: an item of a poll, and with `type: "event"` a frame.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct EventObject {
    /// The event's place in the reader's inbox.
    pub cursor: Cursor,
    /// The event's number in the reader's inbox.
    pub seq: i64,
    /// The event; the id of its message for `message.created`.
    pub event_id: EventId,
    /// The conversation of the event; absent if none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conversation_id: Option<ConversationId>,
    /// The time of the event.
    pub created_at: Timestamp,
    /// The name and data of the event: `event` and `data`.
    #[serde(flatten)]
    pub event: Event,
}

impl<'de> Deserialize<'de> for EventObject {
    // Payloads keep their bytes, which a flattened enum would lose.
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Parts {
            cursor: Cursor,
            seq: i64,
            event_id: EventId,
            event: String,
            conversation_id: Option<ConversationId>,
            created_at: Timestamp,
            data: RawJson,
        }
        let parts = Parts::deserialize(from)?;
        let kind = EventKind::from_name(&parts.event)
            .ok_or_else(|| D::Error::custom(format_args!("unknown event {:?}", parts.event)))?;
        Ok(EventObject {
            cursor: parts.cursor,
            seq: parts.seq,
            event_id: parts.event_id,
            conversation_id: parts.conversation_id,
            created_at: parts.created_at,
            event: Event::from_parts(kind, parts.data.as_str()).map_err(D::Error::custom)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MESSAGE: &str = r#"{"cursor":"10000-7","seq":7,"event_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","event":"message.created","conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAW","created_at":"2026-03-01T12:00:00.000Z","data":{"message_id":"01ARZ3NDEKTSV4RRFFQ69G5FAV","conversation_id":"01ARZ3NDEKTSV4RRFFQ69G5FAW","seq":3,"sender":{"type":"agent","id":"0190b5e0-7c6e-7d3a-9c1b-2f4a5b6c7d8e"},"payload":{ "type":"text", "n": 1.00 },"hop":1,"created_at":"2026-03-01T12:00:00.000Z"}}"#;

    #[test]
    fn a_message_event_keeps_the_bytes_of_its_payload() {
        let object: EventObject = serde_json::from_str(MESSAGE).expect("an event");
        let Event::MessageCreated(message) = &object.event else {
            panic!("a message: {object:?}");
        };
        let payload = message.payload.as_ref().expect("a payload");
        assert_eq!(payload.as_str(), r#"{ "type":"text", "n": 1.00 }"#);
        let text = serde_json::to_string(&object).expect("JSON");
        assert_eq!(
            serde_json::from_str::<EventObject>(&text).expect("an event"),
            object
        );
        assert!(text.contains(r#""n": 1.00"#) && text.contains(r#""event":"message.created""#));
    }

    #[test]
    fn an_event_of_a_later_server_is_named_in_the_fault() {
        let later = MESSAGE.replace("message.created", "message.danced");
        let fault = serde_json::from_str::<EventObject>(&later).expect_err("unknown");
        assert!(fault.to_string().contains("message.danced"), "{fault}");
    }

    #[test]
    fn a_kind_finds_its_name() {
        for kind in EventKind::ALL {
            assert_eq!(EventKind::from_name(kind.name()), Some(*kind));
        }
    }
}
