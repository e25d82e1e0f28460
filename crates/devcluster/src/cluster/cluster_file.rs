//! `cluster.json`: the addresses of the running cluster, for load tests and other clients.

use std::{fs, path::PathBuf};

use parking_lot::Mutex;
use serde_json::{Value, json};

use super::{
    node::Node,
    settings::{RP_ID, Settings},
};
use crate::{error::Result, files::write_secret, services::Services};

/// The file, which exists only while the cluster is up.
#[derive(Debug)]
pub struct ClusterFile {
    path: PathBuf,
    content: Mutex<Value>,
}

impl ClusterFile {
    /// Removes the file of an earlier run.
    pub fn new(path: PathBuf) -> Self {
        let file = ClusterFile {
            path,
            content: Mutex::default(),
        };
        file.remove();
        file
    }

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
            "erase_url": services.postgres.erasing_url(),
            "redis_url": services.redis.url(),
            "origin": nodes.first().map(Node::origin),
            "rp_id": RP_ID,
        });
        self.update(|published| *published = content)
    }

    /// Sets the process of node number `n` (from 0).
    pub fn set_pid(&self, n: usize, pid: u32) -> Result<()> {
        self.update(|published| published["nodes"][n]["pid"] = pid.into())
    }

    /// The process of node number `n` (from 0).
    pub fn pid(&self, n: usize) -> u64 {
        self.content.lock()["nodes"][n]["pid"]
            .as_u64()
            .unwrap_or_default()
    }

    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
    }

    /// Replaces the file as a whole: a reader never sees half of it.
    fn update(&self, change: impl FnOnce(&mut Value)) -> Result<()> {
        let mut content = self.content.lock();
        change(&mut content);
        write_secret(&self.path, &format!("{content:#}\n"))
    }
}
