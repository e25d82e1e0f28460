//! `GET /docs`: the OpenAPI document as a page, drawn by Swagger UI out of `vendor/swagger-ui`.
//!
//! The page shares its address with the cookie of `/auth`. So it runs in a sandbox: its scripts have
//! an origin of their own, may connect to nothing and store nothing. The document comes as a script,
//! because a sandbox may not fetch it.
//!
//! Why: ADR 61.

use axum::{
    extract::State,
    http::header::{CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use bytes::Bytes;

use super::ServedOpenApi;
use crate::{
    error::{Code, Result},
    http::Path,
};

const POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'self'; \
    style-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const PAGE: &str = "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\">\
    <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
    <title>Blindpipe: the interface</title><link rel=\"icon\" href=\"data:,\">\
    <link rel=\"stylesheet\" href=\"/docs/swagger-ui.css\"></head>\
    <body><main id=\"interface\"></main>\
    <noscript><p>This page needs scripts. The document itself is at <a href=\"/openapi.json\">\
    /openapi.json</a>.</p></noscript>\
    <script src=\"/docs/swagger-ui-bundle.js\"></script>\
    <script src=\"/docs/openapi.js\"></script></body></html>";

/// Compressed already; every browser expands them.
const BUNDLE: &[u8] = include_bytes!("../../../vendor/swagger-ui/swagger-ui-bundle.js.gz");
const STYLE: &[u8] = include_bytes!("../../../vendor/swagger-ui/swagger-ui.css.gz");

/// The document in the call that draws it. The page sends no requests, so it asks for no tokens.
pub(super) fn drawing(document: &str) -> Bytes {
    let call = format!(
        "SwaggerUIBundle({{domNode:document.getElementById('interface'),supportedSubmitMethods:[],\
         filter:true,validatorUrl:null,defaultModelsExpandDepth:0,spec:{document}}})"
    );
    call.into()
}

/// `GET /docs`: the page.
pub async fn page() -> Response {
    let headers = [
        (CONTENT_TYPE, "text/html; charset=utf-8"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (CACHE_CONTROL, "public, max-age=300"),
    ];
    (headers, PAGE).into_response()
}

/// `GET /docs/{asset}`: what the page loads.
pub async fn asset(
    State(served): State<ServedOpenApi>,
    Path(name): Path<String>,
) -> Result<Response> {
    let (kind, bytes, is_compressed) = match name.as_str() {
        "swagger-ui-bundle.js" => ("text/javascript", Bytes::from_static(BUNDLE), true),
        "swagger-ui.css" => ("text/css", Bytes::from_static(STYLE), true),
        "openapi.js" => ("text/javascript", served.drawing, false),
        _ => return Err(Code::NotFound.into()),
    };
    let headers = [(CONTENT_TYPE, kind), (CACHE_CONTROL, "public, max-age=300")];
    let encoding = is_compressed.then_some([(CONTENT_ENCODING, "gzip")]);
    Ok((headers, encoding, bytes).into_response())
}
