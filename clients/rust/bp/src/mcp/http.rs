//! The protocol over streamable HTTP, for programs of this machine alone.

use axum::{
    Json, Router,
    body::Bytes,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::post,
};
use serde_json::json;
use tokio::net::TcpListener;

use super::Server;
use crate::{failure::Result, output::Output, stop::Stop};

/// Serves until Ctrl-C.
pub(super) async fn serve(server: Server, port: u16, output: &Output) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let port = listener.local_addr()?.port();
    let address = format!("http://127.0.0.1:{port}/mcp");
    let mut stop = Stop::hear()?;
    output.beside(&json!({ "address": address }), &address)?;
    let router = Router::new()
        .route("/mcp", post(receive))
        .with_state(server);
    Ok(axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.came().await })
        .await?)
}

/// A web page can make a browser call this machine. Its name or its origin is then a foreign one.
pub fn is_of_this_machine(headers: &HeaderMap) -> bool {
    let is_local = |name: &str| {
        let Some(value) = headers.get(name) else {
            return name == "origin";
        };
        let value = value.to_str().unwrap_or_default();
        let host = value.strip_prefix("http://").unwrap_or(value);
        let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
        matches!(host, "127.0.0.1" | "localhost")
    };
    is_local("host") && is_local("origin")
}

async fn receive(State(server): State<Server>, headers: HeaderMap, body: Bytes) -> Response {
    if !is_of_this_machine(&headers) {
        return StatusCode::FORBIDDEN.into_response();
    }
    match server.answer(&body).await {
        Some(answer) => Json(answer).into_response(),
        None => StatusCode::ACCEPTED.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_web_page_cannot_call_it() {
        for (host, origin, is_local) in [
            ("127.0.0.1:8765", None, true),
            ("localhost:8765", Some("http://localhost:3000"), true),
            ("127.0.0.1", Some("https://example.com"), false),
            ("example.com:8765", None, false),
            ("127.0.0.1.example.com", None, false),
            ("127.0.0.1:1", Some("null"), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert("host", host.parse().expect("a value"));
            if let Some(origin) = origin {
                headers.insert("origin", origin.parse().expect("a value"));
            }
            assert_eq!(is_of_this_machine(&headers), is_local, "{host} {origin:?}");
        }
    }
}
