//! THE ROUTES: one line per method and path, grouped by caller. `/v1/...` is an alias of all but `/auth/*`, whose
//! cookie has a path.

use axum::{
    Router,
    http::Method,
    middleware,
    routing::{MethodRouter, delete, get, patch, post},
};
use tower_http::catch_panic::CatchPanicLayer;

use crate::{
    app::App,
    error::Code,
    features::{
        accounts, agents, budgets, conversations, devices, group_keys, groups, health, keys,
        messages, passkeys, relations, streams,
    },
    gateway,
    http::{client, trace},
};

/// Who may call a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Anyone.
    Public,
    /// A user's access token.
    User,
    /// An agent's token; where the path names an agent, that one's.
    Agent,
    /// Either of the two: a user's access token, or an agent's token as above.
    Either,
}

/// A route of the public listener.
pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub caller: Access,
    handler: MethodRouter<App>,
}

fn route(method: Method, path: &'static str, caller: Access, handler: MethodRouter<App>) -> Route {
    Route {
        method,
        path,
        caller,
        handler,
    }
}

/// Every route of the public listener.
#[rustfmt::skip]
pub fn table() -> Vec<Route> {
    use Access::{Agent, Either, Public, User};
    const GET: Method = Method::GET;
    const POST: Method = Method::POST;
    const PATCH: Method = Method::PATCH;
    const DELETE: Method = Method::DELETE;
    vec![
        route(POST, "/auth/send-code",           Public, post(accounts::http::send_code)),
        route(POST, "/auth/register",            Public, post(accounts::http::register)),
        route(POST, "/auth/login",               Public, post(accounts::http::login)),
        route(POST, "/auth/login-code",          Public, post(accounts::http::login_code)),
        route(POST, "/auth/refresh",             Public, post(accounts::session::refresh)),
        route(POST, "/auth/logout",              Public, post(accounts::session::logout)),
        route(POST, "/auth/passkey/begin",       Public, post(passkeys::http::begin_login)),
        route(POST, "/auth/passkey/complete",    Public, post(passkeys::http::login)),
        route(POST, "/auth/reset-password",      Public, post(accounts::http::reset_password)),
        route(POST, "/auth/device/code",         Public, post(planned)),
        route(POST, "/auth/device/verify",       Public, post(planned)),
        route(POST, "/auth/device/poll",         Public, post(planned)),
        route(GET,  "/health",                   Public, get(health::health)),
        route(GET,  "/version",                  Public, get(health::version)),
        route(GET,  "/ws",                       Public, get(gateway::upgrade)),

        route(GET,  "/users/me",                 User,   get(accounts::me::get)),
        route(DELETE, "/users/me",               User,   delete(accounts::me::delete)),
        route(POST, "/users/me/password",        User,   post(accounts::me::change_password)),
        route(GET,  "/users/me/devices",         User,   get(devices::http::list)),
        route(DELETE, "/users/me/devices/{device_id}", User, delete(devices::http::revoke)),
        route(POST, "/users/me/passkeys/begin",  User,   post(passkeys::http::begin_enrolment)),
        route(POST, "/users/me/passkeys/complete", User, post(passkeys::http::enrol)),
        route(GET,  "/users/me/passkeys",        User,   get(passkeys::http::list)),
        route(DELETE, "/users/me/passkeys/{passkey_id}", User, delete(passkeys::http::remove)),
        route(POST, "/keys/backup",              User,   post(keys::http::put_backup)),
        route(GET,  "/keys/backup",              User,   get(keys::http::read_backups)),
        route(GET,  "/keys/users/{user_id}/devices", Either, get(keys::http::directory)),
        route(POST, "/keys/groups/{conversation_id}/rotate", User, post(group_keys::http::rotate)),
        route(GET,  "/keys/groups/{conversation_id}", Either, get(group_keys::http::read)),
        route(POST, "/keys/rotation/request",    User,   post(group_keys::http::request)),

        route(POST, "/agents",                   User,   post(agents::http::create)),
        route(GET,  "/agents",                   User,   get(agents::http::list)),
        route(DELETE, "/agents/{agent_id}",      User,   delete(agents::http::delete)),
        route(POST, "/agents/{agent_id}/token/regenerate", User, post(agents::http::regenerate_token)),
        route(DELETE, "/agents/{agent_id}/token", User,  delete(agents::http::revoke_token)),
        route(POST, "/conversations",            User,   post(conversations::http::open)),
        route(GET,  "/conversations",            User,   get(conversations::http::list)),
        route(GET,  "/conversations/{conversation_id}", Either, get(conversations::http::get)),
        route(PATCH, "/conversations/{conversation_id}", User, patch(conversations::http::change)),
        route(POST, "/conversations/{conversation_id}/read", Either, post(conversations::http::read)),
        route(POST, "/conversations/{conversation_id}/messages", User, post(messages::http::send_as_user)),
        route(GET,  "/conversations/{conversation_id}/messages", User, get(messages::history::of_user)),
        route(GET,  "/relations",                User,   get(relations::http::list)),
        route(DELETE, "/relations/{relation_id}", User,  delete(relations::http::revoke)),
        route(POST, "/groups",                   User,   post(conversations::http::open_group)),
        route(POST, "/groups/{conversation_id}/members", User, post(groups::http::add_members)),
        route(PATCH, "/groups/{conversation_id}/members/{principal_id}", User, patch(groups::http::change_member)),
        route(DELETE, "/groups/{conversation_id}/members/{principal_id}", Either, delete(groups::http::remove_member)),
        route(POST, "/groups/{conversation_id}/agent-instances", User, post(groups::http::add_agent)),
        route(DELETE, "/groups/{conversation_id}/agent-instances/{instance_id}", User, delete(groups::http::remove_agent)),

        route(GET,  "/limits",                   Either, get(budgets::http::list)),
        route(GET,  "/agents/{agent_id}",        Either, get(agents::http::read)),
        route(POST, "/agents/{agent_id}/keys/register", Either, post(agents::http::register_key)),
        route(POST, "/agents/{agent_id}/keys/check", Either, post(agents::http::check_key)),
        route(GET,  "/agents/{agent_id}/keys",   Either, get(agents::http::list_keys)),

        route(PATCH, "/agents/{agent_id}",       Agent,  patch(agents::http::update)),
        route(POST, "/agents/{agent_id}/ack",    Agent,  post(agents::http::ack)),

        route(POST, "/agents/{agent_id}/messages", Agent, post(messages::http::send_as_agent)),
        route(POST, "/agents/{agent_id}/conversations/{conversation_id}/messages", Agent, post(messages::http::send_as_agent_to)),
        route(POST, "/agents/{agent_id}/typing", Agent, post(streams::typing)),
        route(GET,  "/agents/{agent_id}/conversations", Agent, get(conversations::http::list_of_agent)),
        route(GET,  "/agents/{agent_id}/conversations/{conversation_id}/messages", Agent, get(messages::history::of_agent)),
        route(GET,  "/agents/{agent_id}/messages/poll", Agent, get(messages::http::poll)),
    ]
}

/// The public listener's router.
pub fn public(app: App) -> Router {
    let mut plain = Router::new();
    let mut auth = Router::new();
    for Route { path, handler, .. } in table() {
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
