//! Everything that a server keeps or says: tables, Redis, objects, logs, metrics, webhooks, mails.

use std::{path::Path, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};
use tokio_util::task::AbortOnDropHandle;

use crate::support::{connect, spawn};

/// A place and its bytes.
pub type Haystack = (String, Vec<u8>);

/// All columns of all tables: as text, and binary columns also as bytes.
pub async fn tables(url: &str) -> Vec<Haystack> {
    let client = connect(url).await;
    let names = "select c.oid::regclass::text as name, array(
            select quote_ident(attname) from pg_attribute
            where attrelid = c.oid and atttypid = 'bytea'::regtype and not attisdropped)::text[] as binaries
        from pg_class c where relkind in ('r', 'p') and relnamespace = 'public'::regnamespace and not relispartition
        order by 1";
    let mut all = Vec::new();
    for table in client.query(names, &[]).await.expect("a catalog") {
        let (name, binaries): (&str, Vec<String>) = (table.get("name"), table.get("binaries"));
        let rows = format!("select t::text from {name} t");
        for row in client.query(&rows, &[]).await.expect("rows") {
            all.push((
                format!("table {name}"),
                row.get::<_, String>(0).into_bytes(),
            ));
        }
        for column in binaries {
            let rows = format!("select {column} from {name} where {column} is not null");
            for row in client.query(&rows, &[]).await.expect("rows") {
                all.push((format!("column {name}.{column}"), row.get(0)));
            }
        }
    }
    all
}

/// Every file below a folder.
pub fn files(what: &str, folder: &Path) -> Vec<Haystack> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            all.extend(files(what, &path));
        } else if let Ok(bytes) = std::fs::read(&path) {
            all.push((format!("{what} {}", path.display()), bytes));
        }
    }
    all
}

/// Every command that a Redis gets, with its keys, values and published messages. This is more than
/// the keys that are left in the end.
pub struct RedisCommands {
    heard: Arc<Mutex<Vec<u8>>>,
    _task: AbortOnDropHandle<()>,
}

impl RedisCommands {
    /// Listens to the Redis at `url`: `redis://:password@host:port/0`.
    pub async fn record(url: &str) -> Self {
        let mut stream = dial(url).await;
        stream.write_all(b"MONITOR\r\n").await.expect("written");
        let heard = Arc::<Mutex<Vec<u8>>>::default();
        let into = heard.clone();
        let task = spawn(async move {
            let mut piece = vec![0; 65_536];
            while let Ok(n @ 1..) = stream.read(&mut piece).await {
                into.lock().extend_from_slice(&piece[..n]);
            }
        });
        RedisCommands {
            heard,
            _task: AbortOnDropHandle::new(task),
        }
    }

    /// The commands so far. Redis writes a binary byte as `\xNN`; here it is a byte again.
    pub async fn so_far(&self) -> Vec<Haystack> {
        // The last commands are on their way.
        tokio::time::sleep(Duration::from_millis(200)).await;
        let text = self.heard.lock().clone();
        assert!(text.len() > 1000, "Redis was hardly used");
        vec![("Redis".to_owned(), unescaped(&text))]
    }
}

async fn dial(url: &str) -> TcpStream {
    let rest = url.strip_prefix("redis://").expect("a URL");
    let (login, place) = rest.rsplit_once('@').unwrap_or(("", rest));
    let place = place.split('/').next().expect("a place");
    let mut stream = TcpStream::connect(place).await.expect("Redis answers");
    if let Some((_, password)) = login.rsplit_once(':') {
        let auth = format!("AUTH {password}\r\n");
        stream.write_all(auth.as_bytes()).await.expect("written");
    }
    stream
}

/// Writes a key.
pub async fn set(url: &str, key: &str, value: &str) {
    let mut stream = dial(url).await;
    let command = format!("SET {key} {value}\r\nQUIT\r\n");
    stream.write_all(command.as_bytes()).await.expect("written");
    stream.read_to_end(&mut Vec::new()).await.expect("read");
}

fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        let escaped = match (byte, after) {
            (b'\\', [b'x', high, low, ..]) => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|hex| u8::from_str_radix(hex, 16).ok())
                .map(|byte| (byte, 3)),
            (b'\\', [next, ..]) => Some((*next, 1)),
            _ => None,
        };
        let (byte, skipped) = escaped.unwrap_or((byte, 0));
        bytes.push(byte);
        rest = &after[skipped..];
    }
    bytes
}

#[test]
fn binary_values_are_read_as_redis_shows_them() {
    assert_eq!(
        unescaped(br#""a\x00\xffb" "\"q\"""#),
        b"\"a\x00\xffb\" \"\"q\"\""
    );
}
