//! The place of the store, as `OBJECT_STORE_URL` names it, and the faults of its settings.

use std::path::PathBuf;

use object_store::path::Path;
use secrecy::ExposeSecret;

use super::backend::Backend;
use crate::config::Config;

/// `OBJECT_STORE_URL`, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Location {
    Folder(PathBuf),
    S3(String, Path),
    Google(String, Path),
    Azure(String, Path),
}

impl std::str::FromStr for Location {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fault = || "is neither file:///folder, s3://bucket/prefix, gs://… nor azure://…";
        let (scheme, rest) = text.split_once("://").ok_or_else(fault)?;
        if scheme == "file" {
            let folder = PathBuf::from(rest);
            return match folder.is_absolute() {
                true => Ok(Location::Folder(folder)),
                false => Err("must name an absolute folder: file:///folder".to_owned()),
            };
        }
        let (bucket, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        if bucket.is_empty() {
            return Err("names no bucket".to_owned());
        }
        let (bucket, prefix) = (bucket.to_owned(), Path::from(prefix));
        match scheme {
            "s3" => Ok(Location::S3(bucket, prefix)),
            "gs" => Ok(Location::Google(bucket, prefix)),
            "azure" => Ok(Location::Azure(bucket, prefix)),
            _ => Err(fault().to_owned()),
        }
    }
}

/// Checks `OBJECT_STORE_URL`; the error describes its fault.
pub fn check_url(text: &str) -> Result<(), String> {
    text.parse::<Location>().map(drop)
}

/// Checks the settings of the store, and adds a line per fault. Nothing is sent to the store.
pub fn check_settings(config: &Config, faults: &mut Vec<String>) {
    if config.object_store_direct.0 && config.object_store_url.starts_with("file:") {
        faults.push("OBJECT_STORE_DIRECT: a local folder signs no addresses".into());
    }
    faults.extend(faults_of_bucket(config));
}

/// The faults of a bucket's settings together, a line each.
fn faults_of_bucket(config: &Config) -> Vec<String> {
    let Ok(location) = config.object_store_url.parse::<Location>() else {
        return Vec::new();
    };
    let mut faults = Vec::new();
    let mut fault = |text: &str| faults.push(text.to_owned());
    let (endpoint, key) = (
        &config.object_store_endpoint,
        &config.object_store_access_key,
    );
    let secret = config.object_store_secret.expose_secret();
    let is_address = |text: &str| {
        let url = reqwest::Url::parse(text);
        url.is_ok_and(|url| ["http", "https"].contains(&url.scheme()) && url.has_host())
    };
    if !endpoint.is_empty() && !is_address(endpoint) {
        fault("OBJECT_STORE_ENDPOINT: is no http:// or https:// address");
    }
    match &location {
        Location::Folder(_) => return faults,
        Location::S3(..) if key.is_empty() != secret.is_empty() => {
            fault("OBJECT_STORE_ACCESS_KEY and OBJECT_STORE_SECRET: give both or neither");
        }
        Location::Azure(..) if key.is_empty() => {
            fault("OBJECT_STORE_ACCESS_KEY: required for azure://, the name of the account");
        }
        _ => {}
    }
    if faults.is_empty() && Backend::of_bucket(config, location).is_err() {
        // The library's error may repeat a part of the secret.
        let text =
            "OBJECT_STORE_SECRET: has not the form of this provider's secret, see configuration.md";
        faults.push(text.to_owned());
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_url_names_a_folder_or_a_bucket() {
        let read = |text: &str| text.parse::<Location>();
        assert_eq!(read("file:///a/b"), Ok(Location::Folder("/a/b".into())));
        let s3 = |prefix: &str| Location::S3("files".to_owned(), Path::from(prefix));
        assert_eq!(read("s3://files"), Ok(s3("")));
        assert_eq!(read("s3://files/a/b/"), Ok(s3("a/b")));
        assert!(matches!(read("gs://b"), Ok(Location::Google(..))));
        assert!(matches!(read("azure://b"), Ok(Location::Azure(..))));
        for bad in ["", "/a", "file://a", "s3://", "s3:///a", "ftp://a"] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
