//! The human check: a token from a file, a development cluster's stand-in, or a page of the widget
//! that hands its token to a port of this machine.

use std::{path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header::CONTENT_SECURITY_POLICY},
    response::{Html, IntoResponse},
    routing::{get, post},
};
use clap::Args;
use serde::Deserialize;
use serde_json::json;
use tokio::{net::TcpListener, sync::mpsc};

use crate::{
    context::Context,
    failure::{Failure, Result},
    output::Output,
    prompt,
};

const PAGE_TIMEOUT: Duration = Duration::from_secs(300);
/// Passes at a development cluster, and nowhere else.
const STAND_IN: &str = "dev-pass";
const POLICY: &str = "default-src 'none'; script-src 'unsafe-inline' https://challenges.cloudflare.com; \
    frame-src https://challenges.cloudflare.com; connect-src 'self'; base-uri 'none'; \
    form-action 'none'; frame-ancestors 'none'";

#[derive(Args)]
pub struct HumanCheck {
    /// A file with the token of a solved human check.
    #[arg(long, value_name = "FILE", env = "BP_TURNSTILE_TOKEN_FILE")]
    turnstile_token_file: Option<PathBuf>,
}

impl HumanCheck {
    /// A token, which serves once.
    pub async fn token(&self, at: &Context, output: &Output) -> Result<String> {
        if let Some(file) = &self.turnstile_token_file {
            return prompt::secret_from(file);
        }
        if at.settings.dev.is_some() {
            return Ok(STAND_IN.to_owned());
        }
        let Some(site_key) = &at.settings.site_key else {
            let missing = Failure::usage("this service asks for a human check");
            return Err(missing.remedy(
                "`bp context add … --site-key KEY`, or --turnstile-token-file with a token",
            ));
        };
        by_page(site_key, output).await
    }
}

struct Page {
    /// Only the page that this program named may hand a token in.
    secret: String,
    html: String,
    tokens: mpsc::Sender<String>,
}

#[derive(Deserialize)]
struct Solved {
    token: String,
}

/// Serves the page until it hands a token in.
async fn by_page(site_key: &str, output: &Output) -> Result<String> {
    let is_key = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    if !site_key.chars().all(is_key) {
        return Err(Failure::usage("the site key is none"));
    }
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    let port = listener.local_addr()?.port();
    let secret = format!("{:032x}", rand::random::<u128>());
    let address = format!("http://localhost:{port}/{secret}");
    let text = format!("Solve the human check here: {address}");
    output.beside(&json!({ "address": address }), &text)?;
    let (tokens, mut solved) = mpsc::channel(1);
    let page = Page {
        html: include_str!("human.html").replace("SITE_KEY", site_key),
        secret,
        tokens,
    };
    let routes = Router::new()
        .route("/{secret}", get(show))
        .route("/{secret}/token", post(take))
        .with_state(Arc::new(page));
    let token = async {
        tokio::select! {
            token = solved.recv() => token,
            _ = async { axum::serve(listener, routes).await } => None,
        }
    };
    let token = tokio::time::timeout(PAGE_TIMEOUT, token).await;
    let missing = || Failure::failed("nobody solved the human check in five minutes");
    token.ok().flatten().ok_or_else(missing)
}

async fn show(State(page): State<Arc<Page>>, Path(secret): Path<String>) -> impl IntoResponse {
    if secret != page.secret {
        return StatusCode::NOT_FOUND.into_response();
    }
    ([(CONTENT_SECURITY_POLICY, POLICY)], Html(page.html.clone())).into_response()
}

async fn take(
    State(page): State<Arc<Page>>,
    Path(secret): Path<String>,
    Json(solved): Json<Solved>,
) -> StatusCode {
    if secret != page.secret {
        return StatusCode::NOT_FOUND;
    }
    page.tokens.send(solved.token).await.ok();
    StatusCode::NO_CONTENT
}
