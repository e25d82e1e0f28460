//! `bp api`: any route, with the session's token.

use std::{
    fs,
    io::{Read, Write, stdin, stdout},
};

use clap::Args;
use serde_json::Value;

use crate::{
    context::Context,
    failure::{Failure, Result},
    output::Output,
};

#[derive(Args)]
pub struct Api {
    /// GET, POST, PUT, PATCH or DELETE.
    method: String,
    /// The path, with a query if there is one: `/conversations?limit=5`.
    path: String,
    /// The body: JSON, `@FILE`, or `-` for standard input.
    #[arg(long, short, value_name = "JSON|@FILE|-")]
    data: Option<String>,
}

pub async fn run(api: Api, at: &Context, output: &Output) -> Result<()> {
    let body = api.data.as_deref().map(body_of).transpose()?;
    let client = at.client().await?;
    let answer = client.request(&api.method, &api.path, body).await?;
    match serde_json::from_slice::<Value>(&answer) {
        Ok(json) if output.is_json() => output.raw(&json.to_string()),
        Ok(json) => output.raw(&serde_json::to_string_pretty(&json)?),
        Err(_) => Ok(stdout().lock().write_all(&answer)?),
    }
}

fn body_of(data: &str) -> Result<Vec<u8>> {
    let bytes = match data.strip_prefix('@') {
        Some(file) => fs::read(file).map_err(|error| Failure::usage(format!("{file}: {error}")))?,
        None if data == "-" => {
            let mut bytes = Vec::new();
            stdin().lock().read_to_end(&mut bytes)?;
            bytes
        }
        None => data.as_bytes().to_owned(),
    };
    let parsed = serde_json::from_slice::<Value>(&bytes);
    parsed.map_err(|error| Failure::usage(format!("the body is no JSON: {error}")))?;
    Ok(bytes)
}
