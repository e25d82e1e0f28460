//! `blindpipe dev autobahn`: the WebSocket suite of the Autobahn project against the handshake, bounds and codec of the
//! nodes, through [`echo`](crate::gateway::echo).
//!
//! The suite is written in Python 2, which current systems do not have any more: the interpreter is fetched from the last
//! Debian that had it, and the suite with what it imports is put into it from PyPI.

use std::{
    collections::BTreeMap,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::{
    packages::{self, Wanted},
    place::{Account, Place, make_folder},
    process::Process,
    terminal::say,
    tools::Toolset,
    trouble::{Context, DevError, Result},
};
use crate::gateway;

/// The interpreter.
pub const PYTHON: &str = "python2.7";

/// The suite, and the last release for Python 2 of everything that it imports. Its optional accelerators need a compiler and
/// are left out.
const PINNED: [&str; 29] = [
    "autobahntestsuite==0.8.2",
    "argparse==1.4.0",
    "attrs==21.4.0",
    "autobahn==0.10.9",
    "Automat==20.2.0",
    "cffi==1.15.1",
    "constantly==15.1.0",
    "cryptography==3.3.2",
    "enum34==1.1.10",
    "hyperlink==21.0.0",
    "idna==2.10",
    "incremental==21.3.0",
    "ipaddress==1.0.23",
    "Jinja2==2.11.3",
    "klein==20.6.0",
    "linecache2==1.0.0",
    "MarkupSafe==1.1.1",
    "pycparser==2.21",
    "PyHamcrest==1.10.1",
    "pyOpenSSL==21.0.0",
    "six==1.17.0",
    "traceback2==1.4.0",
    "Tubes==0.2.1",
    "Twisted==20.3.0",
    "txaio==2.1.0",
    "typing==3.10.0.0",
    "unittest2==1.1.0",
    "Werkzeug==1.0.1",
    "zope.interface==5.5.2",
];

/// Compression is off on purpose, and these send messages of 4 MB and more, where ours have an end at 1 MB.
const EXCLUDED: [&str; 10] = [
    "12.*", "13.*", "9.1.4", "9.1.5", "9.1.6", "9.2.4", "9.2.5", "9.2.6", "9.3.*", "9.4.*",
];
/// What must be among the results: framing, pings, reserved bits, opcodes, fragments, UTF-8, closing, limits, chopping.
const SECTIONS: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 9, 10];
/// What is not a failure.
const PASSED: [&str; 3] = ["OK", "NON-STRICT", "INFORMATIONAL"];

/// Serves the echo until the process ends.
pub async fn echo(port: u16) -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = listener.doing(|| format!("listen on port {port}"))?;
    say(format!(
        "An echo is on ws://127.0.0.1:{port}/ until Ctrl-C."
    ));
    gateway::echo::serve(listener, CancellationToken::new()).await;
    Ok(())
}

/// Runs the suite and prints what came of it; a case that failed is trouble.
pub async fn run(dev: &Path, packages: Option<&Path>) -> Result<()> {
    let place = Place::at(dev)?.with_packages(packages);
    let suite = Suite::obtain(&place)?;
    let listener = TcpListener::bind(("127.0.0.1", 0))
        .await
        .doing(|| "listen".into())?;
    let address = listener.local_addr().doing(|| "find the own port".into())?;
    let stop = CancellationToken::new();
    let done = stop.clone();
    let outcome = tokio::task::spawn_blocking(move || {
        // Whatever comes of it, the echo ends with it.
        let _done = done.drop_guard();
        suite.run(address)
    });
    gateway::echo::serve(listener, stop).await;
    let report = outcome.await.doing(|| "run the suite".into())??;
    let cases = read(&report)?;
    print(&tally(&cases));
    say(format!(
        "{} cases; the full report is {}.",
        cases.len(),
        report.with_file_name("index.html").display()
    ));
    verdict(&cases)
}

struct Suite {
    python: Toolset,
    account: Account,
    folder: PathBuf,
}

impl Suite {
    fn obtain(place: &Place) -> Result<Self> {
        let python = Toolset::obtain(place, Wanted::Python2)?;
        let suite = Suite {
            python,
            account: Account::launcher()?,
            folder: place.dev.join("autobahn"),
        };
        let root = packages::unpacked(&place.packages, Wanted::Python2);
        // The folder that this interpreter looks into by itself.
        let libraries = root.join("usr/local/lib/python2.7");
        let installed = libraries.join("dist-packages");
        if !installed.exists() {
            suite.install(
                &root.join("usr/share/python-wheels"),
                &libraries.join("partial"),
            )?;
            fs::rename(libraries.join("partial"), &installed)
                .doing(|| "put the suite in place".into())?;
        }
        Ok(suite)
    }

    /// pip comes as a wheel, with others that it imports, and runs out of them.
    fn install(&self, wheels: &Path, target: &Path) -> Result<()> {
        say("Fetching the suite from PyPI.");
        let _ = fs::remove_dir_all(target);
        let wheels = fs::read_dir(wheels).doing(|| "find pip".into())?;
        let path = std::env::join_paths(wheels.flatten().map(|wheel| wheel.path()));
        let mut pip = self.python.command(PYTHON, "TERM", &self.account);
        pip.env("PYTHONPATH", path.doing(|| "name pip's parts".into())?);
        pip.args([
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-deps",
            "--target",
        ]);
        pip.arg(target).args(PINNED);
        succeed("fetch the suite", pip)
    }

