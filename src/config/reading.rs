//! Reads settings from the environment, and gathers their faults.

use std::fmt;

use super::{Config, values::Setting};

/// A variable and a check of its text, for a setting that another module parses.
pub type TextCheck = (&'static str, fn(&str) -> Result<(), String>);

/// A rule over several settings. It adds a line per fault.
pub type Rule = fn(&Config, &mut Vec<String>);

/// The checks of other modules.
#[derive(Clone, Copy, Default)]
pub struct Checks {
    /// Checks of texts that other modules parse.
    pub texts: &'static [TextCheck],
    /// Rules over several settings; they are asked once each setting can be read.
    pub rules: &'static [Rule],
}

macro_rules! settings {
    ($($(#[doc = $help:literal])+ $field:ident: $kind:ty = $variable:literal, $default:expr;)+) => {
        /// The settings of one node.
        #[derive(Clone, Debug)]
        pub struct Config {
            $($(#[doc = $help])+ pub $field: $kind,)+
        }

        impl Config {
            /// Reads all settings through `get` (the environment, in production) and applies the
            /// `checks` of other modules. `NAME_FILE` names a file with the value of `NAME`, for
            /// mounted secrets.
            pub fn read(
                get: impl Fn(&str) -> Option<String>,
                checks: Checks,
            ) -> Result<Self, Faults> {
                let (mut faults, texts) = (Vec::new(), checks.texts);
                $(let $field = read_one::<$kind>($variable, $default, &get, texts, &mut faults);)+
                match ($($field,)+) {
                    ($(Some($field),)+) if faults.is_empty() => {
                        let config = Config { $($field),+ };
                        checks.rules.iter().for_each(|rule| rule(&config, &mut faults));
                        if faults.is_empty() { Ok(config) } else { Err(Faults(faults)) }
                    }
                    _ => Err(Faults(faults)),
                }
            }
        }

        /// Every setting: (variable, default or `None` if it is required, help).
        pub const SETTINGS: &[(&str, Option<&str>, &str)] = &[$(($variable, $default, concat!($($help),+))),+];
    };
}

pub(super) use settings;

/// Reads a setting. A fault is added to the list.
pub(super) fn read_one<T: Setting>(
    name: &str,
    default: Option<&str>,
    get: &impl Fn(&str) -> Option<String>,
    checks: &[TextCheck],
    faults: &mut Vec<String>,
) -> Option<T> {
    let file = format!("{name}_FILE");
    let given = match (get(name), get(&file)) {
        // TLS_CERT and TLS_KEY are no settings, so a name that ends in _FILE cannot collide here.
        (Some(value), _) => Some(value),
        (None, Some(path)) => match std::fs::read_to_string(&path) {
            Ok(text) => Some(text.trim_end().to_owned()),
            Err(error) => {
                faults.push(format!("{file}: cannot read {path}: {error}"));
                return None;
            }
        },
        (None, None) => None,
    };
    let Some(text) = given.as_deref().or(default) else {
        faults.push(format!("{name}: must be set"));
        return None;
    };
    let mut checks = checks.iter().filter(|(variable, _)| *variable == name);
    checks
        .try_for_each(|(_, check)| check(text))
        .and_then(|()| T::read(text))
        .map_err(|fault| faults.push(format!("{name}: {fault}")))
        .ok()
}

/// The faults of the settings, a line each.
#[derive(Debug)]
pub struct Faults(pub(super) Vec<String>);

impl Faults {
    /// The faults, each as `NAME: what is wrong`.
    pub fn lines(&self) -> &[String] {
        &self.0
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(to, "the settings have {} fault(s):", self.0.len())?;
        self.0
            .iter()
            .try_for_each(|fault| writeln!(to, "  {fault}"))
    }
}
