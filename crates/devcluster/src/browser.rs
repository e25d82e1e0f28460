//! A browser for the tests: Chromium without a window, found or fetched like the services. Its
//! DevTools protocol drives it.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use crate::{
    account::Account,
    directories::Directories,
    error::{Context, DevError, Result},
    files::{make_folder, open_log},
    packages::{self, Product},
    process::{POLL_INTERVAL, Process},
    terminal,
    toolset::Toolset,
};

/// The name of the program and of its package.
pub const PROGRAM: &str = "chromium-headless-shell";
/// Longest time of the first start.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser that was found or fetched.
#[derive(Clone, Debug)]
pub struct Browser {
    tools: Toolset,
    account: Account,
    /// Fetched fonts: the browser does not start without any font.
    fonts: PathBuf,
}

/// A running browser. Dropping it kills it.
#[derive(Debug)]
pub struct RunningBrowser {
    /// The address of its DevTools, `ws://…`.
    pub devtools: String,
    _process: Process,
}

impl Browser {
    /// Finds or fetches a browser.
    pub fn obtain(directories: &Directories) -> Result<Self> {
        let tools = Toolset::obtain(directories, Product::Browser)?;
        let fonts =
            packages::unpacked(&directories.packages, Product::Browser).join("usr/share/fonts");
        Ok(Browser {
            tools,
            account: directories.account.clone(),
            fonts,
        })
    }

    /// The version and folder of the browser.
    pub fn describe(&self) -> String {
        format!(
            "Chromium {} in {}",
            self.tools.version,
            self.tools.bin.display()
        )
    }

    /// Starts the browser. All its files go to `folder`, which the services' user must be able to
    /// enter. `trusted_key` is the base64 SHA-256 of an SPKI; the browser trusts certificates with
    /// that key.
    pub fn start(&self, folder: &Path, trusted_key: &str) -> Result<RunningBrowser> {
        make_folder(folder, 0o755)?;
        self.account.take_ownership(folder)?;
        let config = folder.join("fonts.conf");
        let text = format!(
            "<fontconfig><dir>{}</dir><dir>/usr/share/fonts</dir><cachedir>{}</cachedir></fontconfig>\n",
            self.fonts.display(),
            folder.join("fonts").display()
        );
        fs::write(&config, text).with_context(|| format!("write {}", config.display()))?;
        let log = folder.join("log");
        let _ = fs::remove_file(&log);
        let output = open_log(&log)?;
        let mut command = self.tools.command(PROGRAM, "KILL", &self.account);
        command.env("HOME", folder).env("FONTCONFIG_FILE", &config);
        // The browser shows only this project's pages, and its sandbox needs rights that a
        // container does not give.
        command.args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
        ]);
        command.args(["--no-proxy-server", "--remote-debugging-port=0"]);
        command.arg(format!(
            "--user-data-dir={}",
            folder.join("profile").display()
        ));
        command.arg(format!(
            "--ignore-certificate-errors-spki-list={trusted_key}"
        ));
        command
            .arg("about:blank")
            .stderr(output.try_clone().with_context(|| "share a log".into())?)
            .stdout(output);
        let mut process = Process::spawn(command, "KILL")?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            // The line is complete once its end has arrived.
            let mut lines = said
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let address = lines.find_map(|line| line.strip_prefix("DevTools listening on "));
            if let Some(address) = address {
                return Ok(RunningBrowser {
                    devtools: address.trim().to_owned(),
                    _process: process,
                });
            }
            if process.exit_status().is_some() || Instant::now() > deadline {
                return Err(DevError::new(format!("the browser did not start:\n{said}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// The message of a test that has no browser.
pub fn missing_browser_notice(reason: &str) -> String {
    terminal::notice(
        "PASSKEYS AND PAGES ARE NOT TESTED IN A REAL BROWSER",
        reason,
    )
}
