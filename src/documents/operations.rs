//! The request and answer of each route: a row per route, beside the table of the routes.

use blindpipe_protocol::{
    access_log::*, accounts::*, agents::*, approvals::*, blocks::*, conversations::*, devices::*,
    files::*, grants::*, group_keys::*, groups::*, inbox::*, keys::*, limits::Buckets, messages::*,
    passkeys::*, push::*, raw::RawJson, relations::*, search::*, service::*, sessions::*,
    shares::*, stops::*, streams::LiveStream, tool_calls::*, typing::*, webhooks::*,
};

use super::schemas::{SchemaOf, bytes, data, html, list, nothing, of, script, style, yaml};
use crate::error::Code;

/// The documentation of a route.
pub struct Operation {
    /// Method and path, as in the table of the routes.
    pub route: &'static str,
    /// The effect of the route, in a line.
    pub summary: &'static str,
    /// The queries; the document lists the fields of all.
    pub query: &'static [SchemaOf],
    /// The request body, if the route reads any.
    pub body: Body,
    /// The success answers: status and shape.
    pub success: &'static [(u16, SchemaOf)],
    /// Errors beyond those of its caller, its limits and its body.
    pub errors: &'static [Code],
}

/// The body of a request.
pub enum Body {
    /// The route reads no body.
    Nothing,
    /// The body may be left out.
    Optional(SchemaOf),
    /// The body is required.
    Required(SchemaOf),
    /// The body is the bytes of a file.
    Bytes,
}

macro_rules! operations {
    ($($route:literal, $summary:literal
        $(, query: [$($query:ty),+])?
        $(, body: $body:ty)? $(, optional: $optional:ty)? $(, bytes: $bytes:ident)?
        => $($status:literal $shape:ident<$answer:ty>),* $(; $($error:ident),+)?;
    )+) => {
        /// The operations, a row per route.
        pub const OPERATIONS: &[Operation] = &[$(Operation {
            route: $route,
            summary: $summary,
            query: &[$($(of::<$query>),+)?],
            body: operations!(@body $($body)? $(, $optional)? $(; $bytes)?),
            success: &[$(($status, $shape::<$answer>)),*],
            errors: &[$($(Code::$error),+)?],
        }),+];
    };
    (@body) => { Body::Nothing };
    (@body ; $bytes:ident) => { Body::Bytes };
    (@body $body:ty) => { Body::Required(of::<$body>) };
    (@body , $body:ty) => { Body::Optional(of::<$body>) };
}

use blindpipe_protocol::envelope::PageQuery;

