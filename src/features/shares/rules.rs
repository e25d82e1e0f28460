//! The rules for new shares, and for the form of an answer.

use axum::http::{HeaderMap, header};
use blindpipe_protocol::{
    ids::{AgentId, FileId},
    shares::CreateShare,
};
use chrono::{DateTime, Utc};
use sha2::{Digest, Sha256};

use crate::{
    error::{Error, Result},
    limits::quotas::MAX_SHARE_TTL,
};

/// The target of a new share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    File(FileId),
    Agent(AgentId),
    Contact,
}

/// Checks a requested share; returns what it shows.
pub fn check(asked: &CreateShare, now: DateTime<Utc>) -> Result<Subject> {
    let subject = match (asked.file_id, asked.agent_id, asked.contact) {
        (Some(file), None, false) => Subject::File(file),
        (None, Some(agent), false) => Subject::Agent(agent),
        (None, None, true) => Subject::Contact,
        _ => {
            let message = "give exactly one of file_id, agent_id and contact";
            return Err(Error::field("", "choice", message));
        }
    };
    let end = asked.expires_at.0;
    if end <= now || end > now + MAX_SHARE_TTL {
        let message = "must be in the future, and at most 31 days away";
        return Err(Error::field("expires_at", "range", message));
    }
    if asked.max_access_count.is_some_and(|count| count < 1) {
        return Err(Error::field(
            "max_access_count",
            "range",
            "must be at least 1",
        ));
    }
    Ok(subject)
}

/// The hash of a share's id, as its row has it.
pub fn hash_of(share: &str) -> [u8; 32] {
    Sha256::digest(share.as_bytes()).into()
}

/// Whether the caller is a browser that wants a page.
pub fn wants_page(headers: &HeaderMap) -> bool {
    let accept = headers.get(header::ACCEPT);
    let accept = accept.and_then(|value| value.to_str().ok());
    let mut kinds = accept.unwrap_or_default().split(',').map(|kind| {
        let kind = kind.split(';').next().unwrap_or_default();
        kind.trim()
    });
    kinds.find(|kind| ["text/html", "application/json"].contains(kind)) == Some("text/html")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::http::HeaderValue;
    use blindpipe_protocol::time::Timestamp;

    use super::*;

    #[test]
    fn a_share_shows_a_single_thing_for_at_most_31_days() {
        let now = DateTime::UNIX_EPOCH + Duration::from_secs(1000);
        let file = FileId::NIL;
        let share = |after: i64| CreateShare {
            file_id: Some(file),
            agent_id: None,
            contact: false,
            expires_at: Timestamp(now + chrono::TimeDelta::seconds(after)),
            max_access_count: None,
        };
        let ok = |share: &CreateShare| check(share, now).is_ok();
        assert_eq!(check(&share(1), now).ok(), Some(Subject::File(file)));
        assert!(ok(&share(31 * 86_400)));
        assert!(!ok(&share(31 * 86_400 + 1)) && !ok(&share(0)));
        let both = CreateShare {
            contact: true,
            ..share(1)
        };
        let none = CreateShare {
            file_id: None,
            ..share(1)
        };
        let never = CreateShare {
            max_access_count: Some(0),
            ..share(1)
        };
        assert!(!ok(&both) && !ok(&none) && !ok(&never));
    }

    #[test]
    fn a_browser_gets_a_page_and_programs_get_json() {
        for (accept, page) in [
            ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", true),
            ("text/html", true),
            ("application/json, text/html", false),
            ("*/*", false),
            ("", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::ACCEPT, HeaderValue::from_static(accept));
            assert_eq!(wants_page(&headers), page, "{accept}");
        }
        assert!(!wants_page(&HeaderMap::new()));
    }
}
