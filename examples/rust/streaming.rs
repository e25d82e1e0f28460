//! An agent that shows its answer while it writes it. The end is one durable, signed message.
//!
//! Needs `BLINDPIPE_URL`, `BLINDPIPE_AGENT_ID`, `BLINDPIPE_TOKEN` and `BLINDPIPE_KEY`.

use std::time::Duration;

use blindpipe_client::{Agent, Context, Result};

/// Stands for a language model: words, one after the other.
fn model(question: &str) -> Vec<String> {
    let answer = format!("You asked: {question} The answer is forty-two.");
    answer.split_inclusive(' ').map(str::to_owned).collect()
}

async fn answer(ctx: Context) -> Result<()> {
    // A restarted process asks the history first, since a model costs money.
    if ctx.replayed() && ctx.is_answered().await? {
        return Ok(());
    }
    let mut out = ctx.stream()?;
    for word in model(ctx.text()) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        out.write(&word).await;
    }
    out.end().await?;
    Ok(())
}

#[tokio::main]
async fn main() -> Result<()> {
    Agent::from_env()?.on_message(answer).run().await
}
