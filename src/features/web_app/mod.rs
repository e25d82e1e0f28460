//! `GET /app`: the web app, as its build wrote it into `APP_DIR`. The setting is empty by default, and every path is
//! then a 404.
//!
//! The files are read when the node starts. Scripts have names that change with their content, so browsers keep them
//! for ever; the page itself is asked for each time, with an `ETag`. Each file is compressed once. The policy lets the
//! page run its own scripts and nothing else.
//!
//! The human check runs a script of somebody else. So it has an origin of its own, `CHECK_ORIGIN`, which gives no other
//! file, and no other origin gives the check.

mod policy;

use std::{
    collections::HashMap,
    fs,
    io::{self, Write},
    path::Path as FilePath,
    sync::Arc,
};

use axum::{
    extract::State,
    http::{
        HeaderMap, HeaderName, HeaderValue, StatusCode, Uri,
        header::{
            ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY,
            CONTENT_TYPE, ETAG, HOST, IF_NONE_MATCH, REFERRER_POLICY, VARY,
        },
    },
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use flate2::{Compression, write::GzEncoder};
use secrecy::ExposeSecret;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::{
    config::{Config, Origin, Profile},
    error::{Code, Result},
    http::Path,
};
use policy::{Policies, app_origins};

/// Most bytes of all files together; an app has some hundred kilobytes.
const MAX_APP_BYTES: u64 = 32 * 1024 * 1024;

/// The page of the human check.
const CHECK_PAGE: &str = "check";
/// The page of the human check, and what it loads. Its origin has nothing else.
const CHECK_FILES: [&str; 3] = [CHECK_PAGE, "check.js", CHECK_SETTINGS];
/// What the app must know of the node.
const APP_SETTINGS: &str = "settings.json";
/// What the human check must know of the node.
const CHECK_SETTINGS: &str = "check.json";
const WIDGET_PAGE: &str = "widget.html";
/// The script that pages of others load.
const WIDGET_SCRIPT: &str = "widget.js";

const IMMUTABLE: &str = "public, max-age=31536000, immutable";

/// The files of the app; clones share them.
#[derive(Clone)]
pub struct WebApp(Arc<Site>);

struct Site {
    files: HashMap<String, File>,
    policies: Policies,
    /// Host and port of the human check's origin.
    check_host: Option<String>,
    /// Whether any page of others may show the widget.
    has_widget: bool,
}

struct File {
    plain: Variant,
    /// Only where it is smaller.
    gzip: Option<Variant>,
    content_type: &'static str,
    is_immutable: bool,
}

/// A file in an encoding. Each has an `ETag` of its own, because caches compare bytes.
struct Variant {
    bytes: Bytes,
    etag: HeaderValue,
}

/// Checks the settings, and adds a line per fault.
pub fn check_settings(config: &Config, faults: &mut Vec<String>) {
    let Some(origin) = config.check_origin.as_ref().map(Origin::text) else {
        return;
    };
    let passkeys = config.rp_origins.0.iter().map(Origin::text);
    let allowed = config.allowed_origins.0.iter().cloned();
    let mut trusted = allowed.chain(passkeys).chain([config.public_url.clone()]);
    if trusted.any(|trusted| trusted == origin) {
        faults.push(
            "CHECK_ORIGIN: must be neither PUBLIC_URL nor in ALLOWED_ORIGINS or RP_ORIGIN, because \
             a foreign script runs there"
                .into(),
        );
    }
    let is_checked = !config.turnstile_secret.expose_secret().is_empty();
    if is_checked && config.turnstile_site_key.is_empty() {
        faults.push("TURNSTILE_SITE_KEY: required with CHECK_ORIGIN".into());
    }
}

impl WebApp {
    /// Reads the files below `APP_DIR`: `index.html`, further files beside it, and those of `assets`. An empty name makes
    /// an app without files.
    ///
    /// # Errors
    ///
    /// The folder has no `index.html`, cannot be read, or has more than [`MAX_APP_BYTES`].
    pub fn read(config: &Config) -> io::Result<Self> {
        let mut files = HashMap::new();
        if !config.app_dir.is_empty() {
            read_files(&config.app_dir, &mut files)?;
            files.insert(APP_SETTINGS.to_owned(), app_settings(config));
            files.insert(CHECK_SETTINGS.to_owned(), check_settings_file(config));
        }
        let check_origin = config.check_origin.as_ref().map(Origin::text);
        let check_host = check_origin.map(|origin| origin.replace("https://", ""));
        Ok(WebApp(Arc::new(Site {
            files,
            policies: Policies::new(config),
            check_host,
            has_widget: !config.widget_origins.0.is_empty(),
        })))
    }

    fn answer(&self, name: &str, uri: &Uri, headers: &HeaderMap) -> Result<Response> {
        let is_check = self.is_for_check(uri, headers);
        let file = self.file(name, is_check).ok_or(Code::NotFound)?;
        let cache = if file.is_immutable {
            IMMUTABLE
        } else {
            "no-cache"
        };
        let gzip = file.gzip.as_ref().filter(|_| takes_gzip(headers));
        let variant = gzip.unwrap_or(&file.plain);
        let common = [
            (ETAG, variant.etag.clone()),
            (VARY, HeaderValue::from_static("accept-encoding")),
            (CACHE_CONTROL, HeaderValue::from_static(cache)),
            (CONTENT_SECURITY_POLICY, self.policy(name, is_check)),
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
                HeaderValue::from_static(self.readers(name)),
            ),
        ];
        if headers.get(IF_NONE_MATCH) == Some(&variant.etag) {
            return Ok((StatusCode::NOT_MODIFIED, common).into_response());
        }
        let encoding = gzip.map(|_| [(CONTENT_ENCODING, "gzip")]);
        let content_type = [(CONTENT_TYPE, file.content_type)];
        Ok((common, content_type, encoding, variant.bytes.clone()).into_response())
    }

    /// The app's own origin has the files of the check too, under the app's policy, so that all files can be compared with
    /// those of a release. It has neither the page nor its settings.
    fn file(&self, name: &str, is_check: bool) -> Option<&File> {
        let is_given = if is_check {
            CHECK_FILES.contains(&name)
        } else {
            name != CHECK_PAGE && name != CHECK_SETTINGS
        };
        let stored = if name == CHECK_PAGE {
            "check.html"
        } else {
            name
        };
        self.0.files.get(stored).filter(|_| is_given)
    }

    /// Whether a request came to the origin of the human check.
    fn is_for_check(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        let named = uri.authority().map(|authority| authority.as_str());
        let host = named.or_else(|| headers.get(HOST)?.to_str().ok());
        let Some(check_host) = &self.0.check_host else {
            return false;
        };
        host.is_some_and(|host| host.eq_ignore_ascii_case(check_host))
    }

    fn policy(&self, name: &str, is_check: bool) -> HeaderValue {
        let Policies { app, widget, check } = &self.0.policies;
        let policy = match name {
            _ if is_check => check,
            WIDGET_PAGE => widget,
            _ => app,
        };
        policy.clone()
    }

    /// Whose pages may load a file.
    fn readers(&self, name: &str) -> &'static str {
        if name == WIDGET_SCRIPT && self.0.has_widget {
            "cross-origin"
        } else {
            "same-origin"
        }
    }
}

