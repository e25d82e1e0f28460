use std::{fs, io::Write, os::unix::fs::OpenOptionsExt, path::Path};

use blindpipe_protocol::conversations::Conversation;
use futures_util::{StreamExt, TryStreamExt, stream};
use secrecy::ExposeSecret;
use serde::Serialize;

use super::{POOL_SIZE, Release, prefix};
use crate::{
    auth::{
        agent::NewToken,
        revoked::RevokedCredentials,
        user::{User, UserToken},
    },
    clock::Clock,
    error::Error,
    features::{
        accounts,
        agents::{self, MadeAgent},
        conversations,
        devices::{self, NewSession},
    },
    ids::{AgentId, SessionId, UserId},
    node::Failure,
    validation::Email,
};

/// An entry of the file, as `loadtest --accounts` reads it.
#[derive(Serialize)]
struct Account {
    refresh_cookie: String,
    agent_id: String,
    agent_token: String,
    conversation_id: String,
}

fn said(error: Error) -> Failure {
    format!("{error:?}").into()
}

/// Makes the accounts, and writes the file.
pub(super) async fn make(
    release: &Release,
    name: &str,
    count: u32,
    file: &Path,
) -> Result<String, Failure> {
    let prefix = prefix(name);
    let there = accounts::load_accounts(release.work.db(), &prefix).await;
    if !there.map_err(said)?.is_empty() {
        let advice = "remove them with --remove, or choose another --name";
        return Err(format!("accounts with the name {name} exist: {advice}").into());
    }
    let mut target = fs::OpenOptions::new()
        .create_new(true)
        .write(true)
        .mode(0o600)
        .open(file)
        .map_err(|error| format!("{}: {error}", file.display()))?;
    let made: Result<Vec<Account>, Failure> = stream::iter(1..=count)
        .map(|n| pair(release, &prefix, n))
        .buffered(POOL_SIZE)
        .try_collect()
        .await;
    let written = made.and_then(|made| Ok(target.write_all(&serde_json::to_vec_pretty(&made)?)?));
    if let Err(failure) = written {
        fs::remove_file(file).ok();
        return Err(format!("{failure}; --remove takes what was made so far").into());
    }
    Ok(format!("{count} accounts are in {}\n", file.display()))
}

/// Makes a signed-in user, an agent and their conversation. No mail is sent.
async fn pair(release: &Release, prefix: &str, n: u32) -> Result<Account, Failure> {
    let (work, user) = (&release.work, UserId::generate(release.work.random()));
    let email: Email = format!("{prefix}{n}@loadtest.invalid").parse()?;
    let session = NewSession {
        id: SessionId::generate(work.random()),
        device_id: "loadtest".to_owned(),
        provisional: false,
        device_name: None,
        platform: None,
        cookie: None,
        passkey: None,
    };
    let signed_in = work.run("load_accounts.sign_in", async |tx| {
        // No password has an empty hash.
        accounts::create_user(tx, user, &email, "Load test", "en-GB", "").await?;
        devices::sign_in(tx, user, &session).await
    });
    signed_in.await.map_err(said)?;
    let token = UserToken {
        user,
        session: session.id,
        expires_at: Clock::default().now(),
    };
    let revoked = RevokedCredentials::default();
    let user = token.check_live(work.db(), &revoked).await.map_err(said)?;
    let (agent, token, conversation) = agent_of(release, &user).await.map_err(said)?;
    let cookie = release.refresh_tokens.cookie(session.id, 0);
    let cookie = cookie.to_str()?.split(';').next().unwrap_or_default();
    Ok(Account {
        refresh_cookie: cookie.to_owned(),
        agent_id: agent.to_string(),
        agent_token: token.token.expose_secret().to_owned(),
        conversation_id: conversation.conversation_id.to_string(),
    })
}

async fn agent_of(
    release: &Release,
    owner: &User,
) -> Result<(AgentId, NewToken, Conversation), Error> {
    let id = AgentId::generate(release.work.random());
    let token = NewToken::generate(release.work.random());
    let text = token.token.expose_secret().to_owned();
    let hash = release.hasher.hash_token(text).await?;
    let opened = release.work.run("load_accounts.open", async |tx| {
        let made = MadeAgent {
            id,
            display_name: "Load test",
            token: &token,
            hash: &hash,
        };
        agents::make(tx, owner, &made).await?;
        conversations::open_agent(tx, owner, id).await
    });
    let conversation = opened.await?.conversation;
    Ok((id, token, conversation))
}