    /// Runs all cases against `address`; the path of the report.
    fn run(&self, address: SocketAddr) -> Result<PathBuf> {
        let reports = self.folder.join("reports");
        let _ = fs::remove_dir_all(&reports);
        make_folder(&reports, 0o755)?;
        let spec = self.folder.join("spec.json");
        let text = json!({
            "outdir": reports,
            "servers": [{ "agent": "blindpipe", "url": format!("ws://{address}/") }],
            "cases": ["*"], "exclude-cases": EXCLUDED, "exclude-agent-cases": {},
        });
        fs::write(&spec, text.to_string()).doing(|| "write what is to be run".into())?;
        say("Running the suite; it takes about half a minute.");
        let mut wstest = self.python.command(PYTHON, "TERM", &self.account);
        wstest
            .args([
                "-m",
                "autobahntestsuite.wstest",
                "--mode",
                "fuzzingclient",
                "--spec",
            ])
            .arg(&spec);
        succeed("run the suite", wstest)?;
        Ok(reports.join("index.json"))
    }
}

fn succeed(what: &str, command: std::process::Command) -> Result<()> {
    let output = Process::output(command)?;
    if output.status.success() {
        return Ok(());
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let lines: Vec<_> = text.lines().collect();
    Err(DevError::new(format!(
        "could not {what}:\n{}",
        lines[lines.len().saturating_sub(8)..].join("\n")
    )))
}

/// What the suite says of a case: of what was answered, and of how the connection was closed.
#[derive(Deserialize)]
struct Case {
    behavior: String,
    #[serde(rename = "behaviorClose")]
    behavior_close: String,
}

/// By its name, `6.4.2`.
type Cases = BTreeMap<String, Case>;

fn read(report: &Path) -> Result<Cases> {
    let text = fs::read_to_string(report).doing(|| format!("read {}", report.display()))?;
    let agents: BTreeMap<String, Cases> =
        serde_json::from_str(&text).doing(|| "read the report".into())?;
    Ok(agents.into_values().next().unwrap_or_default())
}

impl Case {
    fn passed(&self) -> bool {
        [&self.behavior, &self.behavior_close]
            .iter()
            .all(|said| PASSED.contains(&said.as_str()))
    }
}

fn section(case: &str) -> u32 {
    case.split('.')
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or_default()
}

/// Per section: how many are of each of [`PASSED`], and how many failed.
fn tally(cases: &Cases) -> BTreeMap<u32, [usize; 4]> {
    let mut sections: BTreeMap<u32, [usize; 4]> = BTreeMap::new();
    for (name, case) in cases {
        let known = PASSED
            .iter()
            .position(|known| *known == case.behavior)
            .filter(|_| case.passed());
        sections.entry(section(name)).or_default()[known.unwrap_or(PASSED.len())] += 1;
    }
    sections
}

fn print(sections: &BTreeMap<u32, [usize; 4]>) {
    let row = |cells: [String; 5]| {
        let [section, rest @ ..] = cells;
        say(format!(
            "{section:<8}{}",
            rest.map(|cell| format!("{cell:>14}")).concat()
        ));
    };
    row(["section", PASSED[0], PASSED[1], PASSED[2], "FAILED"].map(str::to_owned));
    for (section, [ok, lax, told, failed]) in sections {
        row([*section as usize, *ok, *lax, *told, *failed].map(|n| n.to_string()));
    }
}

fn verdict(cases: &Cases) -> Result<()> {
    let missing: Vec<_> = SECTIONS
        .iter()
        .filter(|wanted| !cases.keys().any(|case| section(case) == **wanted))
        .collect();
    if !missing.is_empty() {
        return Err(DevError::new(format!(
            "the suite did not run the sections {missing:?}"
        )));
    }
    let failed = cases.iter().filter(|(_, case)| !case.passed());
    let failed: Vec<_> = failed
        .map(|(name, case)| {
            format!(
                "  {name}: {}, closing {}",
                case.behavior, case.behavior_close
            )
        })
        .collect();
    if failed.is_empty() {
        Ok(())
    } else {
        Err(DevError::new(format!("failed:\n{}", failed.join("\n"))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cases(change: Option<(&str, &str, &str)>) -> Cases {
        let case = |behavior: &str, close: &str| Case {
            behavior: behavior.to_owned(),
            behavior_close: close.to_owned(),
        };
        let mut cases: Cases = SECTIONS
            .iter()
            .map(|section| (format!("{section}.1.1"), case("OK", "OK")))
            .collect();
        cases.insert("6.4.1".to_owned(), case("NON-STRICT", "OK"));
        cases
            .extend(change.map(|(name, behavior, close)| (name.to_owned(), case(behavior, close))));
        cases
    }

    #[test]
    fn what_passed_is_counted_and_what_did_not_is_named() {
        let sound = cases(Some(("7.1.6", "INFORMATIONAL", "INFORMATIONAL")));
        verdict(&sound).expect("all passed");
        let sections = tally(&sound);
        assert_eq!(
            (sections[&6], sections[&7], sections[&10]),
            ([1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 0, 0])
        );
        for (behavior, close) in [("FAILED", "OK"), ("OK", "UNCLEAN"), ("UNIMPLEMENTED", "OK")] {
            let internal = cases(Some(("10.1.1", behavior, close)));
            assert!(
                verdict(&internal)
                    .expect_err("one failed")
                    .to_string()
                    .contains("10.1.1")
            );
            assert_eq!(tally(&internal)[&10], [0, 0, 0, 1]);
        }
    }

    #[test]
    fn a_suite_that_ran_nothing_has_not_passed() {
        assert!(verdict(&Cases::new()).is_err());
        let mut some = cases(None);
        some.retain(|name, _| section(name) != 6);
        assert!(
            verdict(&some)
                .expect_err("no UTF-8")
                .to_string()
                .contains('6')
        );
    }
}