operations! {
    "POST /auth/send-code", "Mail a verification code.", body: SendCode
        => 200 data<CodeSent>; TurnstileFailed;
    "POST /auth/register", "Make an account and sign in; sets the refresh cookie.", body: Register
        => 201 data<SignedIn>; TurnstileFailed, CodeInvalid, EmailTaken;
    "POST /auth/login", "Sign in with a password; sets the refresh cookie.", body: Login
        => 200 data<SignedIn>; TurnstileFailed, InvalidCredentials, AccountLocked;
    "POST /auth/login-code", "Sign in with a mailed code; sets the refresh cookie.", body: LoginCode
        => 200 data<SignedIn>; TurnstileFailed, CodeInvalid;
    "POST /auth/refresh", "Exchange the refresh cookie for the next one and an access token."
        => 200 data<Refreshed>; TokenExpired;
    "POST /auth/logout", "End the session of the refresh cookie and clear it."
        => 200 data<LoggedOut>;
    "POST /auth/passkey/begin", "Begin a sign-in with a passkey.", optional: BeginPasskeyLogin
        => 200 data<LoginChallenge>; TurnstileFailed;
    "POST /auth/passkey/complete", "Sign in with a passkey; sets the refresh cookie.", body: CompletePasskeyLogin
        => 200 data<SignedIn>; TurnstileFailed, ChallengeExpired, PasskeyInvalid;
    "POST /auth/reset-password", "Set a password by a mailed code; ends every session.", body: ResetPassword
        => 200 data<PasswordReset>; TurnstileFailed, CodeInvalid;
    "POST /auth/device/code", "Planned for V2." =>; NotAvailableInV1;
    "POST /auth/device/verify", "Planned for V2." =>; NotAvailableInV1;
    "POST /auth/device/poll", "Planned for V2." =>; NotAvailableInV1;
    "GET /health", "Whether this node takes traffic." => 200 data<Health>;
    "GET /version", "The versions that are served." => 200 data<Version>;
    "GET /share/{share_id}", "Open a share; `Accept: text/html` answers a page."
        => 200 data<ShareCard>, 200 html<()>, 404 html<()>; NotFound;
    "GET /ws", "Upgrade to a WebSocket; `asyncapi.yaml` describes its frames."
        =>; OriginNotAllowed, ValidationError;

    "GET /users/me", "Read the caller's account." => 200 data<Account>;
    "DELETE /users/me", "Delete the caller's account; needs a login less than 10 min old."
        => 200 data<AccountDeleted>; ReauthRequired;
    "PATCH /users/me", "Change the caller's display name or locale.", body: ChangeProfile
        => 200 data<Account>;
    "POST /users/me/email", "Mail a code to a new address; needs a login less than 10 min old.", body: ChangeEmail
        => 200 data<CodeSent>; ReauthRequired;
    "POST /users/me/email/confirm", "Give the account its new address, with the mailed code.", body: ConfirmEmail
        => 200 data<Account>; CodeInvalid, TurnstileFailed, EmailTaken;
    "POST /users/me/password", "Change the password; ends the user's other sessions.", body: ChangePassword
        => 200 data<PasswordChanged>; InvalidCredentials, AccountLocked;
    "GET /users/me/devices", "List the caller's devices, newest first.", query: [PageQuery]
        => 200 list<Device>;
    "DELETE /users/me/devices/{device_id}", "Revoke a device and its session."
        => 200 data<RevokedDevice>; NotFound;
    "PUT /users/me/devices/{device_id}/push", "Subscribe a device to pushes, or change its address.", body: PutPush
        => 200 data<PushSubscription>; NotFound;
    "GET /users/me/devices/{device_id}/push", "Read a device's subscription to pushes."
        => 200 data<PushSubscription>; NotFound;
    "DELETE /users/me/devices/{device_id}/push", "End a device's subscription to pushes."
        => 200 data<DeletedPush>; NotFound;
    "POST /auth/reauth", "Prove the caller's identity anew: by password, mailed code or passkey.", body: Reauthenticate
        => 200 data<Reauthenticated>; InvalidCredentials, AccountLocked, CodeInvalid, PasskeyInvalid, ChallengeExpired,
        TurnstileFailed;
    "GET /users/me/sessions", "List the caller's sessions, newest first, ended ones too.", query: [PageQuery]
        => 200 list<Session>;
    "GET /users/me/sessions/{session_id}/changes", "List what a session has added and is still there."
        => 200 list<SessionChange>; NotFound;
    "POST /users/me/sessions/{session_id}/undo", "Undo what a session has added.", optional: UndoChanges
        => 200 data<UndoneChanges>; NotFound, ReauthRequired;
    "POST /users/me/passkeys/begin", "Begin to enrol a passkey; needs a login less than 10 min old."
        => 200 data<EnrolmentChallenge>; ReauthRequired;
    "POST /users/me/passkeys/complete", "Enrol a passkey; needs a login less than 10 min old.", body: CompleteEnrolment
        => 201 data<EnrolledPasskey>; ReauthRequired, ChallengeExpired, PasskeyInvalid, Forbidden;
    "GET /users/me/passkeys", "List the caller's passkeys, oldest first.", query: [PageQuery]
        => 200 list<Passkey>;
    "DELETE /users/me/passkeys/{passkey_id}", "Forget a passkey." => 200 data<DeletedPasskey>; NotFound;
    "GET /users/me/blocks", "List the caller's blocks, newest first.", query: [PageQuery]
        => 200 list<Block>;
    "PUT /users/me/blocks/{principal_id}", "Block a user or an agent."
        => 200 data<Blocked>; NotFound, ValidationError;
    "DELETE /users/me/blocks/{principal_id}", "End a block." => 200 data<Unblocked>; NotFound;
    "GET /search", "Search what the caller may see.", query: [SearchQuery]
        => 200 list<SearchHit>; SearchContentEncrypted;
    "POST /keys/backup", "Store a device's public keys and encrypted private keys.", body: PutKeyBackup
        => 201 data<StoredKeyBackup>, 200 data<StoredKeyBackup>; DeviceMismatch, VersionMismatch, ReauthRequired;
    "GET /keys/backup", "List the caller's key backups; needs a login less than 10 min old.", query: [KeyBackupQuery, PageQuery]
        => 200 list<KeyBackup>; ReauthRequired;
    "GET /keys/users/{user_id}/devices", "Read the public keys of a user's devices."
        => 200 data<KeyDirectory>; NotFound;
    "POST /keys/groups/{conversation_id}/rotate", "Give a conversation its next key.", body: RotateKey
        => 201 data<RotatedKey>; NotFound, VersionMismatch, RecipientsMismatch;
    "GET /keys/groups/{conversation_id}", "Read the caller's own wrapped keys.", query: [GroupKeysQuery]
        => 200 data<OwnGroupKeys>; NotFound;
    "GET /keys/groups/{conversation_id}/recipients", "Read the members' public keys, also the retired ones.",
        query: [KeyHoldersQuery, PageQuery] => 200 data<KeyHolders>; NotFound;
    "POST /keys/rotation/request", "Ask the other user of a direct conversation to rotate its key.", body: RequestRotation
        => 201 data<RotationRequested>; NotFound;

    "POST /agents", "Make an agent and its token.", body: CreateAgent
        => 201 data<CreatedAgent>; AgentLimitExceeded, ManifestTooLarge;
    "GET /agents", "List the caller's agents, oldest first.", query: [PageQuery] => 200 list<Agent>;
    "DELETE /agents/{agent_id}", "Delete an agent." => 200 data<DeletedAgent>; AgentNotRegistered;
    "POST /agents/{agent_id}/token/regenerate", "Replace an agent's token.", body: RegenerateToken
        => 200 data<RegeneratedToken>; AgentNotRegistered;
    "DELETE /agents/{agent_id}/token", "Revoke an agent's token and keys."
        => 200 data<RevokedToken>; AgentNotRegistered;
    "POST /conversations", "Open a conversation; the one of a pair is found again.", body: OpenConversation
        => 201 data<Conversation>, 200 data<Conversation>; NotFound, AgentNotRegistered, Forbidden, ReauthRequired;
    "GET /conversations", "List the caller's conversations, latest activity first.", query: [PageQuery]
        => 200 list<Conversation>;
    "GET /conversations/{conversation_id}", "Read a conversation with its members."
        => 200 data<Conversation>; NotFound;
    "PATCH /conversations/{conversation_id}", "Require encryption, or change a group's title.", body: ChangeConversation
        => 200 data<Conversation>; NotFound, Forbidden;
    "POST /conversations/{conversation_id}/read", "Move the caller's read mark forward.", body: MarkRead
        => 200 data<ReadMark>; NotFound;
    "POST /conversations/{conversation_id}/messages", "Send a message as a user.", body: SendMessage
        => 201 data<Sent>, 200 data<Sent>;
        NotConversationMember, RelationRevoked, IdempotencyConflict, MessageTooLarge;
    "GET /conversations/{conversation_id}/messages", "Read a user's history of a conversation.", query: [HistoryQuery]
        => 200 of<HistoryPage>; NotFound;
    "DELETE /conversations/{conversation_id}/messages/{message_id}", "Delete a message of the caller's, or of a group that the caller administrates."
        => 200 data<MessageDeletion>; NotFound, Forbidden, ApprovalOpen;
    "GET /conversations/{conversation_id}/streams", "List the streams that go on in a conversation, oldest first."
        => 200 list<LiveStream>; NotFound;
    "POST /conversations/{conversation_id}/stop", "Tell agents to end what they do in a conversation.", optional: StopTurn
        => 200 data<StoppedTurns>; NotFound;
    "GET /relations", "List the caller's relations with agents, newest first.", query: [PageQuery]
        => 200 list<Relation>;
    "DELETE /relations/{relation_id}", "End a relation." => 200 data<Relation>; NotFound;
    "POST /groups", "Open a group.", body: OpenGroup => 201 data<Conversation>; NotFound;
    "POST /groups/{conversation_id}/members", "Add users to a group.", body: AddMembers
        => 201 data<Addition>; NotFound, Forbidden;
    "PATCH /groups/{conversation_id}/members/{principal_id}", "Change a member's role.", body: ChangeMember
        => 200 data<Member>; NotFound, Forbidden;
    "DELETE /groups/{conversation_id}/members/{principal_id}", "Remove a member, or leave."
        => 200 data<Removal>; NotFound, Forbidden;
    "POST /groups/{conversation_id}/agent-instances", "Give an agent a place in a group.", body: AddAgent
        => 201 data<AgentInstance>, 200 data<AgentInstance>;
        NotFound, Forbidden, AgentNotRegistered, RelationRequired, ReauthRequired;
    "DELETE /groups/{conversation_id}/agent-instances/{instance_id}", "Take an agent out of a group."
        => 200 data<Removal>; NotFound, Forbidden;
    "POST /files", "Request an upload as a user.", body: RequestUpload
        => 201 data<RequestedUpload>; FileTooLarge, NotConversationMemberUpload;
    "PUT /files/{upload_id}/upload", "Bring the bytes of a user's upload, by token or signed address.", bytes: yes
        => 200 data<UploadedBytes>;
        NotFound, Forbidden, VersionMismatch, FileTooLarge, RequestTimeout, NotConversationMemberUpload;
    "POST /shares", "Share a file, an agent's card or the caller's own card.", body: CreateShare
        => 201 data<CreatedShare>; NotFound, AgentNotRegistered;
    "DELETE /shares/{share_id}", "End a share." => 200 data<DeletedShare>; NotFound;

    "GET /grants", "List the caller's grants, newest first.", query: [GrantsQuery, PageQuery]
        => 200 list<Grant>;
    "GET /grants/access-log", "List what agents have read of the caller's data, newest first.", query: [AccessQuery, PageQuery]
        => 200 list<Access>;
    "POST /grants/{grant_id}/decision", "Decide on an agent's request for scopes.", body: DecideGrant
        => 200 data<Grant>; NotFound, AlreadyDecided;
    "DELETE /grants/{grant_id}", "Revoke a grant; denies its pending tool calls." => 200 data<Grant>; NotFound;
    "POST /artifact-requests/{request_id}/claim", "Keep a tool call for the caller's device, before it runs.",
        optional: ClaimArtifact
        => 200 data<ToolCallState>; NotFound, Forbidden, AlreadyDecided, ToolCallExpired;
    "POST /artifact-requests/{request_id}/response", "Answer a tool call for the caller's device.", body: RespondArtifact
        => 200 data<ToolCallState>; NotFound, Forbidden, AlreadyDecided, ToolCallExpired, MessageTooLarge;
    "GET /approvals", "List the approvals of the caller's conversations, newest first.", query: [ApprovalsQuery, PageQuery]
        => 200 list<Approval>;
    "GET /approvals/{approval_id}", "Read an approval." => 200 data<Approval>; NotFound;
    "POST /approvals/{approval_id}/decision", "Decide on an approval, with a signature.", body: DecideApproval
        => 200 data<Approval>;
        NotFound, AlreadyDecided, ApprovalClosed, KeyMismatch, SignatureInvalid, MessageTooLarge;
    "POST /approvals/{approval_id}/withdraw", "Take an agent's question back."
        => 200 data<Approval>; NotFound, ApprovalClosed;

    "GET /openapi.json", "Read the OpenAPI document of this release." => 200 of<RawJson>;
    "GET /asyncapi.yaml", "Read the AsyncAPI document of `/ws`, as YAML." => 200 yaml<()>;
    "GET /docs", "Read the OpenAPI document as a page." => 200 html<()>;
    "GET /docs/{asset}", "Read a script or the style of that page, or the document."
        => 200 script<()>, 200 style<()>; NotFound;
    "GET /app", "Open the web app, where the operator serves it." => 200 html<()>, 304 nothing<()>; NotFound;
    "GET /app/{asset}", "Read a file beside the web app's page." => 200 bytes<()>, 304 nothing<()>; NotFound;
    "GET /app/assets/{asset}", "Read a script or a style of the web app." => 200 bytes<()>, 304 nothing<()>; NotFound;
    "GET /events/types", "List the durable events with the schemas of their data." => 200 list<RawJson>;
    "GET /push/key", "Read the server's key, which a device subscribes to pushes with." => 200 data<PushKey>;
    "GET /limits", "List the caller's budgets and what is left of them." => 200 of<Buckets>;
    "POST /files/confirm", "Make an upload a file of its conversation.", body: ConfirmUpload
        => 200 data<ConfirmedUpload>;
        NotFound, UploadIncomplete, Sha256Mismatch, NotConversationMemberUpload, RelationRevoked;
    "DELETE /objects/{object_key}", "Delete a file; its uploader, and owners and admins of its group may."
        => 200 data<DeletedObject>; NotFound, Forbidden;
    "GET /objects/{object_key}", "Read the bytes of a file; `Range` and `If-None-Match` count."
        => 200 bytes<()>, 206 bytes<()>, 304 nothing<()>; NotFound, RangeNotSatisfiable;
    "GET /agents/{agent_id}", "Read an agent." => 200 data<AgentView>; AgentNotRegistered;
    "POST /agents/{agent_id}/keys/register", "Register an agent's new key pair.", body: RegisterAgentKey
        => 201 data<RegisteredAgentKey>; AgentNotRegistered, AgentKeysMismatch;
    "POST /agents/{agent_id}/keys/check", "Check whether a key of an agent is good.", body: CheckAgentKey
        => 200 data<CheckedAgentKey>; AgentNotRegistered, AgentKeysMismatch;
    "GET /agents/{agent_id}/keys", "Read an agent's keys, the current one first."
        => 200 data<AgentKeys>; AgentNotRegistered;

    "PUT /agents/{agent_id}/webhook", "Set an agent's webhook and challenge its address.", body: PutWebhook
        => 200 data<Webhook>; Forbidden, AgentNotRegistered;
    "GET /agents/{agent_id}/webhook", "Read an agent's webhook."
        => 200 data<Webhook>; NotFound, AgentNotRegistered;
    "DELETE /agents/{agent_id}/webhook", "Remove an agent's webhook."
        => 200 data<DeletedWebhook>; NotFound, AgentNotRegistered;
    "POST /agents/{agent_id}/webhook/verify", "Challenge the address of an agent's webhook again."
        => 200 data<Webhook>; Forbidden, NotFound, AgentNotRegistered;
    "POST /agents/{agent_id}/webhook/rotate-secret", "Set another secret; both sign for a while.", optional: RotateWebhookSecret
        => 200 data<Webhook>; Forbidden, NotFound, AgentNotRegistered;
    "POST /agents/{agent_id}/webhook/test", "Post a test event to an agent's webhook."
        => 200 data<WebhookTestResult>; Forbidden, NotFound, AgentNotRegistered;
    "GET /agents/{agent_id}/deliveries", "List the deliveries to an agent's webhook, newest first.", query: [DeliveriesQuery, PageQuery]
        => 200 list<WebhookDelivery>; AgentNotRegistered;
    "POST /agents/{agent_id}/deliveries/{delivery_id}/redeliver", "Attempt a delivery once more."
        => 200 data<WebhookDelivery>; Forbidden, NotFound, CursorExpired, AgentNotRegistered;
    "PATCH /agents/{agent_id}", "Replace the agent's manifest, or, as its owner, change its name.", body: PatchAgent
        => 200 data<PatchedAgent>; ManifestTooLarge, VersionMismatch, AgentNotRegistered;
    "POST /agents/{agent_id}/ack", "Say that the agent is there, and how far it has read.", optional: Ack
        => 200 data<Acked>; CursorExpired;

    "POST /agents/{agent_id}/messages", "Send a message as an agent, the conversation in the body.", body: SendMessage
        => 201 data<Sent>, 200 data<Sent>;
        NotConversationMember, RelationRevoked, IdempotencyConflict, AgentLoopDetected, WebhookPayloadTooLarge;
    "POST /agents/{agent_id}/conversations/{conversation_id}/messages", "Send a message as an agent.", body: SendMessage
        => 201 data<Sent>, 200 data<Sent>;
        NotConversationMember, RelationRevoked, IdempotencyConflict, AgentLoopDetected, WebhookPayloadTooLarge;
    "POST /agents/{agent_id}/files", "Request an upload as an agent.", body: RequestUpload
        => 201 data<RequestedUpload>; FileTooLarge, NotConversationMemberUpload, RelationRevoked;
    "PUT /agents/{agent_id}/files/{upload_id}/upload", "Bring the bytes of an agent's upload, by token or signed address.", bytes: yes
        => 200 data<UploadedBytes>;
        NotFound, Forbidden, VersionMismatch, FileTooLarge, RequestTimeout, NotConversationMemberUpload, RelationRevoked;
    "POST /agents/{agent_id}/grants/request", "Ask a user for permission scopes.", body: RequestGrant
        => 201 data<Grant>, 200 data<Grant>; NotFound, RelationRequired, ScopeNotDeclared;
    "POST /agents/{agent_id}/artifact-requests", "Ask the devices of a user to run a tool.", body: RequestArtifact
        => 201 data<ToolCallState>, 200 data<ToolCallState>;
        NotFound, RelationRequired, ScopeNotDeclared, IdempotencyConflict, WebhookPayloadTooLarge;
    "POST /agents/{agent_id}/conversations/{conversation_id}/approvals", "Ask people to approve or to answer.", body: RequestApproval
        => 201 data<RequestedApproval>, 200 data<RequestedApproval>;
        NotConversationMember, RelationRevoked, IdempotencyConflict, AgentLoopDetected, ApprovalLimitExceeded,
        WebhookPayloadTooLarge;
    "GET /agents/{agent_id}/approvals", "List the agent's approvals, newest first.", query: [ApprovalsQuery, PageQuery]
        => 200 list<Approval>;
    "POST /agents/{agent_id}/typing", "Say that the agent writes, or has stopped to.", body: SetTyping
        => 200 data<TypingAnswer>; NotFound, RelationRevoked;
    "GET /agents/{agent_id}/conversations", "List the agent's conversations, latest activity first.", query: [PageQuery]
        => 200 list<Conversation>;
    "GET /agents/{agent_id}/conversations/{conversation_id}/messages", "Read an agent's history of a conversation.", query: [HistoryQuery]
        => 200 of<HistoryPage>; NotFound;
    "DELETE /agents/{agent_id}/conversations/{conversation_id}/messages/{message_id}", "Delete a message of the agent's own."
        => 200 data<MessageDeletion>; NotFound, Forbidden, ApprovalOpen;
    "GET /agents/{agent_id}/messages/poll", "Read the agent's inbox after a cursor, and ack up to it.", query: [PollQuery]
        => 200 of<PollPage>; CursorExpired;
}
