//! Push notifications of `bp bridge a2a`, configured by the official client.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    extract::{Request, State},
    http::{StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::mpsc, task::JoinSet};

use crate::{
    bridge::{Client, PATIENCE, helper, python, serve},
    support::{Home, has_approvals},
};

/// A notification as it arrived: the path, two headers, and the task.
struct Pushed {
    path: String,
    token: String,
    authorization: String,
    task: Value,
}

#[derive(Clone)]
struct Door {
    pushed: mpsc::UnboundedSender<Pushed>,
    calls: Arc<AtomicUsize>,
}

/// `/busy` refuses the first call for a moment, and `/moved` points elsewhere.
async fn receive(State(door): State<Door>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    let path = head.uri.path().to_owned();
    let header = |name: &str| {
        let value = head.headers.get(name).and_then(|it| it.to_str().ok());
        value.unwrap_or_default().to_owned()
    };
    let body = axum::body::to_bytes(body, 1 << 20).await.expect("a body");
    let body: Value = serde_json::from_slice(&body).expect("JSON");
    let pushed = Pushed {
        path: path.clone(),
        token: header("x-a2a-notification-token"),
        authorization: header("authorization"),
        task: body["task"].clone(),
    };
    let is_first = door.calls.fetch_add(1, Ordering::Relaxed) == 0;
    door.pushed.send(pushed).ok();
    match path.as_str() {
        "/busy" if is_first => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        "/moved" => (
            StatusCode::TEMPORARY_REDIRECT,
            [(header::LOCATION, "/secret")],
        )
            .into_response(),
        _ => StatusCode::OK.into_response(),
    }
}

/// A receiver on this machine: its address, and what it gets.
async fn receiver(running: &mut JoinSet<()>) -> (String, mpsc::UnboundedReceiver<Pushed>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (pushed, got) = mpsc::unbounded_channel();
    let calls = Arc::default();
    let routes = Router::new()
        .fallback(receive)
        .with_state(Door { pushed, calls });
    running.spawn(async move { axum::serve(listener, routes).await.expect("served") });
    (url, got)
}

async fn next(got: &mut mpsc::UnboundedReceiver<Pushed>) -> Pushed {
    let pushed = tokio::time::timeout(PATIENCE, got.recv()).await;
    pushed.expect("a notification").expect("a receiver")
}

/// The notification of a state.
async fn until(got: &mut mpsc::UnboundedReceiver<Pushed>, state: &str) -> Pushed {
    loop {
        let pushed = next(got).await;
        if pushed.task["status"]["state"] == state {
            return pushed;
        }
    }
}

