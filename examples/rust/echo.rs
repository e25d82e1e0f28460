//! The smallest agent: it repeats what it hears, encrypted end to end.
//!
//! Needs `BLINDPIPE_URL`, `BLINDPIPE_AGENT_ID`, `BLINDPIPE_TOKEN` and `BLINDPIPE_KEY`.

use blindpipe_client::{Agent, Result};

#[tokio::main]
async fn main() -> Result<()> {
    // Until SIGTERM; it finishes what it began.
    Agent::from_env()?
        .on_message(async |ctx| ctx.reply(format!("You said: {}", ctx.text())).await)
        .run()
        .await
}
