//! `bp app verify`: whether a service gives out the web app of a release, byte for byte.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use blindpipe_client::Server;
use clap::{Args, Subcommand};
use reqwest::{
    Client, Response, Url,
    header::{CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderMap, HeaderName, REFRESH},
};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{
    cli::Global,
    context::Context,
    failure::{Exit, Failure, Result},
    output::{Output, plain},
};

/// The page of the app, which a service has at the address of the app itself.
const PAGE: &str = "index.html";
const TIMEOUT: Duration = Duration::from_secs(30);
/// The most that a node serves as a whole.
const MAX_FILE_BYTES: usize = 32 << 20;

#[derive(Subcommand)]
pub enum App {
    /// Compare the app that a service gives out with the checksums of a release.
    Verify(Verify),
}

#[derive(Args)]
pub struct Verify {
    /// The address of the service, or of its app.
    #[arg(value_name = "URL")]
    address: String,
    /// The checksums of the release's app; without it, `app/SHA256SUMS` beside this program.
    #[arg(long, value_name = "FILE")]
    sums: Option<PathBuf>,
}

/// A file of the app.
#[derive(Serialize)]
struct Finding {
    file: String,
    ok: bool,
    found: String,
}

/// A file of the release.
struct Expected {
    file: String,
    sum: String,
}

pub async fn run(app: App, global: &Global, output: &Output) -> Result<ExitCode> {
    let App::Verify(verify) = app;
    let expected = read(&verify.sums.map_or_else(beside_program, Ok)?)?;
    let base = address(&verify.address)?;
    let http = client(&base, global)?;
    let mut differs = 0;
    for each in &expected {
        let finding = examine(&http, &base, each).await?;
        differs += u32::from(!finding.ok);
        let mark = if finding.ok {
            output.green("ok   ")
        } else {
            output.red("FAULT")
        };
        output.item(
            &finding,
            &format!("{mark} {}: {}", finding.file, finding.found),
        )?;
    }
    let count = expected.len();
    if differs == 0 {
        output.note(&format!(
            "All {count} files are those of the release, as this machine was given them now."
        ));
        return Ok(ExitCode::SUCCESS);
    }
    output.note(&format!("{differs} of {count} files differ."));
    Ok(Exit::Failed.into())
}

/// A release has the app in the folder of its programs.
fn beside_program() -> Result<PathBuf> {
    let file = env::current_exe()?.with_file_name("app").join("SHA256SUMS");
    if file.exists() {
        return Ok(file);
    }
    Err(Failure::usage("no release is beside this program")
        .remedy("--sums with the SHA256SUMS of the release's app"))
}

/// Lines as `sha256sum` writes them.
fn read(file: &Path) -> Result<Vec<Expected>> {
    let fault = |why: &str| Failure::usage(format!("{}: {why}", file.display()));
    let text = fs::read_to_string(file).map_err(|error| fault(&error.to_string()))?;
    let parse = |line: &str| {
        let (sum, name) = line.split_once("  ")?;
        let is_sum = sum.len() == 64 && sum.bytes().all(|it| it.is_ascii_hexdigit());
        let is_part = |part: &str| !part.is_empty() && !part.starts_with('.');
        let is_name = name.split('/').all(is_part) && name.is_ascii();
        (is_sum && is_name).then(|| Expected {
            file: name.to_owned(),
            sum: sum.to_ascii_lowercase(),
        })
    };
    let all: Option<Vec<_>> = text.lines().map(parse).collect();
    let all = all.ok_or_else(|| fault("no list of SHA-256 checksums"))?;
    if all.iter().any(|each| each.file == PAGE) {
        Ok(all)
    } else {
        Err(fault("the list has no index.html"))
    }
}

/// The address of the app.
fn address(text: &str) -> Result<Url> {
    let fault = |_| Failure::usage(format!("{text:?} is no address"));
    let mut url = Url::parse(text).map_err(fault)?;
    let path = url.path().trim_end_matches('/').to_owned();
    let path = if path.ends_with("/app") {
        path
    } else {
        path + "/app"
    };
    url.set_path(&path);
    url.set_query(None);
    url.set_fragment(None);
    Ok(url)
}

/// The current context's authority serves for its own service.
fn client(base: &Url, global: &Global) -> Result<Client> {
    let is_same =
        |at: &Context| Url::parse(&at.settings.url).is_ok_and(|url| url.origin() == base.origin());
    if let Some(at) = Context::find(global)?.filter(is_same) {
        return Ok(at.server()?.http_client()?);
    }
    let mut server = Server::new(base.origin().ascii_serialization());
    if let Some(file) = &global.ca_file {
        let fault = |error| Failure::usage(format!("{}: {error}", file.display()));
        server = server.with_authority(fs::read(file).map_err(fault)?);
    }
    Ok(server.http_client()?)
}

fn away(error: reqwest::Error) -> Failure {
    let text = format!("the service does not answer: {}", error.without_url());
    Failure::new(Exit::Unreachable, plain(&text))
}

/// Fetches a file as a browser would, and compares it.
async fn examine(http: &Client, base: &Url, expected: &Expected) -> Result<Finding> {
    let mut url = base.clone();
    if expected.file != PAGE {
        url.set_path(&format!("{}/{}", base.path(), expected.file));
    }
    let answer = http.get(url).timeout(TIMEOUT).send().await.map_err(away)?;
    let fault = fault_of(answer, expected).await?;
    Ok(Finding {
        file: expected.file.clone(),
        ok: fault.is_none(),
        found: fault.unwrap_or_else(|| "as in the release".to_owned()),
    })
}

async fn fault_of(answer: Response, expected: &Expected) -> Result<Option<String>> {
    let status = answer.status();
    if status != 200 {
        return Ok(Some(format!("answered with {}", status.as_u16())));
    }
    if let Some(fault) = fault_of_headers(answer.headers(), expected.file == PAGE) {
        return Ok(Some(fault));
    }
    let Some(sum) = sum_of(answer).await? else {
        return Ok(Some("larger than any app".to_owned()));
    };
    Ok((sum != expected.sum).then(|| format!("another file: SHA-256 {sum}")))
}

async fn sum_of(mut answer: Response) -> Result<Option<String>> {
    let (mut hash, mut length) = (Sha256::new(), 0);
    while let Some(piece) = answer.chunk().await.map_err(away)? {
        length += piece.len();
        if length > MAX_FILE_BYTES {
            return Ok(None);
        }
        hash.update(&piece);
    }
    let digits = hash
        .finalize()
        .iter()
        .map(|it| format!("{it:02x}"))
        .collect();
    Ok(Some(digits))
}

/// A header can make another page of the same bytes, or lead away from them.
fn fault_of_headers(headers: &HeaderMap, is_page: bool) -> Option<String> {
    if headers.contains_key(REFRESH) {
        return Some("leads to another page".to_owned());
    }
    if !is_page {
        return None;
    }
    let text = |name: HeaderName| {
        let values = headers.get_all(name).iter();
        let texts = values.filter_map(|it| it.to_str().ok());
        texts.collect::<Vec<_>>().join(", ")
    };
    let policy = text(CONTENT_SECURITY_POLICY);
    let is_strict = policy.contains("default-src 'none'")
        && policy.contains("require-trusted-types-for 'script'")
        && !policy.contains("'unsafe-inline'")
        && !policy.contains("'unsafe-eval'");
    if !is_strict {
        return Some("served without the policy".to_owned());
    }
    let is_html = text(CONTENT_TYPE).starts_with("text/html");
    (!is_html).then(|| "served as something else than a page".to_owned())
}
