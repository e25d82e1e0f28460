//! Conversations: chats at a terminal and in a script, and what `tail` sees of them.

use std::{
    io::{BufRead, BufReader},
    sync::Arc,
};

use blindpipe_client::{
    Agent, Content,
    agent::{ApprovalDraft, Context, Question},
};
use tokio::task::JoinSet;

use crate::support::{Home, piped, run};

/// An agent of the person of `home` that runs in this process: it answers in pieces, asks a
/// question, or repeats.
async fn agent(home: &Home, name: &str) -> JoinSet<blindpipe_client::Result<()>> {
    let builder = home.new_agent(name).await;
    let agent: Agent = builder
        .on_message(answer)
        .on_answer("colour", async |ctx: Context| {
            let answer = ctx.answer().cloned();
            let answer = answer.and_then(|it| it.choice.or(it.text));
            ctx.reply(format!("chosen: {}", answer.unwrap_or_default()))
                .await
        })
        .on_decision("pay", async |ctx: Context| {
            let outcome = ctx.decision().map(|it| it.outcome);
            ctx.reply(format!("{outcome:?}")).await
        })
        .build();
    let agent = Arc::new(agent);
    let mut running = JoinSet::new();
    running.spawn(async move { agent.run_until_stopped().await });
    running
}

async fn answer(ctx: Context) -> blindpipe_client::Result<()> {
    match ctx.text() {
        "pieces" => {
            let mut stream = ctx.stream()?;
            for piece in ["one ", "two ", "\x1b[31mred"] {
                stream.write(piece).await;
                stream.flush().await;
            }
            stream.end().await.map(drop)
        }
        "ask" => {
            let question = Question {
                tag: "colour".to_owned(),
                text: "Which colour?".to_owned(),
                choices: vec!["red".to_owned(), "blue".to_owned()],
                ..Question::default()
            };
            ctx.ask(question).await.map(drop)
        }
        "name" => {
            let question = Question {
                tag: "colour".to_owned(),
                text: "Which name?".to_owned(),
                ..Question::default()
            };
            ctx.ask(question).await.map(drop)
        }
        "pay" => {
            let arguments = Content::from_iter([("euro".to_owned(), 5.into())]);
            let draft = ApprovalDraft {
                text: Some("Pay?".to_owned()),
                ..ApprovalDraft::new("pay", arguments)
            };
            ctx.approve(&draft).await.map(drop)
        }
        text => ctx.reply(format!("You said: {text}")).await.map(drop),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_person_talks_at_a_terminal_and_answers_a_question() {
    let home = Home::with_person().await;
    let _agent = agent(&home, "parrot").await;
    let mut terminal = home.terminal(&["chat", "parrot"]);
    terminal.exp_string("Ctrl-D ends.").expect("a socket");
    terminal.send_line("hello").expect("a terminal");
    terminal.exp_string("You said: hello").expect("an answer");
    terminal.send_line("pieces").expect("a terminal");
    // The agent's text does not command the terminal.
    terminal
        .exp_string("one two [31mred")
        .expect("an answer in pieces");
    terminal.send_line("ask").expect("a terminal");
    terminal.exp_string("2. blue").expect("a question");
    terminal.send_line("2").expect("a terminal");
    terminal.exp_string("chosen: blue").expect("an answer");
    terminal.send_line("name").expect("a terminal");
    terminal.exp_string("next line answers").expect("a hint");
    terminal.send_line("Ada").expect("a terminal");
    terminal.exp_string("chosen: Ada").expect("an answer");
    for (word, outcome) in [("yes", "Approved"), ("no", "Denied")] {
        terminal.send_line("pay").expect("a terminal");
        terminal.exp_string("euro: 5").expect("what is asked");
        terminal.exp_string("`no` refuses").expect("a hint");
        terminal.send_line(word).expect("a terminal");
        terminal.exp_string(outcome).expect("the agent acts");
    }
    terminal.send_control('d').expect("a terminal");
    terminal.exp_eof().expect("an end");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_script_talks_by_lines() {
    let home = Home::with_person().await;
    let _agent = agent(&home, "parrot").await;
    let chat = home.command(&["--json", "chat", "parrot"]);
    let answers = run(chat, "first\nsecond\n").items();
    let texts: Vec<_> = answers
        .iter()
        .map(|it| it["content"]["text"].as_str().expect("text"))
        .collect();
    assert_eq!(texts, ["You said: first", "You said: second"]);
    let answer = run(
        home.command(&["send", "parrot", "--wait", "60"]),
        "from stdin\n",
    );
    assert!(answer.done().contains("You said: from stdin"));
    run(home.command(&["--json", "send", "parrot"]), "\n").refused(2);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_is_tailed_while_another_process_sends() {
    let home = Home::with_person().await;
    let _agent = agent(&home, "parrot").await;
    home.json(&["send", "parrot", "before", "--wait", "60"])
        .item();
    let mut tail = piped(home.command(&["--json", "tail", "parrot", "-n", "1"]));
    let lines = BufReader::new(tail.stdout.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| {
        let line = line.expect("a line");
        serde_json::from_str::<serde_json::Value>(&line).expect("JSON")
    });
    let last = lines.next().expect("the last message");
    assert_eq!(last["content"]["text"], "You said: before");
    home.json(&["send", "parrot", "now"]).item();
    let mut texts = Vec::new();
    while texts.len() < 2 {
        let text = lines.next().expect("a message")["content"]["text"].clone();
        if text.as_str().is_some_and(|text| text.ends_with("now")) {
            texts.push(text);
        }
    }
    assert_eq!(texts, ["now", "You said: now"]);
    tail.kill().expect("a process");
    tail.wait().expect("its end");
}
