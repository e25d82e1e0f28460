//! Codes in mails that the nodes have written as files.

use std::{fs, path::Path};

/// The code in the mail to `address`; none before the mail has come.
pub fn find_code(mails: &Path, address: &str) -> Option<String> {
    let files = fs::read_dir(mails)
        .ok()?
        .flatten()
        .map(|entry| entry.path());
    let mails = files.filter(|path| path.extension().is_some_and(|extension| extension == "eml"));
    mails
        .filter_map(|path| fs::read_to_string(path).ok())
        .find_map(|mail| read_code(&mail, address))
}

fn read_code(mail: &str, address: &str) -> Option<String> {
    let mut lines = mail.lines().map(str::trim);
    lines
        .by_ref()
        .take_while(|line| !line.is_empty())
        .find(|line| line.starts_with("To:") && line.contains(address))?;
    let is_code = |line: &&str| line.len() == 8 && line.bytes().all(|byte| byte.is_ascii_digit());
    lines.find(is_code).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_is_read_only_from_the_right_mail() {
        let mail = "From: x@y\r\nSubject: 11111111\r\nTo: ada@example.com\r\n\r\nYour code:\r\n\r\n12345678\r\n\r\nBye 99999999\r\n";
        assert_eq!(
            read_code(mail, "ada@example.com").as_deref(),
            Some("12345678")
        );
        assert_eq!(read_code(mail, "bob@example.com"), None);
        assert_eq!(
            read_code("To: ada@example.com\n\nwritten half", "ada@example.com"),
            None
        );
    }
}
