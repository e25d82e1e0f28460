//! A2A over HTTP for programs of this machine: JSON-RPC, HTTP+JSON and streams.

use std::{convert::Infallible, sync::Arc};

use axum::{
    Json, Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, Request, State},
    http::{HeaderMap, StatusCode},
    middleware::{self, Next},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{get, post},
};
use blindpipe_client::protocol::{agents::AgentView, ids::Principal};
use futures_util::{Stream, stream};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::broadcast::error::RecvError};

use super::{
    A2a,
    push::{Pushes, Receiver},
    served::{Fault, Tasks, Watched},
    wire::{AUTH_REQUIRED, CARD_PATH, INPUT_REQUIRED, VERSION, VERSION_HEADER, is_final},
};
use crate::{
    commands::chat::caught_up,
    context::Context,
    failure::{Failure, Result},
    mcp::is_of_this_machine,
    output::Output,
    stop::Stop,
    to,
};

/// Files come in base64.
const MAX_BODY_BYTES: usize = 32 << 20;

#[derive(Clone)]
struct Served {
    tasks: Arc<Tasks>,
    pushes: Arc<Pushes>,
    card: Arc<Value>,
}

type Answer = std::result::Result<Value, Fault>;

/// Serves an agent until Ctrl-C.
pub async fn serve(agent: &str, a2a: &A2a, at: &Context, output: &Output) -> Result<()> {
    let client = at.client_with_keys().await?;
    let id = to::agent(&client, at, agent).await?;
    let (name, description) = match client.agent(id).await? {
        AgentView::Full(agent) => (agent.display_name, agent.description),
        AgentView::Card(card) => (card.display_name, card.description),
    };
    let conversation = client.open_agent(id).await?;
    let mut events = client.events()?;
    caught_up(&mut events).await?;
    let listener = TcpListener::bind(("127.0.0.1", a2a.port)).await?;
    let url = format!("http://127.0.0.1:{}", listener.local_addr()?.port());
    let description = description.map_or_else(|| json!(name), |it| json!(it));
    let tasks = Arc::new(Tasks::new(conversation, Principal::Agent(id)));
    let own = [url.as_str(), at.settings.url.as_str()];
    let pushes = Arc::new(Pushes::new(tasks.clone(), &own, a2a.push_loopback, output));
    let served = Served {
        tasks: tasks.clone(),
        pushes: pushes.clone(),
        card: Arc::new(card(&json!(name), &description, &url)),
    };
    let mut stop = Stop::hear()?;
    output.beside(&json!({ "address": url }), &url)?;
    let watch = async {
        loop {
            match events.next().await {
                Ok(event) => tasks.see(event).await,
                Err(error) => return Failure::from(error),
            }
        }
    };
    tokio::select! {
        served = async { axum::serve(listener, routes(served)).await } => served?,
        failure = watch => return Err(failure),
        () = pushes.upkeep() => {}
        () = stop.came() => {}
    }
    events.close().await;
    Ok(())
}

fn card(name: &Value, description: &Value, url: &str) -> Value {
    let interface = |binding: &str| json!({ "url": url, "protocolBinding": binding, "protocolVersion": VERSION });
    json!({
        "name": name,
        "description": description,
        "version": env!("CARGO_PKG_VERSION"),
        "supportedInterfaces": [interface("JSONRPC"), interface("HTTP+JSON")],
        "capabilities": { "streaming": true, "pushNotifications": true },
        "defaultInputModes": ["text/plain"],
        "defaultOutputModes": ["text/plain"],
        "skills": [{ "id": "talk", "name": name, "description": description, "tags": ["blindpipe"] }],
    })
}

fn routes(served: Served) -> Router {
    Router::new()
        .route(CARD_PATH, get(show_card))
        .route("/", post(rpc))
        .route("/message:send", post(send))
        .route("/message:stream", post(send_streaming))
        .route("/tasks", get(list))
        .route("/tasks/{task}", get(task_get).post(task_post))
        .route(
            "/tasks/{task}/pushNotificationConfigs",
            get(pushes_of).post(push_to),
        )
        .route(
            "/tasks/{task}/pushNotificationConfigs/{config}",
            get(push_config).delete(push_no_more),
        )
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .layer(middleware::from_fn(guard))
        .with_state(served)
}

/// A web page can make a browser call this machine.
async fn guard(request: Request, next: Next) -> Response {
    if !is_of_this_machine(request.headers()) {
        return StatusCode::FORBIDDEN.into_response();
    }
    next.run(request).await
}

async fn show_card(State(served): State<Served>) -> Json<Value> {
    Json((*served.card).clone())
}

