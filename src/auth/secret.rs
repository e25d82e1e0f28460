//! Slow hashes off the async threads, and MACs.
//!
//! Why: ADR 15.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock, mpsc},
};

use argon2::{
    Algorithm, Argon2, Params, Version,
    password_hash::{PasswordHasher, PasswordVerifier, phc::PasswordHash},
};
use hmac::{Hmac, KeyInit, Mac};
use parking_lot::Mutex;
use sha2::Sha256;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::{
    config::Config,
    error::{Error, Result},
    metrics,
};

/// bcrypt cost of agent tokens, fixed by the interface.
const BCRYPT_COST: u32 = 10;
/// The least cost that bcrypt has.
const LEAST_BCRYPT_COST: u32 = 4;
/// Hashes that may wait for a core. More are refused with 503 rather than queued.
const HASH_QUEUE_CAPACITY: usize = 50;

/// The work of one hash.
#[derive(Clone, Copy)]
pub enum HashCost {
    /// bcrypt as the interface orders it, and Argon2id as its crate advises: 19 MiB, two passes.
    Full,
    /// The least that the algorithms allow, for tests.
    Least,
}

impl HashCost {
    /// The cost that the settings ask for.
    pub fn of(config: &Config) -> Self {
        if config.quick_hashes.0 {
            HashCost::Least
        } else {
            HashCost::Full
        }
    }

    fn bcrypt(self) -> u32 {
        match self {
            HashCost::Full => BCRYPT_COST,
            HashCost::Least => LEAST_BCRYPT_COST,
        }
    }

    fn argon2(self) -> Argon2<'static> {
        let params = match self {
            HashCost::Full => Params::default(),
            HashCost::Least => {
                Params::new(Params::MIN_M_COST, Params::MIN_T_COST, 1, None).unwrap_or_default()
            }
        };
        Argon2::new(Algorithm::default(), Version::default(), params)
    }
}

/// The pool that hashes passwords and tokens: all cores but one, and a bounded queue. Clones share
/// it.
#[derive(Clone)]
pub struct Hasher {
    /// The name of the queue in the metrics.
    name: &'static str,
    threads: Threads,
    queue: Arc<Semaphore>,
    cost: HashCost,
    /// The hash that is verified when there is no account, so that unknown e-mails take as long as
    /// known ones. It takes the time and the memory of a hash, so it is made when it is first needed.
    decoy: Arc<OnceLock<String>>,
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that only hash, at low priority. A hash takes a core for tens of milliseconds, and its
/// caller can wait a little longer. The threads end with their last handle.
#[derive(Clone)]
struct Threads(mpsc::Sender<Job>);

/// The niceness of the threads: a thirtieth of a core that others want all the time. With 10, the
/// p99 of other requests doubled beside logins.
#[cfg(target_os = "linux")]
const HASH_THREAD_NICENESS: i32 = 15;

impl Threads {
    fn start(n: usize) -> Self {
        let (jobs, waiting) = mpsc::channel::<Job>();
        let waiting = Arc::new(Mutex::new(waiting));
        for _ in 0..n {
            let waiting = waiting.clone();
            let work = move || {
                // The priority of this thread alone. On other systems than Linux it would be that
                // of the process.
                #[cfg(target_os = "linux")]
                rustix::process::setpriority_process(None, HASH_THREAD_NICENESS).ok();
                loop {
                    let job = waiting.lock().recv();
                    let Ok(job) = job else { return };
                    // The caller of a job that panics notices that its channel closes.
                    catch_unwind(AssertUnwindSafe(job)).ok();
                }
            };
            if let Err(error) = std::thread::Builder::new()
                .name("hash".to_owned())
                .spawn(work)
            {
                tracing::error!(
                    operation = "auth.hash",
                    cause = %error,
                    remedy = "the other threads hash",
                    "a thread does not start"
                );
            }
        }
        Threads(jobs)
    }

    fn run(&self, job: impl FnOnce() + Send + 'static) {
        // Without threads the job is dropped, and its caller gets an error.
        self.0.send(Box::new(job)).ok();
    }
}

/// A place in the queue, held until the hash is done or the permit is dropped.
pub struct HashPermit {
    queue: &'static str,
    #[expect(dead_code, reason = "held")]
    place: OwnedSemaphorePermit,
}

impl Drop for HashPermit {
    fn drop(&mut self) {
        metrics::hashes_waiting(self.queue, -1.0);
    }
}

impl Hasher {
    /// A pool for this machine. `name` is for the metrics.
    pub fn new(name: &'static str, cost: HashCost) -> Self {
        let cores = std::thread::available_parallelism()
            .map_or(1, |cores| cores.get().saturating_sub(1).max(1));
        Hasher {
            name,
            threads: Threads::start(cores),
            queue: Arc::new(Semaphore::new(cores + HASH_QUEUE_CAPACITY)),
            cost,
            decoy: Arc::default(),
        }
    }

