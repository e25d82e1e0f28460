//! A browser for the tests: Chromium without a window, found or fetched like the services, and driven over its
//! DevTools protocol.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{
    packages,
    place::{Account, Place, make_folder},
    postgres::open_log,
    process::{POLL_INTERVAL, Process},
    tools::Toolset,
    trouble::{Context, DevError, Result},
};

/// The program, and the name of the package that has it.
pub const PROGRAM: &str = "chromium-headless-shell";
/// How long the first start may take.
const START_TIMEOUT: Duration = Duration::from_secs(60);

/// A browser that is here.
#[derive(Clone, Debug)]
pub struct Browser {
    tools: Toolset,
    account: Account,
    /// Where fetched fonts are; without any font it would not start.
    fonts: PathBuf,
}

/// One that runs; dropping it kills it.
#[derive(Debug)]
pub struct Running {
    /// The address of its DevTools, `ws://…`.
    pub devtools: String,
    _process: Process,
}

impl Browser {
    /// Finds or fetches it.
    pub fn obtain(place: &Place) -> Result<Self> {
        let tools = Toolset::obtain(place, packages::Wanted::Browser)?;
        let fonts =
            packages::unpacked(&place.packages, packages::Wanted::Browser).join("usr/share/fonts");
        Ok(Browser {
            tools,
            account: place.account.clone(),
            fonts,
        })
    }

    /// Which, and where.
    pub fn describe(&self) -> String {
        format!(
            "Chromium {} in {}",
            self.tools.version,
            self.tools.bin.display()
        )
    }

    /// Starts it with everything it writes in `folder`, which must be such that the services' user can enter it.
    /// Certificates whose key has one of these hashes (base64 of SHA-256 of the SPKI) are taken as they are.
    pub fn start(&self, folder: &Path, trusted_keys: &str) -> Result<Running> {
        make_folder(folder, 0o755)?;
        self.account.give(folder)?;
        let config = folder.join("fonts.conf");
        let text = format!(
            "<fontconfig><dir>{}</dir><dir>/usr/share/fonts</dir><cachedir>{}</cachedir></fontconfig>\n",
            self.fonts.display(),
            folder.join("fonts").display()
        );
        fs::write(&config, text).doing(|| format!("write {}", config.display()))?;
        let log = folder.join("log");
        let _ = fs::remove_file(&log);
        let output = open_log(&log)?;
        let mut command = self.tools.command(PROGRAM, "KILL", &self.account);
        command.env("HOME", folder).env("FONTCONFIG_FILE", &config);
        // It shows pages of ours only, and its sandbox needs rights that a container does not give.
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
            "--ignore-certificate-errors-spki-list={trusted_keys}"
        ));
        command
            .arg("about:blank")
            .stderr(output.try_clone().doing(|| "share a log".into())?)
            .stdout(output);
        let mut process = Process::spawn(command, "KILL")?;
        let deadline = Instant::now() + START_TIMEOUT;
        loop {
            let said = fs::read_to_string(&log).unwrap_or_default();
            // The line is whole once its end is there.
            let listening = said
                .split_inclusive('\n')
                .filter(|line| line.ends_with('\n'));
            let address = listening
                .filter_map(|line| line.strip_prefix("DevTools listening on "))
                .next();
            if let Some(address) = address {
                return Ok(Running {
                    devtools: address.trim().to_owned(),
                    _process: process,
                });
            }
            if process.ended().is_some() || Instant::now() > deadline {
                return Err(DevError::new(format!("the browser did not start:\n{said}")));
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}
