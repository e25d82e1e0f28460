//! A store is a log: each change is added, nothing that was kept is lost, and it stays small.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::unix::fs::{MetadataExt, symlink},
    process::{Command, Stdio},
};

use uuid::Uuid;

use super::*;

/// A folder of a test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = env::temp_dir().join(format!("blindpipe-{name}-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }

    fn pins(&self) -> PathBuf {
        self.0.join("pins")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn id(number: u32) -> ConversationId {
    ConversationId(Uuid::from_u128(number.into()))
}

fn marks(epochs: impl IntoIterator<Item = (u32, u64)>) -> Entries {
    let marks = epochs.into_iter();
    let marks = marks.map(|(number, epoch)| (id(number), json!({ "epoch": epoch, "time": 1 })));
    Entries {
        marks: marks.collect(),
        ..Entries::default()
    }
}

fn loaded(store: &impl Store) -> Entries {
    let mut all = Entries::default();
    store
        .load_entries(&mut |part| all.extend(part))
        .expect("a store");
    all
}

#[test]
fn the_last_entry_of_a_name_counts() {
    let folder = Folder::new("last-entry");
    let store = FileStore::new(folder.pins());
    assert!(loaded(&store).is_empty());
    let mut first = marks([(1, 1), (2, 1)]);
    first
        .pins
        .insert("02aa".to_owned(), json!({ "keys": ["a b", "ü\n"] }));
    store.save_entries(&first).expect("kept");
    store.save_entries(&marks([(1, 2)])).expect("kept");
    assert_eq!(
        fs::metadata(folder.pins()).expect("a file").mode() & 0o777,
        0o600
    );
    first.extend(marks([(1, 2)]));
    assert_eq!(loaded(&FileStore::new(folder.pins())), first);
}

#[test]
fn a_torn_line_is_cut_and_a_damaged_one_is_left_out() {
    let folder = Folder::new("torn");
    let store = FileStore::new(folder.pins());
    store
        .save_entries(&marks([(1, 1), (2, 1), (3, 1)]))
        .expect("kept");
    let whole = fs::read_to_string(folder.pins()).expect("a file");
    let damaged = whole.replace(&format!("marks {}", id(2)), &format!("marks {}", id(9)));
    fs::write(folder.pins(), damaged + &whole[..20]).expect("written");
    assert_eq!(loaded(&store), marks([(1, 1), (3, 1)]));
    // The next line does not stand behind half of another.
    store.save_entries(&marks([(4, 1)])).expect("kept");
    assert_eq!(loaded(&store), marks([(1, 1), (3, 1), (4, 1)]));
}

#[test]
fn the_document_of_an_earlier_version_is_converted() {
    let folder = Folder::new("document");
    let mut entries = marks([(1, 1)]);
    entries
        .pins
        .insert("02aa".to_owned(), json!({ "keys": [] }));
    fs::write(folder.pins(), entries.clone().document()).expect("written");
    let store = FileStore::new(folder.pins());
    assert_eq!(
        [loaded(&store), loaded(&store)],
        [entries.clone(), entries.clone()]
    );
    store.save_entries(&marks([(2, 7)])).expect("kept");
    entries.extend(marks([(2, 7)]));
    assert_eq!(loaded(&store), entries);
    assert_eq!(
        fs::metadata(folder.pins()).expect("a file").mode() & 0o777,
        0o600
    );
}

#[test]
fn a_log_is_written_anew_before_it_is_large() {
    let folder = Folder::new("large");
    let store = FileStore::new(folder.pins()).with_free_bytes(4_096);
    for epoch in 0..1_000 {
        let number = 2 + u32::try_from(epoch % 10).expect("a digit");
        store
            .save_entries(&marks([(1, epoch), (number, epoch)]))
            .expect("kept");
        assert!(fs::metadata(folder.pins()).expect("a file").len() < 8_192);
    }
    let all = loaded(&FileStore::new(folder.pins()));
    assert_eq!(
        (all.marks.len(), &all.marks[&id(1)]["epoch"]),
        (11, &json!(999))
    );
}

#[test]
fn a_store_of_a_document_keeps_entries_too() {
    let store = MemoryStore::default();
    assert!(loaded(&store).is_empty());
    store.save_entries(&marks([(1, 1), (2, 1)])).expect("kept");
    store.save_entries(&marks([(1, 2)])).expect("kept");
    assert_eq!(loaded(&store), marks([(1, 2), (2, 1)]));
}

#[test]
fn nothing_is_written_through_a_link() {
    let folder = Folder::new("link");
    let others = folder.0.join("others");
    fs::write(&others, "theirs").expect("written");
    let store = FileStore::new(folder.pins());
    symlink(&others, folder.pins()).expect("a link");
    assert!(store.save_entries(&marks([(1, 1)])).is_err());
    fs::remove_file(folder.pins()).expect("removed");
    let beside = folder.0.join(format!("pins.{}.tmp", std::process::id()));
    symlink(&others, beside).expect("a link");
    for document in ["first", "second"] {
        store.save(document.as_bytes()).expect("stored");
        let loaded = store.load().expect("a store");
        assert_eq!(loaded.as_deref(), Some(document.as_bytes()));
    }
    assert_eq!(fs::read_to_string(&others).expect("read"), "theirs");
}

const WRITES_TO: &str = "BLINDPIPE_TEST_WRITES_TO";
const CONVERSATIONS: u32 = 100;

/// The process that the next test kills: it says each number once it is kept.
#[test]
fn writes_until_it_is_killed() {
    let Ok(place) = env::var(WRITES_TO) else {
        return;
    };
    let (path, first) = place.split_once(' ').expect("a path and a number");
    let store = FileStore::new(path).with_free_bytes(16_384);
    loaded(&store);
    for number in first.parse::<u32>().expect("a number").. {
        store
            .save_entries(&marks([(number % CONVERSATIONS, number.into())]))
            .expect("kept");
        // Not through the test's own capture, which would keep it back.
        writeln!(std::io::stderr(), "kept {number}").expect("told");
    }
}

#[test]
fn a_process_that_is_killed_loses_nothing_that_was_kept() {
    let folder = Folder::new("killed");
    // The path stands before a space.
    assert!(!folder.pins().display().to_string().contains(' '));
    let mut last = 0;
    for _ in 0..4 {
        let mut writer = Command::new(env::current_exe().expect("this program"))
            .args(["writes_until_it_is_killed", "--nocapture"])
            .env(
                WRITES_TO,
                format!("{} {}", folder.pins().display(), last + 1),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a process");
        let told = BufReader::new(writer.stderr.take().expect("a pipe")).lines();
        let enough = last + 300;
        for line in told.map_while(Result::ok) {
            let number = line.strip_prefix("kept ").and_then(|it| it.parse().ok());
            last = number.unwrap_or(last);
            if last == enough {
                writer.kill().expect("killed");
            }
        }
        writer.wait().expect("an end");
        let kept = loaded(&FileStore::new(folder.pins()));
        for number in (last - CONVERSATIONS + 1)..=last {
            let epoch = kept.marks[&id(number % CONVERSATIONS)]["epoch"].as_u64();
            assert!(epoch >= Some(number.into()), "{number} was kept");
        }
    }
}

#[test]
fn torn_and_old_lines_of_what_was_handled_are_left_out() {
    let folder = Folder::new("handled");
    let store = FileStore::new(folder.pins());
    assert!(store.load_handled(0).expect("none").is_empty());
    let handled = [5, 7, 8].map(|at| Handled {
        at,
        conversation_id: id(7),
        sender: Principal::User([1; 16]),
        client_message_id: [2; 16],
    });
    store.add_handled(&handled).expect("added");
    let path = folder.0.join("pins.handled");
    let torn = &handled[0].line()[..40];
    let text = fs::read_to_string(&path).expect("a file") + torn;
    fs::write(&path, text).expect("written");
    assert_eq!(store.load_handled(7).expect("two"), handled[1..]);
    store.add_handled(&handled[..1]).expect("added");
    assert_eq!(store.load_handled(0).expect("three").len(), 3);
}
