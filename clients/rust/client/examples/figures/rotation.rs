//! A rotation for a group of 500 members.

use std::time::Instant;

use blindpipe_client::{Result, testing::DevCluster};

use crate::{members, report, scaled};

const MEMBERS: usize = 500;
const ROTATIONS: u32 = 3;

pub async fn measure(cluster: &DevCluster) -> Result<()> {
    let ada = cluster.user("ada").await?;
    let members = members::register(cluster, scaled(MEMBERS - 1)).await?;
    let count = members.len() + 1;
    let group = ada.client.open_group("large", members).await?;
    let start = Instant::now();
    group
        .send("the first send reads all keys and rotates")
        .await?;
    let first = start.elapsed();
    let start = Instant::now();
    for _ in 0..ROTATIONS {
        group.rotate().await?;
    }
    let each = start.elapsed() / ROTATIONS;
    report(&format!(
        "rotation for {count} members: {each:?}; with the reading of all keys: {first:?}"
    ));
    Ok(())
}
