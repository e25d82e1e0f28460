//! `GET /app`: the web app, as its build wrote it into `APP_DIR`. The setting is empty by default, and every path is
//! then a 404.
//!
//! The files are read when the node starts. Scripts have names that change with their content, so browsers keep them
//! for ever; the page itself is asked for each time, with an `ETag`. The policy lets the page run its own scripts and
//! nothing else.

use std::{collections::HashMap, fs, io, path::Path as FilePath, sync::Arc};

use axum::{
    extract::State,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode,
        header::{
            CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG, IF_NONE_MATCH,
            REFERRER_POLICY,
        },
    },
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::{
    error::{Code, Result},
    http::Path,
};

/// Most bytes of all files together; an app has some hundred kilobytes.
const MAX_APP_BYTES: u64 = 32 * 1024 * 1024;

/// Scripts come from here alone, and no text becomes markup or script. `wasm-unsafe-eval` is for Argon2, and the one
/// trusted type for the address of the service worker.
const POLICY: &str = "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
    img-src 'self' blob:; connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; \
    frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types blindpipe-worker";

const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// The files of the app; clones share them.
#[derive(Clone, Default)]
pub struct WebApp(Arc<HashMap<String, File>>);

struct File {
    bytes: Bytes,
    content_type: &'static str,
    etag: HeaderValue,
    is_immutable: bool,
}

impl WebApp {
    /// Reads the files below `folder`: `index.html`, further files beside it, and those of `assets`. An empty name makes
    /// an app without files.
    ///
    /// # Errors
    ///
    /// The folder has no `index.html`, cannot be read, or has more than [`MAX_APP_BYTES`].
    pub fn read(folder: &str) -> io::Result<Self> {
        if folder.is_empty() {
            return Ok(WebApp::default());
        }
        let mut files = HashMap::new();
        let mut left = MAX_APP_BYTES;
        for prefix in ["", "assets/"] {
            let folder = FilePath::new(folder).join(prefix);
            if folder.is_dir() {
                read_folder(&folder, prefix, &mut left, &mut files)?;
            }
        }
        if !files.contains_key("index.html") {
            return Err(io::Error::other("APP_DIR has no index.html"));
        }
        Ok(WebApp(Arc::new(files)))
    }

    fn answer(&self, name: &str, headers: &HeaderMap) -> Result<Response> {
        let file = self.0.get(name).ok_or(Code::NotFound)?;
        let cache = if file.is_immutable {
            IMMUTABLE
        } else {
            "no-cache"
        };
        let common = [
            (ETAG, file.etag.clone()),
            (CACHE_CONTROL, HeaderValue::from_static(cache)),
            (CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
            // The page is not below the worker's own path, so its scope has to be allowed.
            (
                HeaderName::from_static("service-worker-allowed"),
                HeaderValue::from_static("/app"),
            ),
            (REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                HeaderValue::from_static("same-origin"),
            ),
            (
                HeaderName::from_static("cross-origin-resource-policy"),
                HeaderValue::from_static("same-origin"),
            ),
        ];
        if headers.get(IF_NONE_MATCH) == Some(&file.etag) {
            return Ok((StatusCode::NOT_MODIFIED, common).into_response());
        }
        Ok((
            common,
            [(CONTENT_TYPE, file.content_type)],
            file.bytes.clone(),
        )
            .into_response())
    }
}

fn read_folder(
    folder: &FilePath,
    prefix: &str,
    left: &mut u64,
    files: &mut HashMap<String, File>,
) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let size = entry.metadata()?.len();
        if entry.file_type()?.is_dir() {
            continue;
        }
        *left = left
            .checked_sub(size)
            .ok_or_else(|| io::Error::other("APP_DIR has too many bytes"))?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        let file = File::new(&name, fs::read(entry.path())?.into());
        files.insert(name, file);
    }
    Ok(())
}

impl File {
    fn new(name: &str, bytes: Bytes) -> Self {
        let hash = Sha256::digest(&bytes);
        let digits = hash[..16].iter().map(|byte| format!("{byte:02x}"));
        let etag = format!("\"{}\"", digits.collect::<String>());
        File {
            bytes,
            content_type: content_type(name),
            etag: HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\"")),
            is_immutable: name.starts_with("assets/"),
        }
    }
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit('.').next().unwrap_or_default() {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript",
        "css" => "text/css",
        "json" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "wasm" => "application/wasm",
        _ => "application/octet-stream",
    }
}

/// `GET /app`: the page.
pub async fn page(State(app): State<WebApp>, headers: HeaderMap) -> Result<Response> {
    app.answer("index.html", &headers)
}

/// `GET /app/{asset}`: a file beside the page.
pub async fn file(
    State(app): State<WebApp>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response> {
    app.answer(&name, &headers)
}

/// `GET /app/assets/{asset}`: a script, a style or a picture whose name changes with its content.
pub async fn asset(
    State(app): State<WebApp>,
    Path(name): Path<String>,
    headers: HeaderMap,
) -> Result<Response> {
    app.answer(&format!("assets/{name}"), &headers)
}
