//! An S3 server that checks signatures, over a folder, in this process.

use std::{net::SocketAddr, path::PathBuf};

use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto,
};
use s3s::{auth::SimpleAuth, service::S3ServiceBuilder};
use s3s_fs::FileSystem;
use tokio::net::TcpListener;

use super::{services::spawn, ulid};

const ACCESS_KEY: &str = "blindpipe";
const SECRET: &str = "a secret of the tests";
const BUCKET: &str = "files";

pub struct S3Server {
    pub address: SocketAddr,
    folder: PathBuf,
    serving: tokio::task::JoinHandle<()>,
}

impl S3Server {
    pub async fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("blindpipe-s3-{}", ulid()));
        std::fs::create_dir_all(folder.join(BUCKET)).expect("a bucket");
        let mut builder = S3ServiceBuilder::new(FileSystem::new(&folder).expect("a folder"));
        builder.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET));
        let service = builder.build();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        let serving = spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a client");
                let service = service.clone();
                spawn(async move {
                    let builder = auto::Builder::new(TokioExecutor::new());
                    let serving = builder.serve_connection(TokioIo::new(stream), service);
                    serving.await.ok();
                });
            }
        });
        S3Server {
            address,
            folder,
            serving,
        }
    }

    /// The settings of a node that keeps its files here, behind `address`.
    pub fn settings(address: SocketAddr) -> Vec<(&'static str, String)> {
        vec![
            ("OBJECT_STORE_URL", format!("s3://{BUCKET}/some/where")),
            ("OBJECT_STORE_ENDPOINT", format!("http://{address}")),
            ("OBJECT_STORE_ACCESS_KEY", ACCESS_KEY.to_owned()),
            ("OBJECT_STORE_SECRET", SECRET.to_owned()),
        ]
    }

    /// The folder of the bucket.
    pub fn bucket(&self) -> PathBuf {
        self.folder.join(BUCKET)
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        self.serving.abort();
        std::fs::remove_dir_all(&self.folder).ok();
    }
}
