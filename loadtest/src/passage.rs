//! A way to a server of this machine that can be cut, so that the server is away for those who
//! took this way, and stays for others.

use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::{JoinHandle, JoinSet},
};

use crate::Result;

/// The way. It ends when this is dropped.
pub struct Passage {
    port: u16,
    task: JoinHandle<()>,
}

impl Passage {
    /// Opens a way to the server at `place`, which is `host:port`.
    pub async fn open(place: &str) -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let port = listener.local_addr()?.port();
        let place = place.to_owned();
        let task = tokio::spawn(async move {
            let mut links = JoinSet::new();
            while let Ok((mut near, _)) = listener.accept().await {
                let place = place.clone();
                links.spawn(async move {
                    if let Ok(mut far) = TcpStream::connect(place).await {
                        near.set_nodelay(true).ok();
                        far.set_nodelay(true).ok();
                        copy_bidirectional(&mut near, &mut far).await.ok();
                    }
                });
            }
        });
        Ok(Passage { port, task })
    }

    /// The address of the way, in place of the server's.
    pub fn place(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Ends all connections, and takes no more.
    pub fn cut(&self) {
        self.task.abort();
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        self.cut();
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_cut_ends_what_was_open_and_refuses_what_comes() {
        let server = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let place = server.local_addr().expect("an address").to_string();
        let passage = Passage::open(&place).await.expect("a way");
        let mut near = TcpStream::connect(passage.place()).await.expect("the way");
        near.write_all(b"x").await.expect("written");
        let (mut far, _) = server.accept().await.expect("a connection");
        assert_eq!(far.read_u8().await.expect("a byte"), b'x');
        passage.cut();
        assert_eq!(near.read(&mut [0]).await.unwrap_or(0), 0);
        assert!(TcpStream::connect(passage.place()).await.is_err());
    }
}
