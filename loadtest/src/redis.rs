//! A connection to Redis without a client library.

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::Result;

/// `host:port` of an address, and the address with another place.
pub fn place(url: &str) -> (&str, impl Fn(&str) -> String) {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let place = rest.rsplit_once('@').map_or(rest, |(_, place)| place);
    let place = place.split('/').next().unwrap_or(place);
    let with = move |other: &str| url.replace(place, other);
    (place, with)
}

/// Connects and signs in. The address is `redis://[user]:password@host:port[/database]`.
pub async fn connect(url: &str) -> Result<TcpStream> {
    let (place, _) = place(url);
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (credentials, _) = rest.rsplit_once('@').unwrap_or_default();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_an_address_can_be_another() {
        let (here, with) = place("redis://user:secret@127.0.0.1:6379/1");
        assert_eq!(here, "127.0.0.1:6379");
        assert_eq!(
            with("127.0.0.1:7000"),
            "redis://user:secret@127.0.0.1:7000/1"
        );
        assert_eq!(place("redis://localhost:6379").0, "localhost:6379");
    }
}
