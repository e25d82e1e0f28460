//! One of several processes of an agent, beside those in other languages: it answers each message, and
//! names itself. The folder of `SHARED_DIRECTORY` is theirs.

use std::{env, path::PathBuf};

use blindpipe_client::{Agent, Error, Result, SharedFolder};

#[tokio::main]
async fn main() -> Result<()> {
    let folder = env::var_os("SHARED_DIRECTORY").map(PathBuf::from);
    let folder = folder.ok_or(Error::Usage("SHARED_DIRECTORY is not set"))?;
    Agent::from_env()?
        .shared_store(SharedFolder::new(folder.join("state")))
        .shared()
        .on_message(async |ctx| {
            ctx.reply(format!("{}, by {}", ctx.text(), std::process::id()))
                .await
        })
        .run()
        .await
}
