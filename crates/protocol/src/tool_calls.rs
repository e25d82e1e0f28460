//! Tool calls, an agent's requests to the devices of a user:
//! `/agents/{agent_id}/artifact-requests`, `/artifact-requests/{request_id}/claim`,
//! `/artifact-requests/{request_id}/response`, and the frames of the same names.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    agents::Sensitivity,
    ids::{AgentId, ConversationId, UserId},
    raw::RawJson,
    text::{AnswerReason, DeviceId, RequestId, Scope, ToolName},
    time::Timestamp,
};

words! {
    /// The status of a tool call.
    pub enum ToolCallStatus {
        /// No device has answered.
        Pending = "pending",
        /// A device has executed it.
        Executed = "executed",
        /// The user, the time or the lack of a grant has refused it.
        Denied = "denied",
        /// A device has tried and failed.
        Failed = "failed",
    }
}

words! {
    /// A device's answer to a tool call.
    pub enum AnswerStatus {
        /// The device has executed it.
        Executed = "executed",
        /// The user has refused it.
        Denied = "denied",
        /// The device has tried and failed.
        Failed = "failed",
    }
}

impl From<AnswerStatus> for ToolCallStatus {
    fn from(status: AnswerStatus) -> Self {
        match status {
            AnswerStatus::Executed => ToolCallStatus::Executed,
            AnswerStatus::Denied => ToolCallStatus::Denied,
            AnswerStatus::Failed => ToolCallStatus::Failed,
        }
    }
}

