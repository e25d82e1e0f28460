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

    fn learned(&self) -> PathBuf {
        self.0.join("pins.learned")
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

fn loaded(store: &(impl Store + ?Sized)) -> Entries {
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
    let mut document = json!({});
    entries.clone().put_into(&mut document);
    fs::write(folder.pins(), document.to_string()).expect("written");
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
fn a_person_s_document_keeps_what_else_is_in_it() {
    let store = MemoryStore::default();
    let agent = Principal::Agent([2; 16]);
    let document = json!({
        "session": {}, "pins": null, "marks": null, "keys": "private",
        "consents": { "approved": [], "begun": [[agent.to_hex(), "one"]] },
    });
    store.save(document.to_string().as_bytes()).expect("saved");
    store.save_entries(&marks([(1, 1)])).expect("kept");
    let mut known = marks([(1, 1)]);
    known.begun.insert(begun_name(agent, "one"));
    assert_eq!(loaded(&store), known);
    let document = store.load().expect("a store").expect("a document");
    let document: Value = serde_json::from_slice(&document).expect("JSON");
    assert_eq!(document["keys"], "private");
    assert_eq!(document["consents"], json!({ "approved": [] }));
    // An agent takes no such document for its entries.
    let folder = Folder::new("persons");
    fs::write(folder.pins(), document.to_string()).expect("written");
    let store = FileStore::new(folder.pins());
    assert!(store.load_entries(&mut drop).is_err());
    assert_eq!(
        store.load().expect("a file"),
        Some(document.to_string().into())
    );
}

/// The log of a person's client, as a process of its own has it.
fn learned(folder: &Folder, owner: &str) -> FileStore {
    FileStore::of(folder.learned(), owner)
}

fn told(store: &FileStore) -> Entries {
    let mut all = Entries::default();
    store.news(&mut |part| all.extend(part)).expect("a store");
    all
}

#[test]
fn processes_of_a_person_are_told_what_others_have_learned() {
    let folder = Folder::new("told");
    let document = FileStore::new(folder.pins());
    let one = document.learned("ada/laptop").expect("a log");
    let other = learned(&folder, "ada/laptop").with_free_bytes(4_096);
    assert!(loaded(&other).is_empty() && told(&other).is_empty());
    one.save_entries(&marks([(1, 1)])).expect("kept");
    assert_eq!(told(&other), marks([(1, 1)]));
    assert!(told(&other).is_empty());
    other.save_entries(&marks([(2, 1)])).expect("kept");
    assert!(told(&other).is_empty(), "its own");
    // A process dies as it writes. The next one cuts that off.
    let path = folder.learned();
    let whole = fs::read(&path).expect("a file");
    fs::write(&path, [&whole, &whole[..40]].concat()).expect("written");
    assert!(told(&other).is_empty());
    one.save_entries(&marks([(3, 1)])).expect("kept");
    assert_eq!(told(&other), marks([(3, 1)]));
    // Written anew by one process, it is read as a whole by another.
    let third = learned(&folder, "ada/laptop");
    assert_eq!(loaded(&third), marks([(1, 1), (2, 1), (3, 1)]));
    for epoch in 2..200 {
        other.save_entries(&marks([(2, epoch)])).expect("kept");
    }
    assert!(fs::metadata(&path).expect("a file").len() < 8_192);
    assert_eq!(told(&third), marks([(1, 1), (2, 199), (3, 1)]));
    assert!(told(&third).is_empty() && told(&other).is_empty());
    // Another person who signs in there knows nothing of it.
    let next = learned(&folder, "bob/laptop");
    assert!(loaded(&next).is_empty());
    next.save_entries(&marks([(9, 9)])).expect("kept");
    assert_eq!(loaded(&next), marks([(9, 9)]));
    assert!(told(&third).is_empty());
    assert_eq!(fs::metadata(&path).expect("a file").mode() & 0o777, 0o600);
    document.remove().expect("removed");
    assert!(told(&third).is_empty() && !path.exists());
}

/// Bytes that this thread has written to files.
fn written() -> u64 {
    let counts = fs::read_to_string("/proc/thread-self/io").expect("counts");
    let line = counts.lines().find_map(|line| line.strip_prefix("wchar: "));
    line.expect("a count").parse().expect("a number")
}

#[test]
fn what_is_written_for_an_event_does_not_grow_with_the_entries() {
    const EVENTS: u32 = 100;
    let of_events = [100, 10_000].map(|count| {
        let folder = Folder::new(&format!("flat-{count}"));
        let store = learned(&folder, "ada/laptop");
        store
            .save_entries(&marks((0..count).map(|number| (number, 1))))
            .expect("kept");
        let before = written();
        for number in 0..EVENTS {
            let _lock = store.lock(Part::Document).expect("a lock");
            assert!(told(&store).marks.len() <= count as usize);
            store.save_entries(&marks([(number, 2)])).expect("kept");
        }
        let of_events = written() - before;
        assert_eq!(loaded(&store).marks.len(), count as usize);
        // With the times at which the log is written anew.
        let (before, mut of_lines) = (written(), 0);
        for epoch in 3..3 + 60_000 / u64::from(count) {
            let size = || fs::metadata(folder.learned()).expect("a file").len();
            let (size_before, all) = (size(), marks((0..count).map(|number| (number, epoch))));
            store.save_entries(&all).expect("kept");
            of_lines = of_lines.max(size().saturating_sub(size_before));
        }
        let epochs = 60_000 / u64::from(count);
        assert!(written() - before < 3 * epochs * of_lines);
        of_events
    });
    assert_eq!(of_events[0], of_events[1]);
    assert!(of_events[1] < 150 * u64::from(EVENTS), "{of_events:?}");
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
/// The numbers of a second process begin here.
const SECOND: u32 = 1_000_000;

/// The process that the next tests kill: it says each number once it is kept.
#[test]
fn writes_until_it_is_killed() {
    let Ok(place) = env::var(WRITES_TO) else {
        return;
    };
    let (path, first) = place.split_once(' ').expect("a path and a number");
    let store = FileStore::new(path).with_free_bytes(16_384);
    loaded(&store);
    for number in first.parse::<u32>().expect("a number").. {
        let lock = store.lock(Part::Document).expect("a lock");
        told(&store);
        store
            .save_entries(&marks([(of_number(number), number.into())]))
            .expect("kept");
        drop(lock);
        // Not through the test's own capture, which would keep it back.
        writeln!(std::io::stderr(), "kept {number}").expect("told");
    }
}

/// Each process has conversations of its own.
const fn of_number(number: u32) -> u32 {
    number / SECOND * SECOND + number % CONVERSATIONS
}

/// Kills a process after 300 more numbers; answers the last that it has kept.
fn kill_after(path: &Path, last: u32) -> u32 {
    // The path stands before a space.
    assert!(!path.display().to_string().contains(' '));
    let mut writer = Command::new(env::current_exe().expect("this program"))
        .args(["writes_until_it_is_killed", "--nocapture"])
        .env(WRITES_TO, format!("{} {}", path.display(), last + 1))
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a process");
    let told = BufReader::new(writer.stderr.take().expect("a pipe")).lines();
    let (mut kept, enough) = (last, last + 300);
    for line in told.map_while(Result::ok) {
        let number = line.strip_prefix("kept ").and_then(|it| it.parse().ok());
        kept = number.unwrap_or(kept);
        if kept == enough {
            writer.kill().expect("killed");
        }
    }
    writer.wait().expect("an end");
    kept
}

fn assert_kept(path: &Path, last: u32) {
    let kept = loaded(&FileStore::new(path));
    for number in (last - CONVERSATIONS + 1)..=last {
        let epoch = kept.marks[&id(of_number(number))]["epoch"].as_u64();
        assert!(epoch >= Some(number.into()), "{number} was kept");
    }
}

#[test]
fn a_process_that_is_killed_loses_nothing_that_was_kept() {
    let folder = Folder::new("killed");
    let mut last = 0;
    for _ in 0..4 {
        last = kill_after(&folder.pins(), last);
        assert_kept(&folder.pins(), last);
    }
}

#[test]
fn of_two_processes_that_are_killed_neither_loses_what_was_kept() {
    let folder = Folder::new("both-killed");
    let (pins, mut last) = (&folder.pins(), [0, SECOND]);
    for _ in 0..2 {
        last = std::thread::scope(|scope| {
            let both = last.map(|last| scope.spawn(move || kill_after(pins, last)));
            both.map(|killed| killed.join().expect("killed"))
        });
        last.iter().for_each(|last| assert_kept(pins, *last));
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

#[test]
fn handled_messages_of_before_31_days_leave_the_file_in_a_run() {
    let folder = Folder::new("handled-run");
    let store = FileStore::new(folder.pins());
    let now = crate::Clock::default().now_ms();
    let batch = |at: u64| -> Vec<_> {
        let all = (0..2_500_u32).map(|number| Handled {
            at,
            conversation_id: id(7),
            sender: Principal::User([1; 16]),
            client_message_id: Uuid::from_u128(number.into()).into_bytes(),
        });
        all.collect()
    };
    let old = now - 32 * 24 * 3_600_000;
    for at in [old, old, old, old, now, now, now, now] {
        store.add_handled(&batch(at)).expect("added");
    }
    let text = fs::read_to_string(folder.0.join("pins.handled")).expect("a file");
    assert_eq!(text.lines().count(), 10_000, "what is too old has left");
    assert_eq!(store.load_handled(0).expect("read").len(), 10_000);
}
