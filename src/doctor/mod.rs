//! `blindpipe doctor` checks what a deployment needs, and says in plain words what is wrong and how
//! to mend it. It changes nothing: an object that it writes to the store, it deletes again.

mod machine;
mod report;
mod services;

pub use self::report::{Finding, Grade, Report};
use crate::{clock::Clock, node::read_settings, random::Random};

/// Checks everything that the settings name.
pub async fn examine(get: impl Fn(&str) -> Option<String>) -> Report {
    let mut report = Report::default();
    let config = match read_settings(get) {
        Ok(config) => config,
        Err(faults) => {
            for fault in faults.lines() {
                let (name, said) = fault.split_once(": ").unwrap_or(("", fault));
                report.fault(name, said, "see `blindpipe serve --help`");
            }
            // Nothing else can be reached without settings.
            return report;
        }
    };
    let clock = Clock::default();
    let random = Random::new(clock.clone());
    report.good("settings", "all of them can be read");
    machine::check_files(&config, &mut report);
    machine::check_secrets(&config, &mut report);
    machine::check_certificate(&config, &mut report).await;
    services::check_name(&config, &mut report).await;
    services::check_postgres(&config, &clock, &mut report).await;
    services::check_redis(&config, &clock, &mut report).await;
    services::check_mail(&config, &mut report).await;
    services::check_objects(&config, &random, &mut report).await;
    report
}
