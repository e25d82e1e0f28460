//! The page of a share: a card for people. It has no script and loads nothing.

use axum::{
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe_protocol::shares::ShareCard;
use sha2::{Digest, Sha256};

const STYLE: &str = "\
body{margin:0;min-height:100vh;display:grid;place-items:center;background:#f3f4f6;color:#111827;\
font:16px/1.5 system-ui,sans-serif}\
main{box-sizing:border-box;width:min(28rem,92vw);padding:2rem;background:#fff;border-radius:12px;\
box-shadow:0 1px 4px #0002;overflow-wrap:anywhere}\
h1{margin:0 0 .5rem;font-size:1.3rem}p{margin:.5rem 0}\
dt{color:#6b7280;font-size:.85rem}dd{margin:0 0 .5rem}code{font-size:.8rem}\
a{display:inline-block;margin-top:.5rem;padding:.5rem 1rem;border-radius:8px;background:#1d4ed8;\
color:#fff;text-decoration:none}\
@media(prefers-color-scheme:dark){body{background:#111827;color:#f3f4f6}main{background:#1f2937}}";

/// The page of an open share.
pub fn card(card: &ShareCard) -> Response {
    let body = match card {
        ShareCard::File(file) => format!(
            "<h1>A shared file</h1>\
             <p>The file is encrypted. An app with its key, which is a part of the link that you have, can open it.</p>\
             <dl><dt>Size</dt><dd>{} bytes</dd><dt>SHA-256</dt><dd><code>{}</code></dd></dl>\
             <a href=\"{}\" rel=\"noreferrer\" download>Download the encrypted file</a>",
            file.size,
            file.sha256,
            escaped(&file.url)
        ),
        ShareCard::Agent(agent) => format!(
            "<h1>{}</h1><p>{}</p><dl><dt>Agent</dt><dd><code>{}</code></dd></dl>",
            escaped(&agent.display_name),
            escaped(agent.description.as_deref().unwrap_or_default()),
            agent.agent_id
        ),
        ShareCard::Contact(user) => format!(
            "<h1>{}</h1><p>A contact.</p><dl><dt>User</dt><dd><code>{}</code></dd></dl>",
            escaped(&user.display_name),
            user.user_id
        ),
    };
    page(StatusCode::OK, &body)
}

/// The page of a share that is not there, whatever the reason.
pub fn nothing() -> Response {
    let body = "<h1>There is nothing here</h1><p>The link is wrong, or it has ended.</p>";
    page(StatusCode::NOT_FOUND, body)
}

fn page(status: StatusCode, body: &str) -> Response {
    let style_hash = BASE64.encode(Sha256::digest(STYLE));
    let policy = format!(
        "default-src 'none'; style-src 'sha256-{style_hash}'; base-uri 'none'; form-action 'none'; \
         frame-ancestors 'none'"
    );
    let html = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\"><meta name=\"robots\" content=\"noindex\">\
         <title>Shared with you</title><style>{STYLE}</style></head><body><main>{body}</main></body></html>"
    );
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, policy.as_str()),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ];
    (status, headers, html).into_response()
}

fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for sign in text.chars() {
        match sign {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            sign => safe.push(sign),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_text_and_not_markup() {
        assert_eq!(
            escaped("<b a=\"1\" c='2'>&"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;"
        );
    }
}
