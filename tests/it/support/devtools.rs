//! A page of a browser, over the DevTools protocol.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_tungstenite::{WebSocketStream, tungstenite::Message};

/// The longest duration of a call.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A page, with a browser connection of its own.
pub struct DevTools {
    stream: WebSocketStream<TcpStream>,
    session: Value,
    calls: u32,
    /// The page's reports meanwhile.
    pub reports: Vec<Value>,
}

impl DevTools {
    /// Opens an empty page of the browser at `address`.
    pub async fn open(address: &str) -> Self {
        let host = address
            .trim_start_matches("ws://")
            .split('/')
            .next()
            .expect("a host");
        let stream = TcpStream::connect(host).await.expect("the browser");
        let (stream, _) = tokio_tungstenite::client_async(address, stream)
            .await
            .expect("a WebSocket");
        let mut page = DevTools {
            stream,
            session: Value::Null,
            calls: 0,
            reports: Vec::new(),
        };
        let target = page
            .call("Target.createTarget", json!({ "url": "about:blank" }))
            .await;
        let attach = json!({ "targetId": target["targetId"], "flatten": true });
        page.session = page.call("Target.attachToTarget", attach).await["sessionId"].take();
        page.call("Page.enable", json!({})).await;
        page
    }

    /// Calls a method of the page and returns its result.
    pub async fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut call = json!({ "id": self.calls, "method": method, "params": params });
        if !self.session.is_null() {
            call["sessionId"] = self.session.clone();
        }
        self.stream
            .send(Message::text(call.to_string()))
            .await
            .expect("sent");
        let id = json!(self.calls);
        let answer = self.await_frame(method, |frame| frame["id"] == id).await;
        assert!(answer["error"].is_null(), "{method}: {answer}");
        answer["result"].clone()
    }

    /// Navigates to `url`. Returns when the new page has begun.
    pub async fn go(&mut self, url: &str) {
        let gone = self.call("Page.navigate", json!({ "url": url })).await;
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
    }

    /// The value of a script.
    pub async fn evaluate(&mut self, script: &str) -> Value {
        let params = json!({ "expression": script, "returnByValue": true, "awaitPromise": true, "userGesture": true });
        let answer = self.call("Runtime.evaluate", params).await;
        assert!(answer["exceptionDetails"].is_null(), "{script}: {answer}");
        answer["result"]["value"].clone()
    }

    /// Waits for a frame and keeps others.
    async fn await_frame(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        let DevTools {
            stream, reports, ..
        } = self;
        let next = async {
            loop {
                let frame = stream
                    .next()
                    .await
                    .expect("an open WebSocket")
                    .expect("a frame");
                let Message::Text(text) = frame else { continue };
                let frame: Value = serde_json::from_str(&text).expect("JSON");
                if is_it(&frame) {
                    return frame;
                }
                reports.push(frame);
            }
        };
        tokio::time::timeout(TIMEOUT, next)
            .await
            .unwrap_or_else(|_| panic!("no answer to {what}"))
    }
}
