//! `bp register`, `login`, `logout`, `whoami` and `limits`.

use std::path::{Path, PathBuf};

use blindpipe_client::{
    Client, Error, client::Registration, protocol::accounts::Scene, testing::DevCluster,
};
use clap::Args;
use serde_json::json;

use super::context::dev_settings;
use crate::{
    cli::Global,
    context::{Context, Contexts},
    failure::{Failure, Result},
    files::write_private,
    human::HumanCheck,
    output::{Output, line},
    prompt,
};

#[derive(Args)]
pub struct Secrets {
    /// A file with the account's password; `-` is standard input. Without it, it is asked.
    #[arg(long, value_name = "FILE", env = "BP_PASSWORD_FILE")]
    password_file: Option<PathBuf>,
    /// A file with the protection password of the keys, which the service never sees.
    #[arg(long, value_name = "FILE", env = "BP_PROTECTION_PASSWORD_FILE")]
    protection_password_file: Option<PathBuf>,
}

#[derive(Args)]
pub struct Login {
    /// The account's address; asked without it.
    #[arg(long)]
    email: Option<String>,
    /// Have a code mailed in place of the account's password.
    #[arg(long)]
    code: bool,
    #[command(flatten)]
    secrets: Secrets,
    #[command(flatten)]
    human: HumanCheck,
}

#[derive(Args)]
pub struct Register {
    /// The account's address; asked without it.
    #[arg(long)]
    email: Option<String>,
    /// The name that others see; asked without it.
    #[arg(long)]
    name: Option<String>,
    /// The folder of a development cluster: a person is made up, with a context called `dev`.
    #[arg(long, value_name = "FOLDER")]
    dev: Option<PathBuf>,
    #[command(flatten)]
    secrets: Secrets,
    #[command(flatten)]
    human: HumanCheck,
}

fn asked(given: Option<String>, question: &str) -> Result<String> {
    given.map_or_else(|| prompt::line(question), Ok)
}

pub async fn register(command: Register, global: &Global, output: &Output) -> Result<()> {
    if let Some(folder) = &command.dev {
        let settings = dev_settings(folder)?;
        let name = global.context.clone().unwrap_or_else(|| "dev".to_owned());
        let at = Contexts::change(|contexts| contexts.add_and_use(&name, settings))?;
        return register_made_up(&at, command.name, output).await;
    }
    let at = Context::of(global)?;
    let email = asked(command.email, "Address")?;
    let builder = at.builder()?;
    let token = command.human.token(&at, output).await?;
    builder.send_code(&email, Scene::Register, &token).await?;
    output.note("A code was mailed.");
    let code = prompt::line("Code")?;
    let password = match &command.secrets.password_file {
        Some(file) => prompt::secret_from(file)?,
        None => prompt::new_secret("Password of the account")?,
    };
    let new = Registration {
        email,
        code,
        password,
        display_name: asked(command.name, "Name that others see")?,
        turnstile_token: command.human.token(&at, output).await?,
    };
    let client = Box::pin(builder.register(new)).await?;
    make_keys(&client, &command.secrets, output).await?;
    tell(&client, output).await
}

/// A person on a development cluster. The passwords stand beside the session.
async fn register_made_up(at: &Context, name: Option<String>, output: &Output) -> Result<()> {
    let folder = at
        .settings
        .dev
        .as_deref()
        .unwrap_or_else(|| ".dev".as_ref());
    let cluster = DevCluster::start(folder, "devcluster".as_ref(), None, &[]).await?;
    let name = name.unwrap_or_else(|| "person".to_owned());
    // The agents of the person before are nobody's here.
    at.forget_all()?;
    let user = Box::pin(cluster.user_with(&name, at.builder()?)).await?;
    let lines = format!(
        "PERSON_EMAIL={}\nPERSON_PASSWORD={}\nPERSON_PROTECTION_PASSWORD='{}'\n",
        user.email,
        user.password,
        blindpipe_client::testing::PROTECTION_PASSWORD
    );
    let file = at.folder()?.join("person.env");
    write_private(&file, lines.as_bytes())?;
    output.note(&format!("the passwords are in {}", file.display()));
    tell(&user.client, output).await
}

