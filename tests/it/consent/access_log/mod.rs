//! The access log: which reads have rows, who sees them, and that nobody changes them unnoticed.

mod chain;
mod published;
mod reads;

use std::time::Duration;

use serde_json::Value;
use uuid::Uuid;

use crate::support::User;

pub async fn log(user: &User, query: &str) -> Vec<Value> {
    let list = user
        .get(format!("/grants/access-log?{query}"))
        .await
        .expect(200);
    list.body["data"].as_array().expect("a list").clone()
}

/// Waits until the newest row of the user's is of this kind.
pub async fn newest(user: &User, kind: &str) -> Value {
    for _ in 0..200 {
        if let Some(row) = log(user, "limit=1")
            .await
            .pop()
            .filter(|row| row["kind"] == *kind)
        {
            return row;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("no row of {kind}: {:?}", log(user, "").await);
}

pub fn uuid(id: &str) -> Uuid {
    id.parse::<ulid::Ulid>().expect("a ULID").into()
}
