//! `cluster.json`: where the running cluster is to be found, for load tests and any other client.

use std::{fs, path::PathBuf};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    node::Node,
    place::write_secret,
    services::Services,
    settings::{RP_ID, Settings},
    trouble::Result,
};

/// The file and what it says. It is there while the cluster is up, and only then.
#[derive(Debug)]
pub struct Published {
    file: PathBuf,
    content: Mutex<Value>,
}

impl Published {
    /// Nothing published; what an earlier run left is removed.
    pub fn nothing(file: PathBuf) -> Self {
        let published = Published {
            file,
            content: Mutex::default(),
        };
        published.forget();
        published
    }

    /// Writes the file: the nodes with their processes, and what a client needs to know.
    pub fn publish(
        &self,
        nodes: &[Node],
        pids: &[u32],
        services: &Services,
        settings: &Settings,
    ) -> Result<()> {
        let entries = nodes.iter().zip(pids).map(
            |(node, pid)| json!({ "base_url": node.base_url(), "admin_url": node.admin_url(), "pid": pid }),
        );
        let content = json!({
            "nodes": entries.collect::<Vec<_>>(),
            "ca_file": settings.certificates.ca,
            "mail_dir": settings.mails,
            "postgres_url": services.postgres.url(),
            "redis_url": services.redis.url(),
            "origin": nodes.first().map(Node::origin),
            "rp_id": RP_ID,
        });
        self.update(|published| *published = content)
    }

    /// Node number `n` (from 0) is another process now.
    pub fn moved(&self, n: usize, pid: u32) -> Result<()> {
        self.update(|published| published["nodes"][n]["pid"] = pid.into())
    }

    /// The process of node number `n` (from 0).
    pub fn pid(&self, n: usize) -> u64 {
        self.content.lock()["nodes"][n]["pid"]
            .as_u64()
            .unwrap_or_default()
    }

    /// Removes the file.
    pub fn forget(&self) {
        let _ = fs::remove_file(&self.file);
    }

    /// Changes the file as a whole: a reader never sees half of it.
    fn update(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut content = self.content.lock();
        change(&mut content);
        write_secret(&self.file, &format!("{content:#}\n"))
    }
}
