use std::os::unix::fs::PermissionsExt;

use serde_json::json;
use uuid::Uuid;

use super::*;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("blindpipe-{name}-{}", new_name());
        Self(std::env::temp_dir().join(name))
    }

    /// The folder as another process has it.
    fn process(&self) -> SharedFolder {
        SharedFolder::new(&self.0)
    }

    fn log(&self, of: ConversationId) -> PathBuf {
        self.0.join("conversations").join(format!("{of}.log"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn pins(names: &[&str]) -> Entries {
    let entry = |name: &&str| ((*name).to_owned(), json!({ "speaks": true }));
    Entries {
        pins: names.iter().map(entry).collect(),
        ..Entries::default()
    }
}

fn marks(of: ConversationId, epoch: u32) -> Entries {
    Entries {
        marks: [(of, json!({ "epoch": epoch, "time": 7 }))].into(),
        ..Entries::default()
    }
}

fn talk(number: u128) -> ConversationId {
    ConversationId(Uuid::from_u128(number))
}

fn message(at: u64, of: ConversationId) -> Handled {
    Handled {
        at,
        conversation_id: of,
        sender: Principal::User([1; 16]),
        client_message_id: u128::from(at).to_be_bytes(),
    }
}

#[test]
fn a_process_is_told_what_others_have_saved() -> io::Result<()> {
    let folder = Folder::new("told");
    let (one, other) = (folder.process(), folder.process());
    assert_eq!(one.load(0)?, News::default());
    assert_eq!(other.load(0)?, News::default());
    assert_eq!(one.save(&pins(&["ada", "bob"]))?, Saved::Kept);
    assert_eq!(other.save(&pins(&["bob", "eve"]))?, Saved::Changed);
    assert_eq!(other.news(None)?.entries, pins(&["ada", "bob"]));
    assert_eq!(other.save(&pins(&["bob", "eve"]))?, Saved::Kept);
    assert_eq!(one.news(None)?.entries, pins(&["bob", "eve"]));
    assert_eq!(one.news(None)?, News::default());
    // The marks of a conversation that this process has not entered come after a refusal.
    assert_eq!(one.save(&marks(talk(1), 3))?, Saved::Kept);
    assert_eq!(other.news(None)?, News::default());
    assert_eq!(other.save(&marks(talk(1), 2))?, Saved::Changed);
    assert_eq!(other.news(None)?.entries, marks(talk(1), 3));
    assert_eq!(other.save(&marks(talk(1), 4))?, Saved::Kept);
    let third = folder.process().load(0)?;
    assert_eq!(third.entries.marks, marks(talk(1), 4).marks);
    assert_eq!(third.entries.pins, pins(&["ada", "bob", "eve"]).pins);
    for path in [folder.0.join("pins.log"), folder.log(talk(1))] {
        assert_eq!(fs::metadata(path)?.permissions().mode() & 0o077, 0);
    }
    Ok(())
}

#[test]
fn a_conversation_that_comes_back_brings_what_was_handled() -> io::Result<()> {
    let folder = Folder::new("back");
    let (one, other) = (folder.process(), folder.process());
    assert!(one.news(Some(talk(1)))?.came_back);
    assert!(!one.news(Some(talk(1)))?.came_back);
    one.add_handled(&[message(5, talk(1)), message(6, talk(2))])?;
    let news = other.news(Some(talk(1)))?;
    assert!(news.came_back);
    assert_eq!(news.handled, [message(5, talk(1))]);
    other.add_handled(&[message(7, talk(1))])?;
    let news = one.news(Some(talk(1)))?;
    assert!(news.came_back);
    assert_eq!(news.handled, [message(7, talk(1))]);
    let all = folder.process().load(6)?;
    assert_eq!(all.handled, [message(6, talk(2)), message(7, talk(1))]);
    Ok(())
}

#[test]
fn a_torn_line_is_cut_off_and_its_place_is_used_again() -> io::Result<()> {
    let folder = Folder::new("torn");
    let (one, other) = (folder.process(), folder.process());
    one.add_handled(&[message(5, talk(1))])?;
    let path = folder.log(talk(1));
    let whole = fs::read(&path)?;
    let torn = &whole[whole.len() / 2..whole.len() - 3];
    fs::write(&path, [&whole, torn].concat())?;
    assert_eq!(other.news(Some(talk(1)))?.handled, [message(5, talk(1))]);
    one.add_handled(&[message(6, talk(1))])?;
    assert_eq!(other.news(Some(talk(1)))?.handled, [message(6, talk(1))]);
    // Of a process that died at the first line, nothing is left.
    fs::write(folder.log(talk(2)), "{\"format\":1,\"i")?;
    assert!(other.news(Some(talk(2)))?.handled.is_empty());
    fs::write(folder.log(talk(3)), "{\"format\":2,\"id\":\"later\"}\n")?;
    assert!(other.news(Some(talk(3))).is_err(), "a newer format");
    Ok(())
}

#[test]
fn a_long_log_is_written_anew_while_others_read_it() -> io::Result<()> {
    let folder = Folder::new("long");
    let (one, other) = (folder.process(), folder.process());
    other.news(Some(talk(1)))?;
    for at in 0..200 {
        one.add_handled(&[message(at, talk(1))])?;
        one.save(&pins(&["ada"]))?;
    }
    one.save(&marks(talk(1), 3))?;
    let length = fs::metadata(folder.log(talk(1)))?.len();
    let third = folder.process();
    let loaded = third.load(150)?;
    assert_eq!(loaded.handled.len(), 50);
    assert!(fs::metadata(folder.log(talk(1)))?.len() < length / 3);
    assert!(fs::metadata(folder.0.join("pins.log"))?.len() < 1_000);
    // Others read the new log as a whole, and the owner is still the same.
    let news = other.news(Some(talk(1)))?;
    assert!(!news.came_back);
    assert_eq!(news.handled.len(), 50);
    assert_eq!(news.entries.marks, marks(talk(1), 3).marks);
    assert_eq!(news.entries.pins, pins(&["ada"]).pins);
    one.add_handled(&[message(200, talk(1))])?;
    assert_eq!(third.news(Some(talk(1)))?.handled, [message(200, talk(1))]);
    assert_eq!(other.news(Some(talk(1)))?.handled.len(), 1);
    Ok(())
}

#[test]
fn a_log_that_grows_in_one_run_is_written_anew() -> io::Result<()> {
    let folder = Folder::new("grows");
    let one = folder.process();
    let now = Clock::default().now_ms();
    let batch = |first: u64| -> Vec<_> {
        let all = (0..4_000).map(|at| message(first + at, talk(1)));
        all.collect()
    };
    for n in 0..7 {
        one.add_handled(&batch(n * 4_000))?;
    }
    for n in 0..3 {
        one.add_handled(&batch(now + n * 4_000))?;
    }
    let length = fs::metadata(folder.log(talk(1)))?.len();
    assert!(length < 1_500_000, "{length}");
    let all = folder.process().load(0)?.handled;
    let young: Vec<_> = all.into_iter().filter(|it| it.at >= now).collect();
    assert_eq!(young.len(), 12_000, "31 days are kept, however many");
    assert_eq!(young.last(), Some(&message(now + 11_999, talk(1))));
    Ok(())
}