    /// Takes a place in the short queue. Errors: 503 if it is full.
    pub fn permit(&self) -> Result<HashPermit> {
        let place = self.queue.clone().try_acquire_owned().map_err(|_| {
            metrics::hash_refused(self.name);
            Error::unavailable("the hash queue is full")
        })?;
        metrics::hashes_waiting(self.name, 1.0);
        let queue = self.name;
        Ok(HashPermit { queue, place })
    }

    async fn run<T: Send + 'static>(
        &self,
        permit: HashPermit,
        algorithm: &'static str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T> {
        let asked = std::time::Instant::now();
        let (answer, answered) = oneshot::channel();
        // Every permit is served: the wait is bounded by the jobs before it.
        self.threads.run(move || {
            // The place is held to the end of the work, even if the caller has gone.
            let _held = permit;
            answer.send(work()).ok();
        });
        let value = answered.await.map_err(Error::unavailable)?;
        metrics::hashed(algorithm, asked.elapsed());
        Ok(value)
    }

    /// Hashes with Argon2id, as a PHC string.
    pub async fn hash_password(&self, password: String) -> Result<String> {
        let cost = self.cost;
        let hash = self.run(self.permit()?, "argon2id", move || {
            cost.argon2()
                .hash_password(password.as_bytes())
                .map(|hash| hash.to_string())
        });
        hash.await?
            .map_err(|error| Error::internal(crate::error::Code::InternalError, error.to_string()))
    }

    /// Whether `password` belongs to `hash`. Without a hash the answer is no, after equal work. The
    /// caller takes the permit first, so that a try that is counted is also made.
    pub async fn verify_password(
        &self,
        permit: HashPermit,
        password: String,
        hash: Option<String>,
    ) -> Result<bool> {
        let known = hash.is_some();
        let (cost, decoy) = (self.cost, self.decoy.clone());
        let matches = self.run(permit, "argon2id", move || {
            let hash = hash.as_deref();
            let hash = hash.unwrap_or_else(|| decoy.get_or_init(|| decoy_hash(cost)));
            PasswordHash::new(hash).is_ok_and(|hash| {
                Argon2::default()
                    .verify_password(password.as_bytes(), &hash)
                    .is_ok()
            })
        });
        Ok(matches.await? && known)
    }

    /// Hashes the whole agent token with bcrypt.
    pub async fn hash_token(&self, token: String) -> Result<String> {
        let cost = self.cost.bcrypt();
        let hash = self
            .run(self.permit()?, "bcrypt", move || {
                bcrypt::non_truncating_hash(token, cost)
            })
            .await?;
        hash.map_err(|error| Error::internal(crate::error::Code::InternalError, error))
    }

    /// Whether `token` belongs to `hash`.
    pub async fn verify_token(&self, token: String, hash: String) -> Result<bool> {
        self.run(self.permit()?, "bcrypt", move || {
            bcrypt::non_truncating_verify(token, &hash).unwrap_or(false)
        })
        .await
    }
}

/// A hash of nobody's password, as costly as everybody's.
fn decoy_hash(cost: HashCost) -> String {
    let hash = cost
        .argon2()
        .hash_password_with_salt(b"nobody's password", b"nobody's salt 16");
    hash.map(|hash| hash.to_string()).unwrap_or_default()
}

/// A MAC key. Those of the server's secret are in [`key_ring`](super::key_ring).
#[derive(Clone)]
pub struct MacKey(Arc<[u8]>);

impl MacKey {
    /// A key from secret bytes.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        MacKey(bytes.to_vec().into())
    }

    /// A key from secret bytes of any length.
    pub fn from_slice(bytes: &[u8]) -> Self {
        MacKey(bytes.into())
    }

    /// HMAC-SHA256 over the parts, each preceded by its length.
    pub fn mac(&self, parts: &[&[u8]]) -> [u8; 32] {
        mac_of(&self.0, parts)
    }
}

fn mac_of(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        unreachable!("HMAC takes keys of any length")
    };
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}
