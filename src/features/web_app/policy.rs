//! The headers that say what a page of the app may do, and who may show it in a frame.

use axum::http::HeaderValue;

use crate::config::{Config, Origin};

/// Whose script the human check runs. It comes from there alone, and runs on the check's own origin alone.
const CHECK_SCRIPTS: &str = "https://challenges.cloudflare.com";

/// The policies of the app's files.
pub(super) struct Policies {
    /// Nobody frames the app.
    pub(super) app: HeaderValue,
    /// The operator's list may frame the widget.
    pub(super) widget: HeaderValue,
    /// The app's own pages frame the check.
    pub(super) check: HeaderValue,
}

impl Policies {
    pub(super) fn new(config: &Config) -> Self {
        let check = config.check_origin.as_ref().map(Origin::text);
        let check = check.unwrap_or_else(|| "'none'".to_owned());
        let widget = sources(widget_origins(config));
        let app = sources(
            app_origins(config)
                .into_iter()
                .chain(widget_origins(config)),
        );
        Policies {
            app: value(app_policy(&check, "'none'")),
            widget: value(app_policy(&check, &widget)),
            check: value(check_policy(&app)),
        }
    }
}

/// Scripts come from the own address alone, and no text becomes markup or script. `wasm-unsafe-eval` is for Argon2, and
/// the one trusted type for the address of the service worker.
fn app_policy(check: &str, ancestors: &str) -> String {
    format!(
        "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; \
         img-src 'self' blob:; connect-src 'self'; manifest-src 'self'; frame-src {check}; \
         base-uri 'none'; form-action 'none'; frame-ancestors {ancestors}; \
         require-trusted-types-for 'script'; trusted-types blindpipe-worker"
    )
}

/// A foreign script runs here, so the page has an origin that keeps nothing.
fn check_policy(ancestors: &str) -> String {
    format!(
        "default-src 'none'; script-src 'self' {CHECK_SCRIPTS}; frame-src {CHECK_SCRIPTS}; \
         style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; \
         frame-ancestors {ancestors}"
    )
}

/// The origins of pages that may be the app: those that may sign in.
pub(super) fn app_origins(config: &Config) -> Vec<String> {
    let origins = config.allowed_origins.0.iter();
    // Text that is no origin would change the policy.
    origins
        .filter_map(|text| text.parse::<Origin>().ok())
        .map(|origin| origin.text())
        .collect()
}

fn widget_origins(config: &Config) -> impl Iterator<Item = String> {
    config.widget_origins.0.iter().map(Origin::text)
}

fn sources(origins: impl IntoIterator<Item = String>) -> String {
    let all = origins.into_iter().collect::<Vec<_>>().join(" ");
    if all.is_empty() {
        "'none'".to_owned()
    } else {
        all
    }
}

/// Origins are printable ASCII, so each policy is a header. What is none would allow nothing.
fn value(policy: String) -> HeaderValue {
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}
