//! The second check of a credential.

use futures_util::future::BoxFuture;

use crate::error::Result;

/// A verified credential that may have been revoked since.
///
/// Extractors attach an `Arc<dyn Reverify>` to the request's extensions. Code that waits for the
/// rest of a request checks it again afterwards.
pub trait Reverify: Send + Sync {
    /// Refuses the caller if the credential has been revoked.
    fn reverify(&self) -> BoxFuture<'_, Result<()>>;
}
