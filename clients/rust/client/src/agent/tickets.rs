//! Approvals by their ids, for a program that waits for them itself.

use std::time::Duration;

use blindpipe_protocol::{conversations::Conversation, ids::MessageId};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, sleep};

use super::{Agent, ApprovalResult};
use crate::{
    Approval, Result,
    approvals::ApprovalState,
    session::message_id,
    transport::{Call, new_id},
};

/// Between two looks at an approval that is open: below the budget of calls.
const FIRST_LOOK: Duration = Duration::from_millis(500);
const MAX_LOOK: Duration = Duration::from_secs(3);

impl Agent {
    /// The id of a question: of its key, the same in every process; a new one without a key.
    pub(super) fn question_id(&self, key: Option<&str>) -> MessageId {
        let Some(key) = key else {
            return MessageId(new_id(self.clock()));
        };
        let hash = Sha256::new()
            .chain_update(b"blindpipe approval key\0")
            .chain_update(self.id().0.as_bytes())
            .chain_update(key)
            .finalize();
        let mut id = [0; 16];
        id.copy_from_slice(&hash[..16]);
        message_id(id)
    }

    /// Waits until an approval is closed, at most for `time`; answers it as it is then.
    ///
    /// # Errors
    ///
    /// As [`Self::approval`].
    pub async fn wait_for_approval(&self, id: MessageId, time: Duration) -> Result<Approval> {
        let end = Instant::now() + time;
        let mut pause = FIRST_LOOK;
        loop {
            let approval = self.approval(id).await?;
            let left = end.saturating_duration_since(Instant::now());
            if approval.state != ApprovalState::Open || left.is_zero() {
                return Ok(approval);
            }
            sleep(pause.min(left)).await;
            pause = (pause * 2).min(MAX_LOOK);
        }
    }

    /// The proven result of an approval that has ended; none for a question of another program.
    ///
    /// # Errors
    ///
    /// `bad_signature` if the signatures do not prove what is said; every refusal of the service.
    pub async fn approval_result(&self, approval: Approval) -> Result<Option<ApprovalResult>> {
        let core = self.start().await?;
        let result = core.result_of(approval).await?;
        core.save().await;
        Ok(result)
    }

    /// A page of the agent's conversations, and the cursor of the next.
    ///
    /// # Errors
    ///
    /// Every refusal of the service.
    pub async fn conversations(
        &self,
        cursor: Option<String>,
    ) -> Result<(Vec<Conversation>, Option<String>)> {
        let core = self.start().await?;
        let call = Call::get(format!("/agents/{}/conversations", self.id()));
        let page = core.http.page(call.query("cursor", cursor)).await?;
        Ok((page.data, page.next_cursor))
    }
}
