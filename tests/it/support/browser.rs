//! A browser for a test, if this machine has one.

use std::io::Write;

use devcluster::browser::{Browser, missing_browser_notice};

use super::services::services;

/// The browser. Without one this says so, past the harness, which hides what a test that passes has
/// to say.
pub async fn browser() -> Option<Browser> {
    let obtaining = tokio::task::spawn_blocking(|| Browser::obtain(&services().directories));
    match obtaining.await.expect("no panic") {
        Ok(browser) => Some(browser),
        Err(trouble) => {
            let notice = missing_browser_notice(&trouble.to_string());
            std::io::stderr().write_all(notice.as_bytes()).ok();
            None
        }
    }
}
