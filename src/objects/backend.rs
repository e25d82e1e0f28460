//! The store: a local folder, S3 and what resembles it, Google Cloud Storage, Azure.

use std::{collections::BTreeMap, fmt, future::Future, path::PathBuf, sync::Arc, time::Duration};

use object_store::{
    ClientOptions, ObjectStore, ObjectStoreExt, RetryConfig,
    aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder,
    gcp::GoogleCloudStorageBuilder,
    local::LocalFileSystem,
    path::Path,
    signer::{Method, SignedUrlOptions, Signer, Url},
};
use secrecy::ExposeSecret;

use super::{ObjectKey, STORE_TIMEOUT, location::Location, parts::PartStore};
use crate::{
    config::Config,
    error::{Error, Result},
};

/// Longest wait for a connection to the store.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Tries of a request that has no body of ours.
const MAX_RETRIES: usize = 2;
/// Life of an address that a node signs for its own write.
const OWN_WRITE_TTL: Duration = Duration::from_secs(2 * 3600);

/// The reason that a store cannot be opened.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// An address of the store itself, for a client to write to.
pub struct DirectUpload {
    /// The signed address.
    pub url: String,
    /// Headers that the PUT must have.
    pub headers: BTreeMap<String, String>,
}

/// An open store.
pub struct Backend {
    store: Arc<dyn ObjectStore>,
    prefix: Path,
    kind: StoreKind,
}

/// The way in which bytes get into the store.
pub(super) enum StoreKind {
    /// Through a temporary name, a sync of the file and of its folder, and a rename.
    Folder(Arc<LocalFileSystem>),
    /// By a single streamed PUT, which is atomic in every bucket: nothing is left of one that is
    /// cut. A large object goes to S3 in parts while the node has buffers for them.
    Bucket(Bucket),
}

/// A store that is reached over HTTP.
pub(super) struct Bucket {
    signer: Arc<dyn Signer>,
    pub(super) http: reqwest::Client,
    /// Headers that a PUT must have.
    pub(super) put_headers: &'static [(&'static str, &'static str)],
    /// Multipart uploads. `None` if the store cannot abort an abandoned upload.
    pub(super) parts: Option<PartStore>,
    /// Whether clients get addresses of the store.
    direct: bool,
}

impl fmt::Debug for Backend {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Backend({})", self.store)
    }
}

/// The part of the settings that all buckets share.
fn client_options(config: &Config) -> ClientOptions {
    let plain = config.object_store_endpoint.starts_with("http://");
    ClientOptions::new()
        .with_allow_http(plain)
        .with_connect_timeout(CONNECT_TIMEOUT)
        // A reader decides how long an answer takes. Every wait has its own deadline here.
        .with_timeout_disabled()
}

fn retries() -> RetryConfig {
    RetryConfig {
        max_retries: MAX_RETRIES,
        retry_timeout: STORE_TIMEOUT / 2,
        ..RetryConfig::default()
    }
}

impl Backend {
    /// Opens the store of the settings. A local folder is made; a bucket must exist.
    pub fn open(config: &Config) -> Result<Self, Failure> {
        match config.object_store_url.parse::<Location>()? {
            Location::Folder(folder) => Self::folder(&folder),
            bucket => Self::of_bucket(config, bucket),
        }
    }

    /// Prepares the client of a bucket. Nothing is sent yet.
    pub(super) fn of_bucket(config: &Config, location: Location) -> Result<Self, Failure> {
        match location {
            Location::Folder(_) => Err("a folder is no bucket".into()),
            Location::S3(bucket, prefix) => Self::s3(config, &bucket, prefix),
            Location::Google(bucket, prefix) => Self::google(config, &bucket, prefix),
            Location::Azure(container, prefix) => Self::azure(config, &container, prefix),
        }
    }

