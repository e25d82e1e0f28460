//! Processes of one device, with one store.

use std::fs;

use blindpipe_client::{Client, FileStore, Result, testing::TestUser};
use serde_json::Value;

use crate::support::{cluster, direct, folder};

#[tokio::test]
async fn what_a_process_stores_leaves_the_session_that_another_has_renewed() -> Result<()> {
    let cluster = cluster().await;
    let path = folder().join("shared-store");
    fs::remove_file(&path).ok();
    let node = cluster.node(0)?;
    let builder = || {
        let store = FileStore::new(&path);
        Client::builder(node.clone())
            .device_id("shared")
            .store(store)
    };
    let cookie = || -> Value {
        let text = fs::read(&path).expect("a document");
        let document: Value = serde_json::from_slice(&text).expect("JSON");
        document["session"]["cookie"].clone()
    };
    let ada: TestUser = cluster.user_with("ada", builder()).await?;
    let first = cookie();
    let other = builder().resume().await?.expect("a session");
    let renewed = cookie();
    assert_ne!(renewed, first);
    let bob = cluster.user("bob").await?;
    direct(&ada, &bob).await.choose_clear()?;
    assert_eq!(cookie(), renewed);
    // Of many at once, none looks like a thief.
    for _ in 0..4 {
        let resumed = tokio::join!(builder().resume(), builder().resume(), builder().resume());
        assert!(resumed.0?.is_some() && resumed.1?.is_some() && resumed.2?.is_some());
    }
    other.profile().await?;
    ada.client.profile().await?;
    fs::remove_file(&path).ok();
    Ok(())
}
