//! Where a client keeps what it must not forget.

use std::{
    fs,
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
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
        // A file that somebody else laid there is neither followed nor written to.
        match fs::remove_file(&beside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut options = fs::OpenOptions::new();
        let options = options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(&beside)?;
        file.write_all(document)?;
        file.sync_all()?;
        fs::rename(&beside, &self.0)?;
        let folder = self.0.parent().filter(|it| !it.as_os_str().is_empty());
        fs::File::open(folder.unwrap_or_else(|| Path::new(".")))?.sync_all()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_beside_the_file_is_not_followed() {
        let name = format!("blindpipe-store-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).expect("a folder");
        let (path, others) = (folder.join("pins"), folder.join("others"));
        fs::write(&others, "theirs").expect("written");
        let beside = folder.join(format!("pins.{}.tmp", std::process::id()));
        std::os::unix::fs::symlink(&others, beside).expect("a link");
        let store = FileStore::new(&path);
        assert!(store.load().expect("a store").is_none());
        for document in ["first", "second"] {
            store.save(document.as_bytes()).expect("stored");
            let loaded = store.load().expect("a store");
            assert_eq!(loaded.as_deref(), Some(document.as_bytes()));
        }
        assert_eq!(fs::read_to_string(&others).expect("read"), "theirs");
        fs::remove_dir_all(folder).expect("removed");
    }
}
