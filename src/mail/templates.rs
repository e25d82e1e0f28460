//! THE MAILS: a row per mail, with the values that its template shows. A template is a file
//! `<name>.<language>.txt`: a line `Subject: ...`, an empty line, the text. `{{name}}` stands for a
//! value. The built-in files are compiled in; those of `MAIL_TEMPLATES` take their place.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    sync::Arc,
};

/// The language of those whose own is not there.
const DEFAULT_LANGUAGE: &str = "en";

macro_rules! mails {
    ($($(#[doc = $doc:literal])+ $mail:ident = $name:literal, $needed:expr, $more:expr;)+) => {
        /// A mail.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum MailKind { $($(#[doc = $doc])+ $mail),+ }

        impl MailKind {
            /// Every mail, in the order of the table.
            const ALL: &'static [MailKind] = &[$(MailKind::$mail),+];

            /// Its name in the names of files, the values that its text must show, and those that
            /// it may show.
            const fn row(self) -> (&'static str, &'static [&'static str], &'static [&'static str]) {
                match self { $(MailKind::$mail => ($name, $needed, $more)),+ }
            }

            /// The mail's name.
            pub const fn name(self) -> &'static str {
                self.row().0
            }
        }

        /// The built-in files: (name, content).
        const BUILT_IN: &[(&str, &str)] = &[
            $((concat!($name, ".en.txt"), include_str!(concat!("templates/", $name, ".en.txt"))),
              (concat!($name, ".de.txt"), include_str!(concat!("templates/", $name, ".de.txt"))),)+
            ("words.en.txt", include_str!("templates/words.en.txt")),
            ("words.de.txt", include_str!("templates/words.de.txt")),
        ];
    };
}

mails! {
    /// A code to register.
    CodeRegister = "code_register", &["code"], &[];
    /// A code to log in.
    CodeLogin = "code_login", &["code"], &[];
    /// A code to set a new password.
    CodeReset = "code_reset", &["code"], &[];
    /// A code that proves a new address.
    CodeAddress = "code_address", &["code"], &[];
    /// A login on a device that was not known.
    NewDevice = "new_device", &[], &["device", "time"];
    /// A passkey was added.
    PasskeyAdded = "passkey_added", &[], &["time"];
    /// The password was changed or reset.
    PasswordChanged = "password_changed", &[], &["time", "added"];
    /// A device was revoked.
    DeviceRevoked = "device_revoked", &[], &["time", "added"];
    /// An agent was made.
    AgentMade = "agent_made", &[], &["time"];
    /// The token of an agent was regenerated.
    TokenRegenerated = "token_regenerated", &[], &["time"];
    /// Somebody asked for another address. It goes to the present one.
    AddressAsked = "address_asked", &[], &["time"];
    /// The address was changed. It goes to the one before.
    AddressChanged = "address_changed", &[], &["time"];
}

/// The words of `words.<language>.txt`, which values of the mails are made of: a line `name: word`
/// for each.
const WORDS: [&str; 1] = ["nameless"];

/// A piece of a template.
enum Piece {
    Text(String),
    Value(&'static str),
}

struct Template {
    subject: String,
    text: Vec<Piece>,
}

/// The templates and words of a language.
#[derive(Clone, Default)]
struct Language {
    mails: HashMap<&'static str, Arc<Template>>,
    words: Arc<HashMap<&'static str, String>>,
}

/// A mail that is ready to be sent.
#[derive(Debug, PartialEq, Eq)]
pub struct RenderedMail {
    pub subject: String,
    pub text: String,
}

/// The templates of all languages. Clones share them.
#[derive(Clone)]
pub struct Templates(Arc<BTreeMap<String, Language>>);

impl Templates {
    /// The built-in templates, and those of the operator's folder in their place. Otherwise all
    /// faults of all files.
    pub fn load(folder: Option<&Path>) -> Result<Self, Vec<String>> {
        let (mut languages, mut faults) = (BTreeMap::new(), Vec::new());
        for (file, content) in BUILT_IN {
            put(&mut languages, file, content, &mut faults);
        }
        for (file, content) in folder.map_or_else(Vec::new, |folder| read(folder, &mut faults)) {
            put(&mut languages, &file, &content, &mut faults);
        }
        if faults.is_empty() {
            Ok(Templates(Arc::new(languages)))
        } else {
            Err(faults)
        }
    }

    /// The language of a locale: of the whole tag, else of its first part, else English. Its
    /// missing templates are English too.
    fn of<T>(&self, locale: &str, pick: impl Fn(&Language) -> Option<T>) -> Option<T> {
        let tag = locale.to_lowercase().replace('_', "-");
        let first = tag.split('-').next().unwrap_or_default();
        let tags = [tag.as_str(), first, DEFAULT_LANGUAGE];
        tags.iter().find_map(|tag| pick(self.0.get(*tag)?))
    }

    /// Writes a mail. A value that is not given is empty.
    pub fn write(&self, mail: MailKind, locale: &str, values: &[(&str, &str)]) -> RenderedMail {
        let template = self.of(locale, |language| language.mails.get(mail.name()).cloned());
        let Some(template) = template else {
            return RenderedMail {
                subject: String::new(),
                text: String::new(),
            };
        };
        let value = |name: &str| values.iter().find(|(given, _)| *given == name);
        let pieces = template.text.iter().map(|piece| match piece {
            Piece::Text(text) => text.as_str(),
            Piece::Value(name) => value(name).map_or("", |(_, value)| *value),
        });
        RenderedMail {
            subject: template.subject.clone(),
            text: pieces.collect(),
        }
    }

    /// A word of a language.
    pub fn word(&self, locale: &str, name: &str) -> String {
        let word = self.of(locale, |language| language.words.get(name).cloned());
        word.unwrap_or_else(|| name.to_owned())
    }
}

/// The files of the operator's folder. Hidden ones are the platform's own, as in a mounted
/// `ConfigMap`.
fn read(folder: &Path, faults: &mut Vec<String>) -> Vec<(String, String)> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => {
            faults.push(format!("cannot be read: {error}"));
            return Vec::new();
        }
    };
    let mut files = Vec::new();
    for entry in entries.flatten() {
        let file = entry.file_name().to_string_lossy().into_owned();
        if file.starts_with('.') {
            continue;
        }
        match fs::read_to_string(entry.path()) {
            Ok(content) => files.push((file, content)),
            Err(error) => faults.push(format!("{file}: cannot be read as text: {error}")),
        }
    }
    files.sort();
    files
}

/// Reads a file into its language, or notes its fault.
fn put(
    languages: &mut BTreeMap<String, Language>,
    file: &str,
    content: &str,
    faults: &mut Vec<String>,
) {
    if let Err(fault) = try_put(languages, file, content) {
        faults.push(format!("{file}: {fault}"));
    }
}

fn try_put(
    languages: &mut BTreeMap<String, Language>,
    file: &str,
    content: &str,
) -> Result<(), String> {
    let is_tag = |tag: &&str| {
        let is_part =
            |part: &str| part.len() > 1 && part.bytes().all(|c| c.is_ascii_alphanumeric());
        tag.split('-').all(is_part)
    };
    let parts = file
        .strip_suffix(".txt")
        .and_then(|name| name.split_once('.'));
    let (name, language) = parts
        .filter(|(_, language)| is_tag(language))
        .ok_or("is not named <mail>.<language>.txt")?;
    let language = languages.entry(language.to_lowercase()).or_default();
    if name == "words" {
        language.words = Arc::new(words(content)?);
        return Ok(());
    }
    let mail = MailKind::ALL.iter().find(|mail| mail.name() == name);
    let mail = mail.ok_or_else(|| format!("there is no mail `{name}`"))?;
    language
        .mails
        .insert(mail.name(), Arc::new(template(*mail, content)?));
    Ok(())
}

fn words(content: &str) -> Result<HashMap<&'static str, String>, String> {
    let mut words = HashMap::new();
    for line in content.lines().filter(|line| !line.trim().is_empty()) {
        let (name, word) = line
            .split_once(':')
            .ok_or_else(|| format!("`{line}` has no colon"))?;
        let name = WORDS.iter().find(|known| **known == name.trim());
        let name = name.ok_or_else(|| format!("there is no word `{line}`"))?;
        words.insert(*name, word.trim().to_owned());
    }
    match WORDS.iter().find(|name| !words.contains_key(*name)) {
        Some(missing) => Err(format!("the word `{missing}` is missing")),
        None => Ok(words),
    }
}

fn template(mail: MailKind, content: &str) -> Result<Template, String> {
    let content = content.replace("\r\n", "\n");
    let head = content
        .strip_prefix("Subject: ")
        .and_then(|rest| rest.split_once("\n\n"));
    let (subject, text) = head.ok_or("does not begin with `Subject: ...` and an empty line")?;
    if subject.trim().is_empty() || subject.contains('\n') || subject.contains("{{") {
        return Err("its subject must be a line of plain text".to_owned());
    }
    let text = pieces(mail, text)?;
    let shows = |name: &str| {
        text.iter()
            .any(|piece| matches!(piece, Piece::Value(of) if *of == name))
    };
    match mail.row().1.iter().find(|name| !shows(name)) {
        Some(missing) => Err(format!("does not show {{{{{missing}}}}}")),
        None => Ok(Template {
            subject: subject.trim().to_owned(),
            text,
        }),
    }
}

/// Splits a text at its values.
fn pieces(mail: MailKind, text: &str) -> Result<Vec<Piece>, String> {
    let (_, needed, more) = mail.row();
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{{") {
        let (name, after) = after.split_once("}}").ok_or("has a {{ without its }}")?;
        let known = needed
            .iter()
            .chain(more)
            .find(|known| **known == name.trim());
        let known = known.ok_or_else(|| format!("this mail has no value {{{{{name}}}}}"))?;
        pieces.extend([Piece::Text(before.to_owned()), Piece::Value(known)]);
        rest = after;
    }
    if rest.contains("}}") {
        return Err("has a }} without its {{".to_owned());
    }
    pieces.push(Piece::Text(rest.to_owned()));
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The faults of a folder with these files.
    fn faults_of(name: &str, files: &[(&str, &str)]) -> Vec<String> {
        let folder = std::env::temp_dir().join(format!("mails-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        for (file, content) in files {
            fs::write(folder.join(file), content).expect("written");
        }
        let loaded = Templates::load(Some(&folder));
        fs::remove_dir_all(&folder).expect("removed");
        loaded.err().unwrap_or_default()
    }

    #[test]
    fn every_mail_is_built_in_in_english_and_german() {
        let templates = Templates::load(None).expect("no fault");
        for mail in MailKind::ALL {
            let values = [("code", "12345678"), ("time", "now")];
            let [english, german] =
                ["en-GB", "de_CH"].map(|tag| templates.write(*mail, tag, &values));
            assert_ne!(english, german, "{mail:?}");
            assert_eq!(templates.write(*mail, "fr", &values), english, "{mail:?}");
            assert!(!english.text.contains("{{"), "{mail:?}");
        }
        assert_eq!(templates.word("de", "nameless"), "ohne Namen");
    }

    #[test]
    fn a_file_of_the_operator_takes_the_place_of_ours() {
        let folder = std::env::temp_dir().join(format!("mails-{}-own", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let own = "Subject: Votre code\n\nC'est {{ code }}.\n";
        fs::write(folder.join("code_login.fr.txt"), own).expect("written");
        fs::write(folder.join("..data"), "of the platform").expect("written");
        let templates = Templates::load(Some(&folder)).expect("no fault");
        fs::remove_dir_all(&folder).expect("removed");
        let written = templates.write(MailKind::CodeLogin, "fr-CA", &[("code", "{{code}}")]);
        let expected = RenderedMail {
            subject: "Votre code".to_owned(),
            text: "C'est {{code}}.\n".to_owned(),
        };
        assert_eq!(written, expected);
        let english = templates.write(MailKind::CodeReset, "fr", &[("code", "1")]);
        assert_eq!(english.subject, "Your code to set a new password");
    }

    #[test]
    fn every_fault_of_every_file_is_found_at_the_start() {
        let sound = "Subject: x\n\n{{code}}";
        for (n, (file, content, fault)) in [
            ("code_login.en.txt", "{{code}}", "does not begin"),
            (
                "code_login.en.txt",
                "Subject: x\n\nno code",
                "does not show {{code}}",
            ),
            (
                "code_login.en.txt",
                "Subject: x\n\n{{code}} {{name}}",
                "no value {{name}}",
            ),
            (
                "code_login.en.txt",
                "Subject: x\n\n{{code",
                "without its }}",
            ),
            (
                "code_login.en.txt",
                "Subject: x\n\n{{code}} }}",
                "without its {{",
            ),
            (
                "code_login.en.txt",
                "Subject: {{code}}\n\n{{code}}",
                "plain text",
            ),
            ("code_lgin.en.txt", sound, "there is no mail `code_lgin`"),
            ("code_login.txt", sound, "is not named"),
            ("code_login.en.html", sound, "is not named"),
            ("words.fr.txt", "", "is missing"),
            ("words.fr.txt", "namless: x", "there is no word"),
        ]
        .into_iter()
        .enumerate()
        {
            let files = [("code_reset.de.txt", sound), (file, content)];
            let faults = faults_of(&n.to_string(), &files);
            assert!(
                matches!(&faults[..], [only] if only.contains(fault) && only.contains(file)),
                "{fault}: {faults:?}"
            );
        }
        let two = [("a.en.txt", sound), ("b.en.txt", sound)];
        assert_eq!(faults_of("two", &two).len(), 2);
        let missing = Templates::load(Some(Path::new("/nowhere/at/all"))).err();
        assert_eq!(missing.map(|faults| faults.len()), Some(1));
    }
}
