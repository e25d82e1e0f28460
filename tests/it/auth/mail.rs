//! Mail through a real mail server, by nodes that are processes of their own.

use std::{sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use reqwest::Method;
use serde_json::json;

use crate::support::{
    Answer, Caller, PASSWORD, ProcessNode, SMTP_PASSWORD, Secrecy, SmtpServer, User, World,
    free_port, psql, ulid,
};

fn address() -> String {
    format!("u{}@example.org", ulid().to_string().to_lowercase())
}

/// A mail server that does not listen yet, and a world whose nodes use it.
async fn world(secrecy: Secrecy, password: &str, trusting: bool) -> (SmtpServer, Arc<World>) {
    let folder = std::env::temp_dir().join(format!("blindpipe-smtp-{}", ulid()));
    let server = SmtpServer::new(&folder, free_port(), secrecy);
    let (url, ca) = (server.url(password), server.ca().display().to_string());
    let mut settings = vec![
        ("MAIL_URL", url.as_str()),
        ("MAIL_FROM", "Blindpipe <codes@example.org>"),
        (
            "LIMIT_OVERRIDES",
            "default_ip=1000/s,auth_register_ip=1000/s",
        ),
    ];
    if trusting {
        settings.push(("SSL_CERT_FILE", &ca));
    }
    let world = World::new(&settings).await;
    (server, world)
}

async fn node(world: &Arc<World>) -> (ProcessNode, Caller) {
    let node = ProcessNode::start_in(world).await;
    let caller = Caller::to(world, &node.base);
    (node, caller)
}

async fn send_code(caller: &Caller, email: &str) -> Answer {
    let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
    caller.post("/auth/send-code", body).await.expect(200)
}

async fn register(caller: &Caller, email: &str, code: &str) -> Answer {
    caller
        .post("/auth/register", User::registration(email, "x", code))
        .await
        .expect(201)
}

/// Waits until so many mails wait that were tried so often.
async fn until_waiting(world: &World, mails: usize, attempts: i32) {
    until(
        world,
        &format!("select 1 from job where kind = 'mail' and attempts >= {attempts}"),
        mails,
    )
    .await;
}

/// Waits until there are so many rows.
async fn until(world: &World, sql: &str, mails: usize) {
    for _ in 0..400 {
        let rows = psql(&world.database, sql).await;
        let found = rows
            .iter()
            .filter(|row| matches!(row, tokio_postgres::SimpleQueryMessage::Row(_)))
            .count();
        if found == mails {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("not {mails} rows: {sql}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_code_comes_by_tls_with_a_password() {
    for secrecy in [Secrecy::StartTls, Secrecy::Tls] {
        let (mut server, world) = world(secrecy, SMTP_PASSWORD, true).await;
        server.start().await;
        let (node, caller) = node(&world).await;
        let email = address();
        send_code(&caller, &email).await;
        let code = server.code(&email).await;
        let mail = server.taken().remove(0).text;
        for line in [
            "From: Blindpipe <codes@example.org>".to_owned(),
            format!("To: {email}"),
            "Subject: Your code to register".to_owned(),
        ] {
            assert!(
                mail.lines().any(|found| found.trim_end() == line),
                "{line} in {mail}"
            );
        }
        register(&caller, &email, &code).await;
        // The connection is kept for the next.
        let other = address();
        send_code(&caller, &other).await;
        server.code(&other).await;
        assert_eq!(server.connections(), 1);
        let log = node.log();
        for secret in [email.as_str(), code.as_str(), SMTP_PASSWORD] {
            assert!(!log.contains(secret), "{log}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_said_to_a_server_that_is_not_proven_or_does_not_know_us() {
    for (password, trusting) in [("wrong", true), (SMTP_PASSWORD, false)] {
        let (mut server, world) = world(Secrecy::StartTls, password, trusting).await;
        server.start().await;
        let (_node, caller) = node(&world).await;
        send_code(&caller, &address()).await;
        until_waiting(&world, 1, 2).await;
        assert!(server.connections() > 0);
        assert!(server.taken().is_empty());
    }
}

/// Row F17 of the faults.
#[tokio::test(flavor = "multi_thread")]
async fn a_mail_server_that_is_away_costs_no_code() {
    let (mut server, world) = world(Secrecy::StartTls, SMTP_PASSWORD, true).await;
    let (_node, caller) = node(&world).await;
    let emails: Vec<_> = (0..12).map(|_| address()).collect();
    for email in &emails {
        send_code(&caller, email).await;
    }
    until_waiting(&world, 12, 1).await;
    // Minutes pass, in which it is tried again and again.
    for attempts in 2..5 {
        world.advance(Duration::from_secs(60)).await;
        until_waiting(&world, 12, attempts).await;
    }
    server.start().await;
    for _ in 0..4 {
        // A mail that failed in this very moment waits for a while of its own. The job looks every
        // real second.
        world.advance(Duration::from_secs(60)).await;
        tokio::time::sleep(Duration::from_millis(1100)).await;
    }
    for email in &emails {
        let code = server.code(email).await;
        register(&caller, email, &code).await;
    }
    until_waiting(&world, 0, 0).await;

    // A code that died in the meantime is not mailed any more.
    server.stop();
    let late = address();
    send_code(&caller, &late).await;
    until_waiting(&world, 1, 1).await;
    world.advance(Duration::from_secs(601)).await;
    server.start().await;
    let live = address();
    send_code(&caller, &live).await;
    server.code(&live).await;
    assert!(server.taken().iter().all(|mail| mail.to != [late.as_str()]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_dies_with_a_mail_in_hand_leaves_it_to_another() {
    let (mut server, world) = world(Secrecy::StartTls, SMTP_PASSWORD, true).await;
    server.silence(true);
    server.start().await;
    let (mut first, caller) = node(&world).await;
    let email = address();
    send_code(&caller, &email).await;
    for _ in 0..400 {
        if server.connections() > 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    assert_eq!(server.connections(), 1);
    first.kill();
    server.silence(false);
    let (_second, caller) = node(&world).await;
    // Somebody else's mail goes out; the one in the dead node's hand is its own for a minute.
    let other = address();
    send_code(&caller, &other).await;
    server.code(&other).await;
    until_waiting(&world, 1, 0).await;
    assert_eq!(server.taken().len(), 1);
    world.advance(Duration::from_secs(61)).await;
    let code = server.code(&email).await;
    register(&caller, &email, &code).await;
    assert_eq!(server.taken().len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn two_nodes_send_each_mail_once() {
    let (mut server, world) = world(Secrecy::Tls, SMTP_PASSWORD, true).await;
    let ((_first, one), (_second, two)) = (node(&world).await, node(&world).await);
    let emails: Vec<_> = (0..40).map(|_| address()).collect();
    server.start().await;
    let calls = emails
        .iter()
        .enumerate()
        .map(|(n, email)| send_code(if n % 2 == 0 { &one } else { &two }, email));
    futures_util::future::join_all(calls).await;
    for email in &emails {
        server.code(email).await;
    }
    until_waiting(&world, 0, 0).await;
    let mut to: Vec<_> = server
        .taken()
        .into_iter()
        .flat_map(|mail| mail.to)
        .collect();
    to.sort();
    let mut expected = emails.clone();
    expected.sort();
    assert_eq!(to, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_notice_waits_for_a_server_that_is_away_and_a_login_does_not() {
    let (mut server, world) = world(Secrecy::StartTls, SMTP_PASSWORD, true).await;
    server.start().await;
    let (_node, caller) = node(&world).await;
    let email = address();
    send_code(&caller, &email).await;
    let code = server.code(&email).await;
    register(&caller, &email, &code).await;
    server.stop();
    let body = json!({ "email": email, "account_password": PASSWORD, "turnstile_token": "dev-pass",
        "device_id": "phone", "device_name": "Téléphone" });
    let login = caller.post("/auth/login", body).await.expect(200);
    assert_eq!(login.data()["is_new_device"], true);
    until(
        &world,
        "select 1 from job where kind = 'login_notice' and attempts >= 1",
        1,
    )
    .await;
    // A code is not held up by it.
    server.start().await;
    let other = address();
    send_code(&caller, &other).await;
    server.code(&other).await;
    for _ in 0..400 {
        if server.taken().len() == 3 {
            break;
        }
        world.advance(Duration::from_secs(10)).await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let taken = server.taken();
    let notice: Vec<_> = taken
        .iter()
        .filter(|mail| mail.text.contains("A login on a new device"))
        .collect();
    assert_eq!((taken.len(), notice.len()), (3, 1));
    assert_eq!(notice[0].to, [email]);
}

/// The bytes that quoted-printable stands for.
fn unquoted(text: &str) -> String {
    let joined = text.replace("=\r\n", "");
    let mut parts = joined.split('=');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at(2);
        bytes.push(u8::from_str_radix(hex, 16).expect("hex"));
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8(bytes).expect("text")
}

/// The subject and the text of a mail, as a person reads them.
fn read(mail: &str) -> (String, String) {
    let (head, body) = mail.split_once("\r\n\r\n").expect("a head");
    let subject = head.lines().find_map(|line| line.strip_prefix("Subject: "));
    let words = subject.expect("a subject").split_whitespace().map(|word| {
        let coded = word.strip_prefix("=?utf-8?b?");
        let coded = coded.and_then(|word| word.strip_suffix("?="));
        coded.map_or_else(
            || format!("{word} "),
            |word| String::from_utf8(BASE64.decode(word).expect("base64")).expect("text"),
        )
    });
    let subject: String = words.collect();
    let head = head.to_lowercase();
    let body = if head.contains("transfer-encoding: base64") {
        let bytes = BASE64.decode(body.replace("\r\n", "")).expect("base64");
        String::from_utf8(bytes).expect("text")
    } else if head.contains("transfer-encoding: quoted-printable") {
        unquoted(body)
    } else {
        body.to_owned()
    };
    (subject.trim().to_owned(), body.replace("\r\n", "\n"))
}

/// The mails to an address, in the order of their arrival, once there are so many.
async fn mails(server: &SmtpServer, email: &str, wanted: usize) -> Vec<(String, String)> {
    for _ in 0..800 {
        let taken = server.taken();
        let mine = taken.iter().filter(|mail| mail.to == [email]);
        let mine: Vec<_> = mine.map(|mail| read(&mail.text)).collect();
        if mine.len() >= wanted {
            return mine;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
    }
    panic!("fewer than {wanted} mails");
}

fn code_in(text: &str) -> String {
    let is_code = |line: &&str| line.len() == 8 && line.bytes().all(|byte| byte.is_ascii_digit());
    text.lines().find(is_code).expect("a code").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn mails_follow_the_locale_of_their_reader() {
    let (mut server, world) = world(Secrecy::StartTls, SMTP_PASSWORD, true).await;
    server.start().await;
    let (_node, caller) = node(&world).await;
    // Before there is an account, the request names the language.
    let (german, french) = (address(), address());
    for (email, accepted) in [(&german, "de-CH, en;q=0.5"), (&french, "fr")] {
        let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
        let call = caller.request(Method::POST, "/auth/send-code").json(&body);
        let call = call.header("accept-language", accepted);
        caller.send(call).await.expect(200);
    }
    let (subject, text) = mails(&server, &german, 1).await.remove(0);
    assert_eq!(subject, "Ihr Code zur Registrierung");
    assert!(text.contains("Er gilt zehn Minuten."), "{text}");
    let (subject, _) = mails(&server, &french, 1).await.remove(0);
    assert_eq!(subject, "Your code to register");

    let mut body = User::registration(&german, "zoe", &code_in(&text));
    body["device_locale"] = json!("de-AT");
    let answer = caller.post("/auth/register", body).await.expect(201);
    let user = User::signed_in(caller.clone(), german.clone(), &answer);
    // Afterwards the account does, whatever the request says.
    let log_in = async |name: &str| {
        let body = json!({
            "email": german, "account_password": PASSWORD, "turnstile_token": "dev-pass", "device_name": name,
        });
        caller.post("/auth/login", body).await.expect(200);
    };
    log_in("Küche").await;
    let (subject, text) = mails(&server, &german, 2).await.remove(1);
    assert_eq!(subject, "Anmeldung auf einem neuen Gerät");
    assert!(text.contains("Gerät: Küche\nZeit: 2"), "{text}");
    let body = json!({ "device_locale": "en-US" });
    user.patch("/users/me", body).await.expect(200);
    log_in("Kitchen").await;
    let (subject, text) = mails(&server, &german, 3).await.remove(2);
    assert_eq!(subject, "A login on a new device");
    assert!(text.contains("Device: Kitchen\nTime: 2"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_s_texts_take_the_place_of_ours() {
    let folder = std::env::temp_dir().join(format!("blindpipe-mails-{}", ulid()));
    std::fs::create_dir_all(&folder).expect("a folder");
    let own = "Subject: Un code de Chez Nous\n\n{{code}}\n\nÀ bientôt.\n";
    std::fs::write(folder.join("code_register.fr.txt"), own).expect("written");
    let mut server = SmtpServer::new(&folder.join(".smtp"), free_port(), Secrecy::Tls);
    server.start().await;
    let settings = [
        ("MAIL_URL", server.url(SMTP_PASSWORD)),
        ("MAIL_TEMPLATES", folder.display().to_string()),
        ("SSL_CERT_FILE", server.ca().display().to_string()),
    ];
    let settings = settings
        .each_ref()
        .map(|(name, value)| (*name, value.as_str()));
    let world = World::new(&settings).await;
    let (_node, caller) = node(&world).await;
    let email = address();
    let body = json!({ "email": email, "scene": "register", "turnstile_token": "dev-pass" });
    let call = caller.request(Method::POST, "/auth/send-code").json(&body);
    let call = call.header("accept-language", "fr-CA");
    caller.send(call).await.expect(200);
    let (subject, text) = mails(&server, &email, 1).await.remove(0);
    assert_eq!(subject, "Un code de Chez Nous");
    assert!(text.contains("À bientôt."), "{text}");
    register(&caller, &email, &code_in(&text)).await;
    std::fs::remove_dir_all(&folder).ok();
}
