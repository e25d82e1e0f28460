//! Public calls seal under random salts and nonces: one that is used twice gives contents away.

use std::{fs, path::Path};

/// A backup that exists is opened with the salt that stands beside it; it seals nothing.
const OPENS: &str = "derive";

fn sources(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let texts = paths.flat_map(|path| match path.is_dir() {
        true if path.ends_with("vectors") => Vec::new(),
        true => sources(&path),
        false => vec![fs::read_to_string(path).expect("a source")],
    });
    texts.collect()
}

#[test]
fn nobody_outside_names_a_salt_or_a_nonce() {
    let sources = sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
    let mut seals = 0;
    for source in &sources {
        for function in source.split("pub fn ").skip(1) {
            let (head, _) = function.split_once('{').expect("a body");
            let (name, parameters) = head.split_once('(').expect("parameters");
            let name = name.split('<').next().expect("a name");
            let names_chance = parameters.contains("salt:") || parameters.contains("nonce");
            assert!(!names_chance || name == OPENS, "{name}({parameters}");
            seals += usize::from(name == "seal");
        }
    }
    assert_eq!(seals, 4, "the envelope, the file, the backup and the wrap");
}