/// Makes a body, and the frame that carries the same fields beside a reference.
///
/// A flattened struct cannot hold raw JSON, so both have the fields themselves.
macro_rules! body_and_frame {
    (
        $(#[$body_doc:meta])* pub struct $body:ident;
        $(#[$frame_doc:meta])* pub struct $frame:ident;
        { $($(#[$meta:meta])* pub $field:ident: $type:ty,)+ }
    ) => {
        $(#[$body_doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub struct $body { $($(#[$meta])* pub $field: $type,)+ }

        $(#[$frame_doc])*
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
        pub struct $frame {
            /// A reference that the answer repeats.
            #[serde(default, skip_serializing_if = "Value::is_null")]
            pub r#ref: Value,
            $($(#[$meta])* pub $field: $type,)+
        }
    };
}

body_and_frame! {
    /// The body of `POST /agents/{agent_id}/artifact-requests`.
    pub struct RequestArtifact;
    /// `artifact_request` of an agent.
    pub struct ArtifactRequestFrame;
    {
        /// The agent's name for the call, such as a ULID. A repeat answers the call's present
        /// state.
        pub request_id: RequestId,
        /// The conversation of the call.
        pub conversation_id: ConversationId,
        /// The user to ask. Required in groups.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub user_id: Option<UserId>,
        /// The tool.
        pub tool: ToolName,
        /// The scope that the tool needs.
        pub scope: Scope,
        /// The device to ask; all devices of the user if omitted.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub device_id: Option<DeviceId>,
        /// An object, at most 1 MB. In a conversation that requires encryption, its `type` is
        /// `encrypted`.
        #[cfg_attr(feature = "schema", schema(value_type = Object))]
        pub payload: RawJson,
    }
}

/// The body of `POST /artifact-requests/{request_id}/claim`, which may be left out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ClaimArtifact {
    /// The agent that asks. Required where calls of several agents have this `request_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
}

/// The body of `POST /artifact-requests/{request_id}/response`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct RespondArtifact {
    /// The agent that asks. Required where calls of several agents have this `request_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The outcome.
    pub status: AnswerStatus,
    /// The reason; `user_denied` if omitted with `denied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<AnswerReason>,
    /// An object, at most 1 MB: the result. In a conversation that requires encryption, its `type`
    /// is `encrypted`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub payload: Option<RawJson>,
}

/// The state of a tool call, as its agent and its user see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolCallState {
    /// The call.
    pub request_id: String,
    /// The conversation of the call.
    pub conversation_id: ConversationId,
    /// The user who is asked.
    pub user_id: UserId,
    /// The status.
    pub status: ToolCallStatus,
    /// The harm that the scope can do.
    pub sensitivity: Sensitivity,
    /// Whether a person has to agree.
    pub prompt_required: bool,
    /// The time at which an unanswered call is denied.
    pub expires_at: Timestamp,
    /// The reason of the outcome; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `TOOL_CALL_DENIED` when denied; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The device's payload; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub payload: Option<RawJson>,
}

/// A call as the user's devices get it: the data of `artifact_request`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolCall {
    /// The call.
    pub request_id: String,
    /// The agent that asks.
    pub agent_id: AgentId,
    /// The user who is asked.
    pub user_id: UserId,
    /// The conversation of the call.
    pub conversation_id: ConversationId,
    /// The tool.
    pub tool: String,
    /// The scope.
    pub scope: String,
    /// The harm that the scope can do.
    pub sensitivity: Sensitivity,
    /// The device that is asked; null for all. Other devices ignore the call.
    #[cfg_attr(feature = "schema", schema(required = true))]
    pub device_id: Option<String>,
    /// Whether a person has to agree, except on the devices in `silent_devices`.
    pub prompt_required: bool,
    /// Devices on which a person agreed to this scope within 24 hours. They show no prompt.
    pub silent_devices: Vec<String>,
    /// The time of the request.
    pub created_at: Timestamp,
    /// The time at which an unanswered call is denied.
    pub expires_at: Timestamp,
    /// The agent's payload.
    #[cfg_attr(feature = "schema", schema(value_type = Object))]
    pub payload: RawJson,
}

/// The outcome of a call: the data of `artifact_response`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ToolCallOutcome {
    /// The call.
    pub request_id: String,
    /// The conversation of the call.
    pub conversation_id: ConversationId,
    /// The agent that asked.
    pub agent_id: AgentId,
    /// The user who was asked.
    pub user_id: UserId,
    /// `executed`, `denied` or `failed`.
    pub status: ToolCallStatus,
    /// The reason; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// `TOOL_CALL_DENIED` when denied; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
    /// The device that answered; absent if none did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    /// The device's payload; absent if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub payload: Option<RawJson>,
}

/// `TOOL_CALL_DENIED`: the `code` of a denied call. No answer of the server has it as an error.
pub const TOOL_CALL_DENIED: &str = "TOOL_CALL_DENIED";

/// The code of an outcome.
pub fn outcome_code(status: ToolCallStatus) -> Option<String> {
    (status == ToolCallStatus::Denied).then(|| TOOL_CALL_DENIED.to_owned())
}

/// `artifact_response` of a user's device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ArtifactResponseFrame {
    /// A reference that the answer repeats.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub r#ref: Value,
    /// The call.
    pub request_id: RequestId,
    /// The agent that asks. Required where calls of several agents have this `request_id`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_id: Option<AgentId>,
    /// The outcome.
    pub status: AnswerStatus,
    /// The reason; `user_denied` if omitted with `denied`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<AnswerReason>,
    /// An object, at most 1 MB: the result.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schema(value_type = Option<Object>))]
    pub payload: Option<RawJson>,
}

/// `artifact.requested` and `artifact.responded`: the call that a frame made or answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
pub struct ArtifactAnswer {
    /// The reference from the frame; null if it had none.
    #[serde(default)]
    pub r#ref: Value,
    /// The state of the call.
    pub data: ToolCallState,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errors::Code;

    #[test]
    fn a_denied_outcome_has_its_code_and_no_error_has() {
        assert_eq!(
            outcome_code(ToolCallStatus::Denied).as_deref(),
            Some("TOOL_CALL_DENIED")
        );
        assert_eq!(outcome_code(ToolCallStatus::Failed), None);
        assert_eq!(Code::from_wire(TOOL_CALL_DENIED), None);
    }
}
