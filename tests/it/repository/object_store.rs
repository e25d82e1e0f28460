//! The settings of the object store, which a node checks before it connects to anything.

use super::operations::run;

const SECRET: &str = "c2VjcmV0IG9mIHRoZSBzdG9yZQ";

/// The exit code and standard error of a node with these settings besides the right ones.
fn serve(own: &[(&str, &str)]) -> (Option<i32>, String) {
    let key = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let ring = format!("k:{key}");
    let right = [
        // Nobody listens there, so no node starts.
        ("DATABASE_URL", "postgresql://127.0.0.1:1/x"),
        ("REDIS_URL", "redis://127.0.0.1:1"),
        ("SERVER_SECRET", key),
        ("ACCESS_TOKEN_KEYS", &ring),
        ("MAIL_URL", "file:///x"),
        ("PROFILE", "dev"),
        ("LISTEN_ADDR", "127.0.0.1:0"),
        ("ADMIN_ADDR", "127.0.0.1:0"),
        ("TRUSTED_PROXIES", "127.0.0.1/32"),
        ("RP_ORIGIN", "https://localhost"),
    ];
    run("serve", &[right.as_slice(), own].concat())
}

#[test]
fn a_store_that_is_set_up_wrongly_is_refused_at_the_start() {
    let url = |url| ("OBJECT_STORE_URL", url);
    let endpoint = |url| ("OBJECT_STORE_ENDPOINT", url);
    let key = ("OBJECT_STORE_ACCESS_KEY", "account");
    let secret = ("OBJECT_STORE_SECRET", SECRET);
    let direct = ("OBJECT_STORE_DIRECT", "true");
    for (settings, fault) in [
        (&[url("ftp://files")][..], "OBJECT_STORE_URL: is neither"),
        (&[url("file://files")], "OBJECT_STORE_URL: must name"),
        (&[url("s3:///files")], "OBJECT_STORE_URL: names no bucket"),
        (
            &[url("file:///x"), direct],
            "OBJECT_STORE_DIRECT: a local folder",
        ),
        (
            &[url("s3://b"), key],
            "OBJECT_STORE_ACCESS_KEY and OBJECT_STORE_SECRET: ",
        ),
        (
            &[url("s3://b"), secret],
            "OBJECT_STORE_ACCESS_KEY and OBJECT_STORE_SECRET: ",
        ),
        (
            &[url("s3://b"), endpoint("minio:9000")],
            "OBJECT_STORE_ENDPOINT: is no http",
        ),
        (&[url("gs://b"), secret], "OBJECT_STORE_SECRET: "),
        (&[url("azure://c")], "OBJECT_STORE_ACCESS_KEY: required"),
        (
            &[url("azure://c"), key, ("OBJECT_STORE_SECRET", "?")],
            "OBJECT_STORE_SECRET: ",
        ),
    ] {
        let (code, said) = serve(settings);
        assert_eq!(code, Some(1), "{settings:?}");
        assert!(said.contains(fault), "{settings:?}: {said}");
        assert!(!said.contains(SECRET), "a secret is repeated: {said}");
    }
}

#[test]
fn each_kind_of_store_can_be_set_up() {
    let key = ("OBJECT_STORE_ACCESS_KEY", "account");
    let secret = ("OBJECT_STORE_SECRET", "c2VjcmV0");
    let direct = ("OBJECT_STORE_DIRECT", "true");
    for settings in [
        &[
            ("OBJECT_STORE_URL", "s3://files/production"),
            key,
            secret,
            direct,
        ][..],
        &[("OBJECT_STORE_URL", "s3://files")],
        &[("OBJECT_STORE_URL", "gs://files/production"), direct],
        &[
            ("OBJECT_STORE_URL", "gs://files/production"),
            ("OBJECT_STORE_ENDPOINT", "https://storage.example.org"),
        ],
        &[
            ("OBJECT_STORE_URL", "azure://files/production"),
            key,
            secret,
        ],
        &[("OBJECT_STORE_URL", "azure://files"), key],
    ] {
        let (code, said) = serve(settings);
        assert_eq!(code, Some(1), "it has no database");
        assert!(!said.contains("OBJECT_STORE"), "{settings:?}: {said}");
        assert!(!said.contains("fault(s)"), "{settings:?}: {said}");
    }
}