/// A client of another version is told so.
fn check_version(headers: &HeaderMap) -> std::result::Result<(), Fault> {
    let asked = headers.get(VERSION_HEADER).and_then(|it| it.to_str().ok());
    if asked.is_none_or(|it| it.starts_with("1.")) {
        return Ok(());
    }
    let words = "this agent speaks version 1.0";
    Err(Fault::new(-32009, 400, "VERSION_NOT_SUPPORTED", words))
}

fn body_of(bytes: &[u8]) -> Answer {
    serde_json::from_slice(bytes).map_err(|_| Fault::new(-32700, 400, "PARSE_ERROR", "no JSON"))
}

/// Whether a call that waits is answered at this state.
fn is_still(state: &str) -> bool {
    is_final(state) || matches!(state, INPUT_REQUIRED | AUTH_REQUIRED)
}

fn state_of(change: &Value) -> &str {
    let status = &change["statusUpdate"]["status"]["state"];
    status.as_str().unwrap_or_default()
}

impl Served {
    /// Takes a client's message, and tells the receiver that it names of the task.
    async fn begin(&self, params: &Value) -> std::result::Result<Watched, Fault> {
        let config = &params["configuration"]["taskPushNotificationConfig"];
        let receiver = match config {
            Value::Object(_) => Some(Receiver::read(config)?),
            _ => None,
        };
        if let Some(receiver) = &receiver {
            self.pushes.check(receiver).await?;
        }
        let watched = self.tasks.send(&params["message"]).await?;
        if let (Some(receiver), Some(task)) = (receiver, watched.task["id"].as_str()) {
            self.pushes.add(task, receiver).await?;
        }
        Ok(watched)
    }

    /// The task once it has ended or waits for somebody; at once if the client asks so.
    async fn send(&self, params: &Value) -> Answer {
        let mut watched = self.begin(params).await?;
        if params["configuration"]["returnImmediately"] == true {
            return Ok(json!({ "task": watched.task }));
        }
        let id = watched.task["id"].as_str().unwrap_or_default().to_owned();
        loop {
            match watched.changes.recv().await {
                Ok(change) if !is_still(state_of(&change)) => {}
                // The task has the missed steps.
                Ok(_) | Err(_) => {
                    let task = self.tasks.watch(&id).await?.task;
                    if is_still(task["status"]["state"].as_str().unwrap_or_default()) {
                        return Ok(json!({ "task": task }));
                    }
                }
            }
        }
    }

    async fn subscribe(&self, id: &str) -> std::result::Result<Watched, Fault> {
        let watched = self.tasks.watch(id).await?;
        if is_final(watched.task["status"]["state"].as_str().unwrap_or_default()) {
            let words = "the task has ended";
            return Err(Fault::new(-32004, 400, "UNSUPPORTED_OPERATION", words));
        }
        Ok(watched)
    }

    async fn call(&self, method: &str, params: &Value) -> Answer {
        let id = params["id"].as_str().unwrap_or_default();
        let task = params["taskId"].as_str().unwrap_or_default();
        match method {
            "SendMessage" => self.send(params).await,
            "GetTask" => Ok(self.tasks.watch(id).await?.task),
            "ListTasks" => Ok(self.list().await),
            "CancelTask" => self.tasks.cancel(id).await,
            "CreateTaskPushNotificationConfig" => {
                self.pushes.add(task, Receiver::read(params)?).await
            }
            "GetTaskPushNotificationConfig" => self.pushes.get(task, id).await,
            "ListTaskPushNotificationConfigs" => self.pushes.list(task).await,
            "DeleteTaskPushNotificationConfig" => self.pushes.delete(task, id).await,
            _ => Err(Fault::new(
                -32601,
                404,
                "METHOD_NOT_FOUND",
                "there is no such method",
            )),
        }
    }

    async fn list(&self) -> Value {
        let tasks = self.tasks.list().await;
        let count = tasks.len();
        json!({ "tasks": tasks, "nextPageToken": "", "pageSize": count, "totalSize": count })
    }
}

/// The task, then its changes until it ends or waits for words.
fn changes(watched: Watched) -> impl Stream<Item = Value> + Send + 'static {
    let first = json!({ "task": watched.task });
    let is_last = |change: &Value| {
        let state = state_of(change);
        is_final(state) || state == INPUT_REQUIRED
    };
    stream::unfold(
        (Some(first), Some(watched.changes)),
        move |(first, changes)| async move {
            let mut changes = changes?;
            if let Some(first) = first {
                return Some((first, (None, Some(changes))));
            }
            loop {
                match changes.recv().await {
                    Ok(change) => {
                        let rest = (!is_last(&change)).then_some(changes);
                        return Some((change, (None, rest)));
                    }
                    Err(RecvError::Lagged(_)) => {}
                    Err(RecvError::Closed) => return None,
                }
            }
        },
    )
}

