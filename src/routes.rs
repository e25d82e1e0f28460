//! THE ROUTES: a line per method and path, grouped by caller. `/v1/...` is an alias of all but
//! `/auth/*`, whose cookie has a path.

use axum::{
    Router,
    extract::{FromRequestParts, Request, State},
    http::Method,
    middleware::{self, Next},
    response::Response,
    routing::{MethodRouter, delete, get, patch, post, put},
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    access_log::AccessKind,
    app::App,
    auth::{
        agent::AgentToken,
        caller::{Caller, CallerToken},
        signed::is_signed,
        user::UserToken,
    },
    error::{Code, Result},
    features::{
        access_log, accounts, agents, approvals, blocks, budgets, conversations, devices, erasure,
        files, grants, group_keys, groups, health, keys, messages, passkeys, published, push,
        relations, search, sessions, shares, stops, streams, tool_calls, typing, web_app, webhooks,
    },
    gateway,
    http::{
        client::{self, ClientIp},
        trace,
    },
    ids::PrincipalKind,
    limits::{
        Limiter,
        table::{Limit, Per},
    },
};

/// The callers that a route accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Any caller, without a credential.
    Public,
    /// A user's access token.
    User,
    /// An agent's token. Where the path names an agent, the token must belong to it.
    Agent,
    /// A user's access token, or an agent's token as in [`Access::Agent`].
    Either,
}

/// The budgets that a route charges.
#[derive(Clone, Copy, Debug)]
pub struct Charges {
    /// Whether each call is charged to the default budget of its caller: `default_user`, an agent's
    /// tier or `default_ip`. The guard charges it before the body is read.
    pub default: bool,
    /// The budgets of the calling principal that the guard charges beside it: those of users for a
    /// user, and those of agents for an agent.
    pub principal: &'static [Limit],
    /// Whether a signed address opens the route too. The handler charges such a call.
    pub signed: bool,
    /// The route's other budgets. Its handler charges them, since their keys differ.
    pub own: &'static [Limit],
}

/// The default budget only.
const DEFAULT: Charges = default(&[]);
/// No budget at all.
const NOTHING: Charges = own(&[]);

/// The default budget and others.
const fn default(own: &'static [Limit]) -> Charges {
    Charges {
        default: true,
        principal: &[],
        signed: false,
        own,
    }
}

/// Budgets of the calling principal, in place of the default.
const fn principal(principal: &'static [Limit]) -> Charges {
    Charges {
        default: false,
        principal,
        signed: false,
        own: &[],
    }
}

/// Budgets of the calling principal on a route that a signed address opens too.
const fn signed(budgets: &'static [Limit]) -> Charges {
    Charges {
        signed: true,
        ..principal(budgets)
    }
}

/// Other budgets only.
const fn own(own: &'static [Limit]) -> Charges {
    Charges {
        default: false,
        principal: &[],
        signed: false,
        own,
    }
}

/// A route of the public listener.
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub caller: Access,
    pub charges: Charges,
    /// The user data that an agent reads here; each read has a row in the access log. None if the
    /// row does not say. A route that agents call must.
    pub reads: Option<&'static [AccessKind]>,
    handler: MethodRouter<App>,
}

/// An agent reads nothing of users here.
const NO_USER_DATA: &[AccessKind] = &[];

impl Route {
    /// The route, which agents call, with the user data that they read.
    fn reads(self, kinds: &'static [AccessKind]) -> Self {
        Route {
            reads: Some(kinds),
            ..self
        }
    }

    /// The handler, behind the guard that its row asks for.
    ///
    /// A row whose handler charges everything is guarded by its handler's extractors. A send, for
    /// example, is charged while its body is read.
    fn guarded(self, app: &App) -> MethodRouter<App> {
        if !self.charges.default && self.charges.principal.is_empty() {
            return self.handler;
        }
        let state = (app.clone(), self.caller, self.charges);
        self.handler
            .route_layer(middleware::from_fn_with_state(state, guard))
    }
}

