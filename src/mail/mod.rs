//! Mail: SMTP in production, `.eml` files in the dev profile.

mod templates;

use std::time::Duration;

use lettre::{
    AsyncFileTransport, AsyncSmtpTransport, AsyncTransport, Message, Tokio1Executor,
    message::{Mailbox, header::ContentType},
};
use reqwest::Url;
use secrecy::ExposeSecret;

pub use self::templates::MailKind;
use self::templates::Templates;
use crate::config::{Config, Profile};

/// The failure of a mail. It never contains the recipient.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Deadline of a whole delivery.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// Writes plain mails from templates, and sends them.
#[derive(Clone)]
pub struct Mailer {
    from: Mailbox,
    templates: Templates,
    transport: MailTransport,
}

#[derive(Clone)]
enum MailTransport {
    Smtp(AsyncSmtpTransport<Tokio1Executor>),
    Files(AsyncFileTransport<Tokio1Executor>),
}

/// Checks `MAIL_URL` and the files of `MAIL_TEMPLATES`, and adds a line per fault.
pub fn check_settings(config: &Config, faults: &mut Vec<String>) {
    let url = config.mail_url.expose_secret();
    if sends_password_in_the_clear(url) {
        faults.push("MAIL_URL: with a password it must be smtps:// or end in ?tls=required".into());
    }
    if config.profile == Profile::Production && url.starts_with("file:") {
        faults.push("MAIL_URL: mail to files is for the dev profile".into());
    }
    if let Err(broken) = Templates::load(config.mail_templates.as_deref()) {
        faults.extend(
            broken
                .into_iter()
                .map(|fault| format!("MAIL_TEMPLATES: {fault}")),
        );
    }
}

/// Whether a mail server's URL has a password that could travel without TLS.
fn sends_password_in_the_clear(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else {
        return false;
    };
    let required = url
        .query_pairs()
        .any(|(name, value)| name == "tls" && value == "required");
    url.password().is_some() && url.scheme() == "smtp" && !required
}

impl Mailer {
    /// A mailer for `MAIL_URL`, `MAIL_FROM` and `MAIL_TEMPLATES`.
    pub fn new(config: &Config) -> Result<Self, Failure> {
        let url = config.mail_url.expose_secret();
        let templates = Templates::load(config.mail_templates.as_deref());
        let transport = match url.strip_prefix("file://") {
            Some(folder) => {
                std::fs::create_dir_all(folder)?;
                MailTransport::Files(AsyncFileTransport::new(folder))
            }
            None => MailTransport::Smtp(
                AsyncSmtpTransport::<Tokio1Executor>::from_url(url)?
                    .timeout(Some(SEND_TIMEOUT))
                    .build(),
            ),
        };
        Ok(Mailer {
            from: config.mail_from.parse()?,
            templates: templates.map_err(|faults| faults.join("; "))?,
            transport,
        })
    }

    /// Connects and logs in, and sends nothing.
    pub async fn check(&self) -> Result<(), Failure> {
        if let MailTransport::Smtp(smtp) = &self.transport
            && !smtp.test_connection().await?
        {
            return Err("the mail server refuses the connection".into());
        }
        Ok(())
    }

    /// A word in the language of a locale, for the values of mails.
    pub fn word(&self, locale: &str, name: &str) -> String {
        self.templates.word(locale, name)
    }

    /// Writes a mail in the language of a locale, and sends it to the server or into a file.
    pub async fn send(
        &self,
        to: &str,
        locale: &str,
        kind: MailKind,
        values: &[(&str, &str)],
    ) -> Result<(), Failure> {
        let written = self.templates.write(kind, locale, values);
        let mail = Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to.parse()?))
            .subject(written.subject)
            .header(ContentType::TEXT_PLAIN)
            .body(written.text)?;
        match &self.transport {
            MailTransport::Smtp(smtp) => {
                // A server's refusal quotes the address, so only its number is reported.
                let sent = tokio::time::timeout(SEND_TIMEOUT, smtp.send(mail)).await?;
                sent.map_err(|error| match error.status() {
                    Some(code) => format!("the mail server answered {code}"),
                    None => "the mail server could not be reached".to_owned(),
                })?;
            }
            MailTransport::Files(files) => drop(files.send(mail).await?),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_to_a_mail_server_needs_tls() {
        for (url, clear) in [
            ("smtp://user:secret@mail.example.org", true),
            (
                "smtp://user:secret@mail.example.org:25?tls=opportunistic",
                true,
            ),
            (
                "smtp://user:secret@mail.example.org:587?tls=required",
                false,
            ),
            ("smtps://user:secret@mail.example.org", false),
            ("smtp://relay.internal", false),
            ("file:///var/mail", false),
        ] {
            assert_eq!(sends_password_in_the_clear(url), clear, "{url}");
        }
    }
}