    fn folder(folder: &std::path::Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(folder).map_err(|error| {
            let folder = folder.display();
            format!("OBJECT_STORE_URL: cannot make the folder {folder}: {error}")
        })?;
        let store = Arc::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true));
        Ok(Backend {
            store: store.clone(),
            prefix: Path::default(),
            kind: StoreKind::Folder(store),
        })
    }

    fn s3(config: &Config, bucket: &str, prefix: Path) -> Result<Self, Failure> {
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_region(&config.object_store_region)
            .with_client_options(client_options(config))
            .with_retry(retries());
        if !config.object_store_endpoint.is_empty() {
            builder = builder.with_endpoint(&config.object_store_endpoint);
        }
        if !config.object_store_access_key.is_empty() {
            builder = builder
                .with_access_key_id(&config.object_store_access_key)
                .with_secret_access_key(config.object_store_secret.expose_secret());
        }
        let store = Arc::new(builder.build()?);
        let parts = PartStore::new(store.clone());
        Self::bucket(config, store, prefix, &[], Some(parts))
    }

    fn google(config: &Config, bucket: &str, prefix: Path) -> Result<Self, Failure> {
        let mut builder = GoogleCloudStorageBuilder::new()
            .with_bucket_name(bucket)
            .with_client_options(client_options(config))
            .with_retry(retries());
        if !config.object_store_endpoint.is_empty() {
            builder = builder.with_base_url(&config.object_store_endpoint);
        }
        let key = config.object_store_secret.expose_secret();
        if !key.is_empty() {
            builder = builder.with_service_account_key(key);
        }
        Self::bucket(config, Arc::new(builder.build()?), prefix, &[], None)
    }

    fn azure(config: &Config, container: &str, prefix: Path) -> Result<Self, Failure> {
        let mut builder = MicrosoftAzureBuilder::new()
            .with_container_name(container)
            .with_account(&config.object_store_access_key)
            .with_client_options(client_options(config))
            .with_retry(retries());
        if !config.object_store_endpoint.is_empty() {
            builder = builder.with_endpoint(config.object_store_endpoint.clone());
        }
        let key = config.object_store_secret.expose_secret();
        if !key.is_empty() {
            builder = builder.with_access_key(key);
        }
        let headers = &[("x-ms-blob-type", "BlockBlob")];
        Self::bucket(config, Arc::new(builder.build()?), prefix, headers, None)
    }

    fn bucket<S: ObjectStore + Signer>(
        config: &Config,
        store: Arc<S>,
        prefix: Path,
        put_headers: &'static [(&'static str, &'static str)],
        parts: Option<PartStore>,
    ) -> Result<Self, Failure> {
        let http = reqwest::Client::builder()
            .no_proxy()
            .http1_only()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .build()?;
        let bucket = Bucket {
            signer: store.clone(),
            http,
            put_headers,
            parts,
            direct: config.object_store_direct.0,
        };
        Ok(Backend {
            store,
            prefix,
            kind: StoreKind::Bucket(bucket),
        })
    }

    pub(super) fn store(&self) -> &dyn ObjectStore {
        &*self.store
    }

    pub(super) fn kind(&self) -> &StoreKind {
        &self.kind
    }

    /// The place of a key. The first characters spread a folder's files.
    pub(super) fn path(&self, key: &ObjectKey) -> Path {
        let shard = key.as_str().get(..2).unwrap_or_default().to_lowercase();
        self.prefix.clone().join(shard).join(key.as_str())
    }

    /// The size of an object; none if the store lacks it.
    pub async fn size(&self, key: &ObjectKey) -> Result<Option<u64>> {
        let path = self.path(key);
        let found = within(self.store.head(&path)).await?;
        Ok(found.map(|meta| meta.size))
    }

    /// Writes a small text for people, under a name of its own beside the objects. An object of that
    /// name is replaced.
    pub(super) async fn put_text(&self, folder: &str, name: &str, text: String) -> Result<()> {
        let path = self.prefix.clone().join(folder).join(name);
        within(self.store.put(&path, text.into())).await.map(drop)
    }

    /// Deletes the bytes of a key, with what an interrupted write left. An object that is not there
    /// is deleted.
    pub async fn delete(&self, key: &ObjectKey) -> Result<()> {
        let path = self.path(key);
        within(self.store.delete(&path)).await?;
        if let StoreKind::Folder(folder) = &self.kind {
            let file = folder
                .path_to_filesystem(&path)
                .map_err(Error::unavailable)?;
            delete_staged(file).await?;
        }
        Ok(())
    }

    /// Aborts the multipart upload of a key, unless it is complete: the object is there then.
    pub(super) async fn abort(&self, key: &ObjectKey, multipart: &str) -> Result<()> {
        let StoreKind::Bucket(Bucket {
            parts: Some(parts), ..
        }) = &self.kind
        else {
            return Ok(());
        };
        if self.size(key).await?.is_some() {
            return Ok(());
        }
        parts.abort(&self.path(key), multipart).await
    }

    /// Copies an object inside the store; false if the store lacks it.
    pub async fn copy(&self, from: &ObjectKey, to: &ObjectKey) -> Result<bool> {
        let (from, to) = (self.path(from), self.path(to));
        Ok(within(self.store.copy(&from, &to)).await?.is_some())
    }

    /// Whether clients write to the store itself.
    pub fn is_direct(&self) -> bool {
        matches!(&self.kind, StoreKind::Bucket(bucket) if bucket.direct)
    }

    /// The address for a client's own write; none unless the store is used directly.
    pub async fn direct_upload(
        &self,
        key: &ObjectKey,
        ttl: Duration,
    ) -> Result<Option<DirectUpload>> {
        let StoreKind::Bucket(bucket) = &self.kind else {
            return Ok(None);
        };
        if !bucket.direct {
            return Ok(None);
        }
        let url = bucket.sign(&self.path(key), ttl).await?;
        let headers = bucket.put_headers.iter();
        Ok(Some(DirectUpload {
            url: url.into(),
            headers: headers
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        }))
    }
}

impl Bucket {
    /// A signed address for a write of this node.
    pub(super) async fn own_write(&self, path: &Path) -> Result<Url> {
        self.sign(path, OWN_WRITE_TTL).await
    }

    async fn sign(&self, path: &Path, ttl: Duration) -> Result<Url> {
        let options = SignedUrlOptions::default();
        let signed = self
            .signer
            .signed_url_opts(Method::PUT, path, ttl, &options);
        within(signed)
            .await?
            .ok_or_else(|| Error::unavailable("the store signs no addresses"))
    }
}

/// Bounds a call to the store by [`STORE_TIMEOUT`]. Maps "not found" to `None`.
pub(super) async fn within<T>(
    step: impl Future<Output = object_store::Result<T>>,
) -> Result<Option<T>> {
    match tokio::time::timeout(STORE_TIMEOUT, step).await {
        Ok(Ok(value)) => Ok(Some(value)),
        Ok(Err(object_store::Error::NotFound { .. })) => Ok(None),
        Ok(Err(error)) => Err(Error::unavailable(error)),
        Err(late) => Err(Error::unavailable(late)),
    }
}

/// Deletes the temporary files of interrupted writes to `file`: the crate names them `<file>#<n>`.
async fn delete_staged(file: PathBuf) -> Result<()> {
    let deleting = tokio::task::spawn_blocking(move || {
        let (Some(folder), Some(name)) = (file.parent(), file.file_name()) else {
            return Ok(());
        };
        let staged = format!("{}#", name.to_string_lossy());
        let entries = match std::fs::read_dir(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(&staged) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok::<_, std::io::Error>(())
    });
    deleting
        .await
        .map_err(Error::unavailable)?
        .map_err(Error::unavailable)
}