/// Charges the caller's budgets, authenticates the caller and attaches it to the request for the
/// handler's extractors. The token's proof comes first and Postgres last, so that a call beyond the
/// budget costs Postgres nothing.
async fn guard(
    State((app, access, charges)): State<(App, Access, Charges)>,
    request: Request,
    next: Next,
) -> Result<Response> {
    if charges.signed && is_signed(&request) {
        return Ok(next.run(request).await);
    }
    let (mut parts, body) = request.into_parts();
    let limiter = Limiter::from_request_parts(&mut parts, &app).await?;
    let claim = match access {
        Access::Public => {
            let ip = ClientIp::from_request_parts(&mut parts, &app).await?;
            limiter.check_route(Limit::DefaultIp, ip).await?;
            return Ok(next.run(Request::from_parts(parts, body)).await);
        }
        Access::User => CallerToken::User(UserToken::from_request_parts(&mut parts, &app).await?),
        Access::Agent => {
            CallerToken::Agent(AgentToken::from_request_parts(&mut parts, &app).await?)
        }
        Access::Either => CallerToken::from_request_parts(&mut parts, &app).await?,
    };
    let caller = claim.principal();
    if charges.default {
        limiter.check_default(caller).await?;
    }
    let owned = |limit: &&Limit| match limit.per() {
        Per::User => caller.kind() == PrincipalKind::User,
        Per::Agent => caller.kind() == PrincipalKind::Agent,
        _ => true,
    };
    for limit in charges.principal.iter().filter(owned) {
        limiter.check(*limit, caller).await?;
    }
    claim.attach(&mut parts);
    let caller = Caller::from_request_parts(&mut parts, &app).await?;
    parts.extensions.insert(caller);
    Ok(next.run(Request::from_parts(parts, body)).await)
}

fn route(
    method: Method,
    path: &'static str,
    caller: Access,
    charges: Charges,
    handler: MethodRouter<App>,
) -> Route {
    Route {
        method,
        path,
        caller,
        charges,
        reads: None,
        handler,
    }
}