async fn is_pushed(python: &str, url: &str, binding: &str) {
    let mut running = JoinSet::new();
    let (receiver, mut got) = receiver(&mut running).await;
    let mut client = Client::start(python, url, binding);

    // The config comes with the message, and the first call fails.
    let push = json!({
        "url": format!("{receiver}/busy"),
        "token": "t0ken",
        "authentication": { "scheme": "Bearer", "credentials": "s3cret" },
    });
    let call = json!({ "do": "send", "text": "ask", "stream": false, "soon": true, "push": push });
    let begun = client.call(&call).remove(0);
    let task = begun["task"]["id"].as_str().expect("an id").to_owned();
    let first = next(&mut got).await;
    assert_eq!(first.path, "/busy");
    assert_eq!(
        (first.token.as_str(), first.authorization.as_str()),
        ("t0ken", "Bearer s3cret")
    );
    let asked = until(&mut got, "TASK_STATE_INPUT_REQUIRED").await;
    assert_eq!(asked.task["id"], task);

    // It is shown without its secrets.
    let shown = client.call(&json!({ "do": "push_config", "task": task, "id": task }));
    assert_eq!(shown[0]["url"], push["url"]);
    assert_eq!(shown[0]["authentication"], json!({ "scheme": "Bearer" }));
    assert_eq!(shown[0].get("token"), None);

    // A second one, of its own, is told first how the task is.
    let second = json!({ "taskId": task, "id": "second", "url": format!("{receiver}/second") });
    let created = client.call(&json!({ "do": "push", "push": second }));
    assert_eq!(created, [second]);
    let told = next(&mut got).await;
    assert_eq!(told.path, "/second");
    assert_eq!(told.task["status"]["state"], "TASK_STATE_INPUT_REQUIRED");
    let all = client.call(&json!({ "do": "pushes", "task": task }));
    assert_eq!(all[0]["configs"].as_array().expect("a list").len(), 2);
    let gone = client.call(&json!({ "do": "push_no_more", "task": task, "id": task }));
    assert_eq!(gone, Vec::<Value>::new());
    let none = client.call(&json!({ "do": "push_config", "task": task, "id": task }));
    assert_eq!(none[0]["error"], "TaskNotFoundError");

    let answer = json!({ "do": "send", "text": "blue", "task": task, "stream": false });
    client.call(&answer);
    let mut paths = Vec::new();
    let ended = loop {
        let pushed = next(&mut got).await;
        paths.push(pushed.path.clone());
        if pushed.task["status"]["state"] == "TASK_STATE_COMPLETED" {
            break pushed;
        }
    };
    assert_eq!(
        ended.task["artifacts"][0]["parts"][0]["text"],
        "chosen: blue"
    );
    assert!(paths.iter().all(|path| path == "/second"), "{paths:?}");

    // A redirect is an answer, and nothing goes to the other place.
    let moved = json!({ "taskId": task, "url": format!("{receiver}/moved") });
    client.call(&json!({ "do": "push", "push": moved }));
    assert_eq!(next(&mut got).await.path, "/moved");
    let last = json!({ "taskId": task, "id": "last", "url": format!("{receiver}/last") });
    client.call(&json!({ "do": "push", "push": last }));
    assert_eq!(next(&mut got).await.path, "/last");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_are_pushed_to_the_receivers_of_clients() {
    let Some(python) = python() else {
        return;
    };
    let home = Home::with_person().await;
    let _agent = helper(&home).await;
    if !has_approvals(&home) {
        return;
    }
    let (_bridge, url) = serve(&home, &["--push-loopback"]);
    for binding in ["JSONRPC", "HTTP+JSON"] {
        is_pushed(python, &url, binding).await;
    }
    // Not even with the flag: private addresses, and the bridge itself.
    refuses(
        python,
        &url,
        &["http://10.0.0.1/", "https://169.254.169.254/", &url],
    );
}

/// Every address is refused, with the message and for a task.
fn refuses(python: &str, url: &str, addresses: &[&str]) {
    let mut client = Client::start(python, url, "JSONRPC");
    let task = client.call(&json!({ "do": "send", "text": "hello", "stream": false }));
    let task = &task[0]["task"]["id"];
    for address in addresses {
        let push = json!({ "taskId": task, "url": address });
        for call in [
            json!({ "do": "push", "push": push }),
            json!({ "do": "send", "text": "hello", "push": { "url": address } }),
        ] {
            let refused = client.call(&call);
            assert_eq!(
                refused[0]["error"], "InvalidParamsError",
                "{address}: {refused:?}"
            );
        }
    }
    let none = client.call(&json!({ "do": "pushes", "task": task }));
    assert_eq!(none[0].get("configs"), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn attack_74_a_push_config_leads_to_no_private_address() {
    let Some(python) = python() else {
        return;
    };
    let mut running = JoinSet::new();
    let (receiver, mut got) = receiver(&mut running).await;
    let home = Home::with_person().await;
    let _agent = helper(&home).await;
    let (_bridge, url) = serve(&home, &[]);
    let addresses = [
        receiver.as_str(),
        "http://example.com/",
        "https://127.0.0.1/",
        "https://localhost/",
        "https://10.0.0.1/",
        "https://192.168.0.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "https://[fd00::1]/",
        "https://0x7f000001/",
        "https://user@example.com/",
        "https://example.com:22/",
        "https://metadata.google.internal/",
    ];
    refuses(python, &url, &addresses);
    assert!(got.try_recv().is_err());
}