pub async fn login(command: Login, at: &Context, output: &Output) -> Result<()> {
    let email = asked(command.email, "Address")?;
    let builder = at.builder()?;
    let client = if command.code {
        let token = command.human.token(at, output).await?;
        builder.send_code(&email, Scene::Login, &token).await?;
        output.note("If there is such an account, a code was mailed.");
        Box::pin(builder.login_with_code(&email, &prompt::line("Code")?)).await?
    } else {
        let password = command.secrets.password_file.as_deref();
        let password = prompt::secret_of(password, "Password of the account")?;
        let token = command.human.token(at, output).await?;
        Box::pin(builder.login(&email, &password, &token)).await?
    };
    if !client.has_keys() {
        let has_backup = client.key_backup()?.is_some_and(|backup| backup.exists);
        if has_backup {
            let file = command.secrets.protection_password_file.as_deref();
            restore_keys(&client, file, output).await?;
        } else {
            make_keys(&client, &command.secrets, output).await?;
        }
    }
    tell(&client, output).await
}

/// Gives this device keys of its own, and backs them up.
async fn make_keys(client: &Client, secrets: &Secrets, output: &Output) -> Result<()> {
    let file = secrets.protection_password_file.as_deref();
    let password = new_protection_password(file, output)?;
    let made = client.devices().create(&password).await;
    made.map_err(|error| unfit_password(error).remedy("`bp keys backup`"))
}

/// A new protection password, from a file or asked twice.
pub fn new_protection_password(file: Option<&Path>, output: &Output) -> Result<String> {
    if let Some(file) = file {
        return prompt::secret_from(file);
    }
    output.note(
        "The protection password encrypts the backup of this device's keys. The service never \
         sees it. 12 characters or more, and not the account's password.",
    );
    prompt::new_secret("Protection password")
}

/// The message for a protection password that was refused.
pub fn unfit_password(error: Error) -> Failure {
    match error {
        Error::Decrypt(_) => Failure::usage(
            "a protection password has 12 characters or more, and is not the account's password",
        ),
        other => other.into(),
    }
}

pub async fn restore_keys(client: &Client, file: Option<&Path>, output: &Output) -> Result<()> {
    let password = prompt::secret_of(file, "Protection password")?;
    let restored = client.devices().restore(&password).await?;
    if restored.is_old {
        output.note("The backup is an old one: other people confirm this device's key.");
    }
    Ok(())
}

async fn tell(client: &Client, output: &Output) -> Result<()> {
    let me = client.profile().await?;
    let keys = client.key_id().ok().map(hex);
    let item = json!({
        "user_id": me.user_id,
        "email": me.email,
        "display_name": me.display_name,
        "device_id": me.device_id,
        "key_id": keys,
    });
    let text = format!(
        "{} <{}>\n  user {}\n  device {}\n  key {}",
        output.bold(&line(&me.display_name)),
        line(&me.email),
        me.user_id,
        line(&me.device_id),
        keys.as_deref().unwrap_or("none: `bp keys restore`"),
    );
    output.item(&item, &text)
}

/// A key's id as people compare it.
pub fn hex(id: blindpipe_client::e2ee::KeyId) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub async fn logout(at: &Context, output: &Output) -> Result<()> {
    // A session that has ended is no session to end.
    match at.client().await {
        Ok(client) => client.log_out().await?,
        Err(failure) if failure.exit() == crate::failure::Exit::NotLoggedIn => {}
        Err(failure) => return Err(failure),
    }
    at.forget()?;
    output.note("logged out; this device's keys are gone, their backup stays");
    Ok(())
}

pub async fn whoami(at: &Context, output: &Output) -> Result<()> {
    tell(&at.client().await?, output).await
}

pub async fn limits(at: &Context, output: &Output) -> Result<()> {
    let limits = at.client().await?.limits().await?;
    for bucket in &limits.data {
        let left = bucket
            .remaining
            .map_or_else(String::new, |left| format!(", {left} left"));
        let text = format!(
            "{:<34} {:<9} per {}{left}",
            bucket.scope, bucket.limit, bucket.per
        );
        output.item(bucket, &text)?;
    }
    let storage = limits.storage;
    let text = format!(
        "storage: {} of {} bytes",
        storage.used_bytes, storage.limit_bytes
    );
    output.item(&json!({ "storage": storage }), &text)
}
