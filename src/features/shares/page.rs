//! The page of a share: a card for people. It has no script and loads nothing.

use axum::{
    http::{HeaderName, StatusCode, header},
    response::{IntoResponse, Response},
};
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use blindpipe_protocol::shares::{FileCard, ShareCard};
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
    let (body, end) = match card {
        ShareCard::File(file) => (self::file(file), file.expires_at),
        ShareCard::Agent(agent) => {
            let purpose = escaped(agent.description.as_deref().unwrap_or_default());
            let body = format!(
                "{}<p>{purpose}</p><dl><dt>Agent</dt><dd><code>{}</code></dd>",
                heading(&agent.display_name),
                agent.agent_id
            );
            (body, agent.expires_at)
        }
        ShareCard::Contact(user) => {
            let body = format!(
                "{}<p>A contact.</p><dl><dt>User</dt><dd><code>{}</code></dd>",
                heading(&user.display_name),
                user.user_id
            );
            (body, user.expires_at)
        }
    };
    let end = end.0.format("%-d %B %Y, %H:%M UTC");
    let body = format!("{body}<dt>Open until</dt><dd>{end}</dd></dl>");
    let download = match card {
        ShareCard::File(file) => format!(
            "<a href=\"{}\" rel=\"noreferrer\" download>Download the encrypted file</a>",
            escaped(&file.url)
        ),
        ShareCard::Agent(_) | ShareCard::Contact(_) => String::new(),
    };
    page(StatusCode::OK, &(body + &download))
}

fn file(file: &FileCard) -> String {
    format!(
        "{}<p>The file is encrypted. An app with its key, which is a part of the link that you have, can open it.</p>\
         <dl><dt>Size</dt><dd>{}</dd><dt>SHA-256</dt><dd><code>{}</code></dd>",
        heading(&file.filename.0),
        in_words(file.size),
        file.sha256,
    )
}

/// A name as a heading. Its writing direction does not reach beyond it.
fn heading(name: &str) -> String {
    format!("<h1><bdi>{}</bdi></h1>", escaped(name))
}

/// A size for people, such as `1.5 MB`.
fn in_words(bytes: u64) -> String {
    let units = [(1 << 20, "MB"), (1 << 10, "KB")];
    let unit = units.into_iter().find(|(size, _)| bytes >= *size);
    let Some((size, unit)) = unit else {
        return format!("{bytes} bytes");
    };
    let tenths = bytes * 10 / size;
    format!("{}.{} {unit} ({bytes} bytes)", tenths / 10, tenths % 10)
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
    fn a_size_is_shown_in_its_unit() {
        for (bytes, words) in [
            (0, "0 bytes"),
            (1023, "1023 bytes"),
            (1024, "1.0 KB (1024 bytes)"),
            ((3 << 20) - 1, "2.9 MB (3145727 bytes)"),
            (100 << 20, "100.0 MB (104857600 bytes)"),
        ] {
            assert_eq!(in_words(bytes), words);
        }
    }

    #[test]
    fn a_name_is_text_and_not_markup() {
        assert_eq!(
            escaped("<b a=\"1\" c='2'>&"),
            "&lt;b a=&quot;1&quot; c=&#39;2&#39;&gt;&amp;"
        );
    }
}