fn streamed(watched: Watched, wrap: impl Fn(Value) -> Value + Send + 'static) -> Response {
    let events = futures_util::StreamExt::map(changes(watched), move |change| {
        Ok::<_, Infallible>(Event::default().data(wrap(change).to_string()))
    });
    Sse::new(events)
        .keep_alive(KeepAlive::default())
        .into_response()
}

async fn rpc(State(served): State<Served>, headers: HeaderMap, body: Bytes) -> Response {
    let request = match body_of(&body) {
        Ok(request) => request,
        Err(fault) => return Json(rpc_error(&Value::Null, &fault)).into_response(),
    };
    let id = request["id"].clone();
    let refused = |fault: Fault| Json(rpc_error(&id, &fault)).into_response();
    if let Err(fault) = check_version(&headers) {
        return refused(fault);
    }
    let params = &request["params"];
    let method = request["method"].as_str().unwrap_or_default();
    let watched = match method {
        "SendStreamingMessage" => served.begin(params).await,
        "SubscribeToTask" => {
            let task = params["id"].as_str().unwrap_or_default();
            served.subscribe(task).await
        }
        _ => {
            return match served.call(method, params).await {
                Ok(result) => {
                    Json(json!({ "jsonrpc": "2.0", "id": id, "result": result })).into_response()
                }
                Err(fault) => refused(fault),
            };
        }
    };
    match watched {
        Ok(watched) => {
            let wrap = move |change| json!({ "jsonrpc": "2.0", "id": id, "result": change });
            streamed(watched, wrap)
        }
        Err(fault) => refused(fault),
    }
}

fn rpc_error(id: &Value, fault: &Fault) -> Value {
    let error = json!({ "code": fault.code, "message": fault.message, "data": [info(fault)] });
    json!({ "jsonrpc": "2.0", "id": id, "error": error })
}

/// The reason in the form of `google.rpc.ErrorInfo`.
fn info(fault: &Fault) -> Value {
    json!({
        "@type": "type.googleapis.com/google.rpc.ErrorInfo",
        "reason": fault.reason,
        "domain": "a2a-protocol.org",
    })
}

impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::BAD_GATEWAY);
        let error =
            json!({ "code": self.status, "message": self.message, "details": [info(&self)] });
        (status, Json(json!({ "error": error }))).into_response()
    }
}

async fn send(
    State(served): State<Served>,
    headers: HeaderMap,
    body: Bytes,
) -> std::result::Result<Json<Value>, Fault> {
    check_version(&headers)?;
    Ok(Json(served.send(&body_of(&body)?).await?))
}

async fn send_streaming(
    State(served): State<Served>,
    headers: HeaderMap,
    body: Bytes,
) -> std::result::Result<Response, Fault> {
    check_version(&headers)?;
    let params = body_of(&body)?;
    let watched = served.begin(&params).await?;
    Ok(streamed(watched, |change| change))
}

async fn list(State(served): State<Served>) -> Json<Value> {
    Json(served.list().await)
}

/// `ID`, or `ID:subscribe`.
async fn task_get(
    State(served): State<Served>,
    Path(task): Path<String>,
) -> std::result::Result<Response, Fault> {
    if let Some(id) = task.strip_suffix(":subscribe") {
        return Ok(streamed(served.subscribe(id).await?, |change| change));
    }
    Ok(Json(served.tasks.watch(&task).await?.task).into_response())
}

/// `ID:cancel`, or `ID:subscribe`.
async fn task_post(
    State(served): State<Served>,
    Path(task): Path<String>,
) -> std::result::Result<Response, Fault> {
    if let Some(id) = task.strip_suffix(":cancel") {
        return Ok(Json(served.tasks.cancel(id).await?).into_response());
    }
    if let Some(id) = task.strip_suffix(":subscribe") {
        return Ok(streamed(served.subscribe(id).await?, |change| change));
    }
    Err(Fault::new(
        -32601,
        404,
        "METHOD_NOT_FOUND",
        "there is no such method",
    ))
}

async fn push_to(
    State(served): State<Served>,
    Path(task): Path<String>,
    body: Bytes,
) -> std::result::Result<Json<Value>, Fault> {
    let receiver = Receiver::read(&body_of(&body)?)?;
    Ok(Json(served.pushes.add(&task, receiver).await?))
}

async fn pushes_of(
    State(served): State<Served>,
    Path(task): Path<String>,
) -> std::result::Result<Json<Value>, Fault> {
    Ok(Json(served.pushes.list(&task).await?))
}

async fn push_config(
    State(served): State<Served>,
    Path((task, config)): Path<(String, String)>,
) -> std::result::Result<Json<Value>, Fault> {
    Ok(Json(served.pushes.get(&task, &config).await?))
}

async fn push_no_more(
    State(served): State<Served>,
    Path((task, config)): Path<(String, String)>,
) -> std::result::Result<Json<Value>, Fault> {
    Ok(Json(served.pushes.delete(&task, &config).await?))
}
