//! An outage of the service, as a command meets it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

use crate::support::cluster;

/// A way to a node of the cluster that can be cut, and what came meanwhile.
pub struct Way {
    pub url: String,
    cut: watch::Sender<bool>,
    refused: Arc<AtomicUsize>,
    _passing: JoinSet<()>,
}

impl Way {
    pub async fn open() -> Self {
        let node = cluster().await.node(0).expect("a node").url().to_owned();
        let port: u16 = node
            .rsplit(':')
            .next()
            .expect("a port")
            .parse()
            .expect("a port");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let own = listener.local_addr().expect("an address").port();
        let (cut, is_cut) = watch::channel(false);
        let refused = Arc::new(AtomicUsize::new(0));
        let count = refused.clone();
        let mut passing = JoinSet::new();
        passing.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut from, _)) = listener.accept().await {
                let mut is_cut = is_cut.clone();
                if *is_cut.borrow() {
                    count.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                connections.spawn(async move {
                    let mut to = TcpStream::connect(("127.0.0.1", port))
                        .await
                        .expect("a node");
                    tokio::select! {
                        _ = copy_bidirectional(&mut from, &mut to) => {}
                        _ = is_cut.wait_for(|is| *is) => {}
                    }
                });
            }
        });
        Self {
            url: format!("https://127.0.0.1:{own}"),
            cut,
            refused,
            _passing: passing,
        }
    }

    /// Cuts it, until more calls have failed than a client repeats by itself.
    pub async fn cut(&self) {
        self.cut.send(true).expect("a way");
        while self.refused.load(Ordering::Relaxed) < 8 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    pub fn mend(&self) {
        self.cut.send(false).expect("a way");
    }
}