/// How the app proves that a person signs in: the origin of its frame, the stand-in of the dev profile, or nothing.
fn app_settings(config: &Config) -> File {
    let frame = config.check_origin.as_ref().map(Origin::text);
    let stand_in = has_stand_in(config).then(|| "stand-in".to_owned());
    let human_check = frame.or(stand_in);
    File::new(
        APP_SETTINGS,
        json!({ "human_check": human_check }).to_string().into(),
    )
}

/// The site's key and the origins that get the proof.
fn check_settings_file(config: &Config) -> File {
    let settings = json!({
        "site_key": config.turnstile_site_key,
        "stand_in": has_stand_in(config),
        "app_origins": app_origins(config),
    });
    File::new(CHECK_SETTINGS, settings.to_string().into())
}

fn has_stand_in(config: &Config) -> bool {
    config.profile == Profile::Dev && config.turnstile_secret.expose_secret().is_empty()
}

fn read_files(folder: &str, files: &mut HashMap<String, File>) -> io::Result<()> {
    let mut left = MAX_APP_BYTES;
    for prefix in ["", "assets/"] {
        let folder = FilePath::new(folder).join(prefix);
        if folder.is_dir() {
            read_folder(&folder, prefix, &mut left, files)?;
        }
    }
    if files.contains_key("index.html") {
        Ok(())
    } else {
        Err(io::Error::other("APP_DIR has no index.html"))
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
        let compressed = compressed(&bytes);
        let gzip = compressed.filter(|compressed| compressed.len() < bytes.len());
        File {
            gzip: gzip.map(Variant::new),
            plain: Variant::new(bytes),
            content_type: content_type(name),
            is_immutable: name.starts_with("assets/"),
        }
    }
}

impl Variant {
    fn new(bytes: Bytes) -> Self {
        let hash = Sha256::digest(&bytes);
        let etag = format!("\"{}\"", base16ct::lower::encode_string(&hash[..16]));
        Variant {
            bytes,
            etag: HeaderValue::from_str(&etag).unwrap_or(HeaderValue::from_static("\"\"")),
        }
    }
}

fn compressed(bytes: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(bytes).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

/// Whether a client names `gzip` and does not rule it out.
fn takes_gzip(headers: &HeaderMap) -> bool {
    let named = headers.get_all(ACCEPT_ENCODING).iter();
    let named = named.filter_map(|value| value.to_str().ok());
    named.flat_map(|all| all.split(',')).any(|one| {
        let (coding, weight) = one.split_once(';').unwrap_or((one, ""));
        let weight = weight.trim().strip_prefix("q=").unwrap_or("1");
        coding.trim().eq_ignore_ascii_case("gzip") && weight.parse::<f32>().is_ok_and(|it| it > 0.0)
    })
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
pub async fn page(State(app): State<WebApp>, uri: Uri, headers: HeaderMap) -> Result<Response> {
    app.answer("index.html", &uri, &headers)
}

/// `GET /app/{asset}`: a file beside the page.
pub async fn file(
    State(app): State<WebApp>,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    app.answer(&name, &uri, &headers)
}

/// `GET /app/assets/{asset}`: a script, a style or a picture whose name changes with its content.
pub async fn asset(
    State(app): State<WebApp>,
    Path(name): Path<String>,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Response> {
    app.answer(&format!("assets/{name}"), &uri, &headers)
}
