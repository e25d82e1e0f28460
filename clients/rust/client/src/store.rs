//! Where a client keeps what it must not forget.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::PathBuf,
};

use parking_lot::Mutex;

/// Keeps one document of a client, which is replaced as a whole.
///
/// An agent's document holds public keys and numbers only. A person's holds the device's private
/// keys as well.
pub trait Store: Send + Sync + 'static {
    /// The document; none before the first save.
    ///
    /// # Errors
    ///
    /// The document may be there and cannot be read.
    fn load(&self) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the document. It is durable once this returns.
    ///
    /// # Errors
    ///
    /// Nothing was replaced.
    fn save(&self, document: &[u8]) -> io::Result<()>;
}

/// A file of mode 0600.
#[derive(Clone, Debug)]
pub struct FileStore(PathBuf);

impl FileStore {
    /// The file at `path`, which is made by the first save.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

impl Store for FileStore {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(&self.0) {
            Ok(document) => Ok(Some(document)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        let mut beside = self.0.clone().into_os_string();
        beside.push(format!(".{}.tmp", std::process::id()));
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = options.open(&beside)?;
        file.write_all(document)?;
        file.sync_all()?;
        fs::rename(&beside, &self.0)
    }
}

/// For tests, and for clients that end with their process.
#[derive(Debug, Default)]
pub struct MemoryStore(Mutex<Option<Vec<u8>>>);

impl Store for MemoryStore {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().clone())
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        *self.0.lock() = Some(document.to_owned());
        Ok(())
    }
}

impl<S: Store> Store for std::sync::Arc<S> {
    fn load(&self) -> io::Result<Option<Vec<u8>>> {
        (**self).load()
    }

    fn save(&self, document: &[u8]) -> io::Result<()> {
        (**self).save(document)
    }
}