/// Every route of the public listener.
#[rustfmt::skip]
#[expect(clippy::too_many_lines, reason = "a line per route")]
pub fn table() -> Vec<Route> {
    use Access::{Agent, Either, Public, User};
    use AccessKind::{Approval, Conversation, ConversationList, GroupKeys, History, Keys, Object, Poll, Push, ToolCall};
    use Limit::{
        AgentConversationSend, AgentConversations, AgentFileUpload, AgentGrantRequest, AgentManifestUpdate,
        AgentMessageSend, AgentObjectGet, AgentPoll, AgentTokenRegenerate, AgentTokenUnknown, AgentTyping, AuthRenew,
        CodeTries, ConversationOpen, GroupAgentInstance, GroupMemberAdd, HumanIp, KeysBackupRead, KeysGroupRotate,
        KeysLookup, KeysRotationRequest, LoginFail, LoginIp, PasskeyBegin, Refresh, RegisterEmail, RegisterIp, SendCode,
        SendCodeDay, AgentTokenRevoke, PushRegister, ApprovalRequest, TurnStop, WebhookCall, WebhookOrigin,
        ShareOpen, StreamBegin, UserConversationsList, UserFileUpload, UserMessageSend, UserMessagesList, UserObjectGet,
        UserSearch, WsConnect, WsConnectIp,
    };
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    const PUT: Method = Method::PUT;
    const PATCH: Method = Method::PATCH;
    const DELETE: Method = Method::DELETE;
    vec![
        route(POST,   "/auth/send-code",             Public, default(&[HumanIp, SendCode, SendCodeDay]), post(accounts::http::send_code)),
        route(POST,   "/auth/register",              Public, own(&[RegisterIp, HumanIp, RegisterEmail, CodeTries]), post(accounts::http::register)),
        route(POST,   "/auth/login",                 Public, own(&[LoginIp, HumanIp, LoginFail]), post(accounts::http::login)),
        route(POST,   "/auth/login-code",            Public, default(&[HumanIp, CodeTries]), post(accounts::http::login_code)),
        route(POST,   "/auth/refresh",               Public, own(&[Refresh]), post(sessions::refresh::refresh)),
        route(POST,   "/auth/logout",                Public, DEFAULT, post(accounts::session::logout)),
        route(POST,   "/auth/passkey/begin",         Public, own(&[PasskeyBegin, HumanIp]), post(passkeys::http::begin_login)),
        route(POST,   "/auth/passkey/complete",      Public, default(&[HumanIp]), post(passkeys::http::login)),
        route(POST,   "/auth/reset-password",        Public, default(&[HumanIp, CodeTries]), post(accounts::http::reset_password)),
        route(POST,   "/auth/device/code",           Public, NOTHING, post(planned)),
        route(POST,   "/auth/device/verify",         Public, NOTHING, post(planned)),
        route(POST,   "/auth/device/poll",           Public, NOTHING, post(planned)),
        route(GET,    "/health",                     Public, NOTHING, get(health::health)),
        route(GET,    "/version",                    Public, NOTHING, get(health::version)),
        route(GET,    "/share/{share_id}",           Public, own(&[ShareOpen]), get(shares::http::open)),
        route(GET,    "/openapi.json",               Public, DEFAULT, get(published::openapi)),
        route(GET,    "/asyncapi.yaml",              Public, DEFAULT, get(published::asyncapi)),
        route(GET,    "/events/types",               Public, DEFAULT, get(published::event_types)),
        route(GET,    "/push/key",                   Public, DEFAULT, get(push::http::key)),
        route(GET,    "/docs",                       Public, DEFAULT, get(published::docs::page)),
        route(GET,    "/docs/{asset}",               Public, DEFAULT, get(published::docs::asset)),
        // Bytes in memory that browsers keep: a page takes several, and an office shares an address.
        route(GET,    "/app",                        Public, NOTHING, get(web_app::page)),
        route(GET,    "/app/{asset}",                Public, NOTHING, get(web_app::file)),
        route(GET,    "/app/assets/{asset}",         Public, NOTHING, get(web_app::asset)),
        route(GET,    "/ws",                         Public, own(&[WsConnectIp, AgentTokenUnknown, WsConnect, AuthRenew, StreamBegin]), get(gateway::upgrade)).reads(&[Push]),

        route(GET,    "/users/me",                   User,   DEFAULT, get(accounts::me::get)),
        route(DELETE, "/users/me",                   User,   DEFAULT, delete(erasure::account::delete)),
        route(PATCH,  "/users/me",                   User,   DEFAULT, patch(accounts::me::change)),
        route(POST,   "/users/me/email",             User,   default(&[SendCode]), post(accounts::address::ask)),
        route(POST,   "/users/me/email/confirm",     User,   default(&[HumanIp, CodeTries]), post(accounts::address::confirm)),
        route(POST,   "/users/me/password",          User,   default(&[LoginFail]), post(accounts::me::change_password)),
        route(GET,    "/users/me/devices",           User,   DEFAULT, get(devices::http::list)),
        route(DELETE, "/users/me/devices/{device_id}", User,   DEFAULT, delete(accounts::session::revoke)),
        route(PUT,    "/users/me/devices/{device_id}/push", User, principal(&[PushRegister]), put(push::http::put)),
        route(GET,    "/users/me/devices/{device_id}/push", User, DEFAULT, get(push::http::get)),
        route(DELETE, "/users/me/devices/{device_id}/push", User, DEFAULT, delete(push::http::delete)),
        route(POST,   "/auth/reauth",                User,   default(&[LoginIp, LoginFail, HumanIp, CodeTries]), post(sessions::http::reauthenticate)),
        route(GET,    "/users/me/sessions",          User,   DEFAULT, get(sessions::http::list)),
        route(GET,    "/users/me/sessions/{session_id}/changes", User, DEFAULT, get(sessions::http::changes)),
        route(POST,   "/users/me/sessions/{session_id}/undo", User, DEFAULT, post(sessions::http::undo)),
        route(POST,   "/users/me/passkeys/begin",    User,   DEFAULT, post(passkeys::http::begin_enrolment)),
        route(POST,   "/users/me/passkeys/complete", User,   DEFAULT, post(passkeys::http::enrol)),
        route(GET,    "/users/me/passkeys",          User,   DEFAULT, get(passkeys::http::list)),
        route(DELETE, "/users/me/passkeys/{passkey_id}", User,   DEFAULT, delete(passkeys::http::remove)),
        route(GET,    "/users/me/blocks",            User,   DEFAULT, get(blocks::http::list)),
        route(PUT,    "/users/me/blocks/{principal_id}", User,   DEFAULT, put(blocks::http::put)),
        route(DELETE, "/users/me/blocks/{principal_id}", User,   DEFAULT, delete(blocks::http::remove)),
        route(GET,    "/search",                     User,   principal(&[UserSearch]), get(search::http::search)),
        route(POST,   "/keys/backup",                User,   DEFAULT, post(keys::http::put_backup)),
        route(GET,    "/keys/backup",                User,   default(&[KeysBackupRead]), get(keys::http::read_backups)),
        route(GET,    "/keys/users/{user_id}/devices", Either, principal(&[KeysLookup]), get(keys::http::directory)).reads(&[Keys]),
        route(POST,   "/keys/groups/{conversation_id}/rotate", User,   default(&[KeysGroupRotate]), post(group_keys::http::rotate)),
        route(GET,    "/keys/groups/{conversation_id}", Either, DEFAULT, get(group_keys::http::read)).reads(&[GroupKeys]),
        route(GET,    "/keys/groups/{conversation_id}/recipients", Either, principal(&[KeysLookup]), get(group_keys::http::recipients)).reads(&[Keys]),
        route(POST,   "/keys/rotation/request",      User,   default(&[KeysRotationRequest]), post(group_keys::http::request)),

        route(POST,   "/agents",                     User,   DEFAULT, post(agents::http::create)),
        route(GET,    "/agents",                     User,   DEFAULT, get(agents::http::list)),
        route(DELETE, "/agents/{agent_id}",          User,   DEFAULT, delete(agents::http::delete)),
        route(POST,   "/agents/{agent_id}/token/regenerate", User,   default(&[AgentTokenRegenerate]), post(agents::http::regenerate_token)),
        route(DELETE, "/agents/{agent_id}/token",    User,   own(&[AgentTokenRevoke]), delete(agents::http::revoke_token)),
        route(POST,   "/conversations",              User,   default(&[ConversationOpen]), post(conversations::http::open)),
        route(GET,    "/conversations",              User,   principal(&[UserConversationsList]), get(conversations::http::list)),
        route(GET,    "/conversations/{conversation_id}", Either, DEFAULT, get(conversations::http::get)).reads(&[Conversation]),
        route(PATCH,  "/conversations/{conversation_id}", User,   DEFAULT, patch(conversations::http::change)),
        route(POST,   "/conversations/{conversation_id}/read", Either, DEFAULT, post(conversations::http::read)).reads(NO_USER_DATA),
        route(POST,   "/conversations/{conversation_id}/messages", User,   own(&[UserMessageSend]), post(messages::http::send_as_user)),
        route(GET,    "/conversations/{conversation_id}/messages", User,   principal(&[UserMessagesList]), get(messages::history::of_user)),
        route(GET,    "/conversations/{conversation_id}/streams", User,   DEFAULT, get(streams::http::list)),
        route(POST,   "/conversations/{conversation_id}/stop", User,   principal(&[TurnStop]), post(stops::http::stop)),
        route(DELETE, "/conversations/{conversation_id}/messages/{message_id}", User,   DEFAULT, delete(messages::deletion::by_user)),
        route(GET,    "/relations",                  User,   DEFAULT, get(relations::http::list)),
        route(DELETE, "/relations/{relation_id}",    User,   DEFAULT, delete(relations::http::revoke)),
        route(POST,   "/groups",                     User,   default(&[ConversationOpen]), post(conversations::http::open_group)),
        route(POST,   "/groups/{conversation_id}/members", User,   default(&[GroupMemberAdd]), post(groups::http::add_members)),
        route(PATCH,  "/groups/{conversation_id}/members/{principal_id}", User,   DEFAULT, patch(groups::http::change_member)),
        route(DELETE, "/groups/{conversation_id}/members/{principal_id}", Either, DEFAULT, delete(groups::http::remove_member)).reads(NO_USER_DATA),
        route(POST,   "/groups/{conversation_id}/agent-instances", User,   default(&[GroupAgentInstance]), post(groups::http::add_agent)),
        route(DELETE, "/groups/{conversation_id}/agent-instances/{instance_id}", User,   DEFAULT, delete(groups::http::remove_agent)),
        route(POST,   "/files",                      User,   principal(&[UserFileUpload]), post(files::http::request_of_user)),
        route(PUT,    "/files/{upload_id}/upload",   User,   signed(&[UserFileUpload]), put(files::http::put_of_user)),
        route(POST,   "/shares",                     User,   DEFAULT, post(shares::http::create)),
        route(DELETE, "/shares/{share_id}",          User,   DEFAULT, delete(shares::http::end)),

        route(GET,    "/grants",                     User,   DEFAULT, get(grants::http::list)),
        route(GET,    "/grants/access-log",          User,   DEFAULT, get(access_log::http::list)),
        route(POST,   "/grants/{grant_id}/decision", User,   DEFAULT, post(grants::http::decide)),
        route(DELETE, "/grants/{grant_id}",          User,   DEFAULT, delete(grants::http::revoke)),
        route(POST,   "/artifact-requests/{request_id}/claim", User,   DEFAULT, post(tool_calls::http::claim)),
        route(POST,   "/artifact-requests/{request_id}/response", User,   DEFAULT, post(tool_calls::http::respond)),
        route(GET,    "/approvals",                  User,   DEFAULT, get(approvals::http::list)),
        route(POST,   "/approvals/{approval_id}/decision", User,   DEFAULT, post(approvals::http::decide)),

        route(GET,    "/approvals/{approval_id}",    Either, DEFAULT, get(approvals::http::get)).reads(&[Approval]),
        route(GET,    "/limits",                     Either, DEFAULT, get(budgets::http::list)).reads(NO_USER_DATA),
        route(POST,   "/files/confirm",              Either, DEFAULT, post(files::http::confirm)).reads(NO_USER_DATA),
        route(GET,    "/objects/{object_key}",       Either, signed(&[AgentObjectGet, UserObjectGet]), get(files::http::read)).reads(&[Object]),
        route(DELETE, "/objects/{object_key}",       Either, DEFAULT, delete(files::http::delete)).reads(NO_USER_DATA),
        route(GET,    "/agents/{agent_id}",          Either, DEFAULT, get(agents::http::read)).reads(NO_USER_DATA),
        route(PATCH,  "/agents/{agent_id}",          Either, default(&[AgentManifestUpdate]), patch(agents::http::change)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/keys/register", Either, DEFAULT, post(agents::http::register_key)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/keys/check", Either, DEFAULT, post(agents::http::check_key)).reads(NO_USER_DATA),
        route(GET,    "/agents/{agent_id}/keys",     Either, DEFAULT, get(agents::http::list_keys)).reads(NO_USER_DATA),
        route(PUT,    "/agents/{agent_id}/webhook",  Either, default(&[WebhookCall, WebhookOrigin]), put(webhooks::http::put)).reads(NO_USER_DATA),
        route(GET,    "/agents/{agent_id}/webhook",  Either, DEFAULT, get(webhooks::http::get)).reads(NO_USER_DATA),
        route(DELETE, "/agents/{agent_id}/webhook",  Either, DEFAULT, delete(webhooks::http::delete)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/webhook/verify", Either, default(&[WebhookCall, WebhookOrigin]), post(webhooks::http::verify)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/webhook/rotate-secret", Either, DEFAULT, post(webhooks::http::rotate_secret)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/webhook/test", Either, default(&[WebhookCall, WebhookOrigin]), post(webhooks::http::test)).reads(NO_USER_DATA),
        route(GET,    "/agents/{agent_id}/deliveries", Either, DEFAULT, get(webhooks::http::list_deliveries)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/deliveries/{delivery_id}/redeliver", Either, DEFAULT, post(webhooks::http::redeliver)).reads(NO_USER_DATA),

        route(POST,   "/agents/{agent_id}/ack",      Agent,  DEFAULT, post(agents::http::ack)).reads(&[Push]),

        route(POST,   "/agents/{agent_id}/messages", Agent,  own(&[AgentMessageSend]), post(messages::http::send_as_agent)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/conversations/{conversation_id}/messages", Agent,  own(&[AgentConversationSend]), post(messages::http::send_as_agent_to)).reads(NO_USER_DATA),
        route(DELETE, "/agents/{agent_id}/conversations/{conversation_id}/messages/{message_id}", Agent,  DEFAULT, delete(messages::deletion::by_agent)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/files",    Agent,  principal(&[AgentFileUpload]), post(files::http::request_of_agent)).reads(NO_USER_DATA),
        route(PUT,    "/agents/{agent_id}/files/{upload_id}/upload", Agent,  signed(&[AgentFileUpload]), put(files::http::put_of_agent)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/typing",   Agent,  principal(&[AgentTyping]), post(typing::http::typing)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/grants/request", Agent,  principal(&[AgentGrantRequest]), post(grants::http::request)).reads(NO_USER_DATA),
        route(POST,   "/agents/{agent_id}/artifact-requests", Agent,  DEFAULT, post(tool_calls::http::request)).reads(&[ToolCall]),
        route(POST,   "/agents/{agent_id}/conversations/{conversation_id}/approvals", Agent,  principal(&[ApprovalRequest]), post(approvals::http::request)).reads(&[Approval]),
        route(POST,   "/approvals/{approval_id}/withdraw", Agent,  DEFAULT, post(approvals::http::withdraw)).reads(&[Approval]),
        route(GET,    "/agents/{agent_id}/approvals", Agent,  DEFAULT, get(approvals::http::list_of_agent)).reads(&[Approval]),
        route(GET,    "/agents/{agent_id}/conversations", Agent,  principal(&[AgentConversations]), get(conversations::http::list_of_agent)).reads(&[ConversationList]),
        route(GET,    "/agents/{agent_id}/conversations/{conversation_id}/messages", Agent,  DEFAULT, get(messages::history::of_agent)).reads(&[History]),
        route(GET,    "/agents/{agent_id}/messages/poll", Agent,  principal(&[AgentPoll]), get(gateway::long_poll::poll)).reads(&[Poll, Push]),
    ]
}

/// The public listener's router.
pub fn public(app: App) -> Router {
    let mut plain = Router::new();
    let mut auth = Router::new();
    for route in table() {
        let path = route.path;
        let handler = route.guarded(&app);
        if path.starts_with("/auth/") {
            auth = auth.route(path, handler);
        } else {
            plain = plain.route(path, handler);
        }
    }
    let auth = auth.layer(middleware::from_fn_with_state(
        app.ingress.clone(),
        client::same_origin,
    ));
    Router::new()
        .nest("/v1", plain.clone())
        .merge(plain)
        .merge(auth)
        .fallback(nothing)
        .method_not_allowed_fallback(other_method)
        .layer(client::cors(&app.ingress))
        .layer(CatchPanicLayer::custom(trace::panicked))
        .layer(middleware::from_fn_with_state(
            app.ingress.clone(),
            client::identify,
        ))
        .layer(middleware::from_fn_with_state(
            app.random.clone(),
            trace::record,
        ))
        .with_state(app)
}

/// The admin listener's router.
pub fn admin(app: App) -> Router {
    Router::new()
        .route("/health", get(health::live))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .fallback(nothing)
        .with_state(app)
}

async fn nothing() -> crate::error::Error {
    Code::NotFound.into()
}

async fn other_method() -> crate::error::Error {
    Code::MethodNotAllowed.into()
}

/// `POST /auth/device/*`: planned for V2.
async fn planned() -> crate::error::Error {
    Code::NotAvailableInV1.into()
}

#[cfg(test)]
mod tests {
    use fred::util::redis_keyslot;

    use super::table;
    use crate::redis::keys::window;

    #[test]
    fn all_rules_of_one_key_share_its_hash_slot_whatever_the_route() {
        let slot = |route: &str, key: &str| {
            redis_keyslot(format!("prefix:{}", window("scope", route, key)).as_bytes())
        };
        let routes: Vec<&str> = table().iter().map(|route| route.path).collect();
        for key in [
            "01JZX3N4Q5R6S7T8V9WAXBYCZD",
            "10.0.0.1",
            "alice@example.org",
        ] {
            for route in &routes {
                assert_eq!(
                    slot(&format!("GET {route}"), key),
                    redis_keyslot(key.as_bytes()),
                    "{route}"
                );
            }
        }
    }
}
