//! A connection to Redis without a client library.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::Result;

/// Connects and signs in. The address is `redis://[user]:password@host:port[/database]`.
pub async fn connect(url: &str) -> Result<TcpStream> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (credentials, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    let place = place.split('/').next().unwrap_or(place);
    let (user, password) = credentials.split_once(':').unwrap_or_default();
    let mut stream = TcpStream::connect(place).await?;
    stream.set_nodelay(true)?;
    if !password.is_empty() {
        let user = if user.is_empty() { "default" } else { user };
        stream
            .write_all(format!("AUTH {user} {password}\r\n").as_bytes())
            .await?;
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).await?;
        if answer != *b"+OK\r\n" {
            return Err("Redis does not let us in".into());
        }
    }
    Ok(stream)
}
