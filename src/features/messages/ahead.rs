//! Who waits for the limiter is stored meanwhile, and committed once all of the batch are admitted.
//!
//! If one of them is refused, the batch has been stored for nothing; if one is decided late, it has held its conversations'
//! locks for as long. So after either of them everybody waits for their decision first, for a while.

use std::time::{Duration, Instant};

use futures_util::{TryStreamExt, stream::FuturesUnordered};
use tokio::time::timeout;

use super::{
    PendingSend,
    store::{self, Decision},
};
use crate::{
    db::Db,
    error::{Error, Result},
    limits::Pass,
};

/// Longest time that locks are held for decisions: several times what Redis takes while all is well.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long nobody goes ahead after a batch that should not have.
const WARY: Duration = Duration::from_millis(250);

/// Whether to go ahead.
#[derive(Default)]
pub struct Ahead {
    failed: Option<Instant>,
}

/// What became of a batch that went ahead.
pub enum Outcome {
    /// All were admitted, and this is what the store says.
    Tried(Vec<PendingSend>, Result<Vec<Decision>>),
    /// These have to wait for their decisions. Who was refused has been told so.
    Waits(Vec<PendingSend>),
}

impl Ahead {
    /// Whether one may.
    pub fn may(&self) -> bool {
        self.failed.is_none_or(|at| at.elapsed() > WARY)
    }

    /// Stores a batch if all of it is admitted meanwhile.
    pub async fn send(&mut self, db: &Db, mut batch: Vec<PendingSend>) -> Outcome {
        let pending = batch
            .iter_mut()
            .enumerate()
            .filter(|(_, one)| one.pass.is_pending());
        let mut passes: Vec<(usize, Pass)> = pending
            .map(|(n, one)| (n, std::mem::replace(&mut one.pass, Pass::Admitted)))
            .collect();
        let outcome = store::send_gated(db, &batch, admitted(&mut passes)).await;
        for (n, pass) in passes {
            batch[n].pass = pass;
        }
        let refused: Option<(usize, Error)> = match outcome {
            Ok(Ok(decisions)) => return Outcome::Tried(batch, Ok(decisions)),
            Ok(Err(refused)) => refused,
            Err(error) if store::is_write_conflict(&error) => None,
            // Nobody may be stored who has not been admitted, so they take the other way from the start.
            Err(error) if batch.iter().any(|one| one.pass.is_pending()) => {
                error.log();
                None
            }
            Err(error) => return Outcome::Tried(batch, Err(error)),
        };
        self.failed = Some(Instant::now());
        if let Some((n, refusal)) = refused {
            // Nobody waits any more if the request was cut.
            batch.remove(n).answer.send(Err(refusal)).ok();
        }
        Outcome::Waits(batch)
    }
}

/// Waits for all, but not long: whom the first refusal concerns, or nobody if it is late.
async fn admitted(passes: &mut [(usize, Pass)]) -> Result<(), Option<(usize, Error)>> {
    let all = async {
        // Told as they come: a refusal that is told once and then dropped would be lost.
        let each = passes
            .iter_mut()
            .map(async |(n, pass)| pass.await.map_err(|refusal| (*n, refusal)));
        let mut each: FuturesUnordered<_> = each.collect();
        while each.try_next().await?.is_some() {}
        Ok(())
    };
    timeout(PATIENCE, all)
        .await
        .map_or(Err(None), |told| told.map_err(Some))
}

#[cfg(test)]
mod tests {
    use std::future::{pending, ready};

    use super::*;
    use crate::error::Code;

    #[tokio::test]
    async fn a_refusal_is_told_at_once_and_is_not_lost_behind_who_is_late() {
        let mut passes: Vec<(usize, Pass)> =
            (0..60).map(|n| (n, Pass::pending(pending()))).collect();
        assert!(matches!(admitted(&mut passes).await, Err(None)));
        passes[50].1 = Pass::pending(ready(Err(Code::RateLimited.into())));
        passes[55].1 = Pass::pending(ready(Err(Code::RateLimited.into())));
        for _ in 0..2 {
            let refused = admitted(&mut passes)
                .await
                .expect_err("a refusal")
                .expect("in time");
            assert!([50, 55].contains(&refused.0));
            passes.retain(|(n, _)| *n != refused.0);
        }
        assert!(matches!(admitted(&mut passes).await, Err(None)));
        for (_, pass) in &mut passes {
            *pass = Pass::pending(ready(Ok(())));
        }
        assert!(admitted(&mut passes).await.is_ok());
        assert!(passes.iter().all(|(_, pass)| !pass.is_pending()));
    }
}
