//! The second look at a credential.

use futures_util::future::BoxFuture;

use crate::error::Result;

/// A verified credential that may have been revoked since.
///
/// Extractors leave an `Arc<dyn Reverify>` among the request's extensions. Code that waits for the rest of a request
/// asks again afterwards.
pub trait Reverify: Send + Sync {
    /// Refuses the caller if the credential no longer counts.
    fn reverify(&self) -> BoxFuture<'_, Result<()>>;
}
