//! Log-ins and the rights of users.

#![allow(clippy::unwrap_used)]

mod support;

use onehop_engine::Rights;
use onehop_server::{Options, Server, TlsFiles, Users};
use support::{Place, code, options, place_with};

async fn place_of_users(folder: &tempfile::TempDir) -> (Place, Users) {
    let users = Users::at(folder.path().join("users"));
    users.add("root", "root's", Rights::Admin).unwrap();
    users.add("writer", "writer's", Rights::Write).unwrap();
    users.add("reader", "reader's", Rights::Read).unwrap();
    (place_with(Options { users: Some(users.clone()), ..options() }).await, users)
}

async fn connect(place: &Place, user: &str, password: &str) -> Result<tokio_postgres::Client, tokio_postgres::Error> {
    place.connect_with(place.config().user(user).password(password)).await
}

#[tokio::test]
async fn a_password_is_proven_and_its_loss_is_known_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let (place, users) = place_of_users(&folder).await;
    let client = connect(&place, "reader", "reader's").await.unwrap();
    let row = client.query_one("SELECT current_user, session_user", &[]).await.unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("reader", "reader"));
    for (user, password) in [("reader", "root's"), ("nobody", "root's"), ("reader", "reader's ")] {
        let Err(e) = connect(&place, user, password).await else { panic!("{user} is in") };
        assert_eq!(code(&e), "28P01", "{user}: {e:?}");
        assert_eq!(e.as_db_error().unwrap().message(), format!("password authentication failed for user \"{user}\""));
    }
    users.remove("reader").unwrap();
    assert!(connect(&place, "reader", "reader's").await.is_err());
}

#[tokio::test]
async fn who_guesses_is_not_heard_for_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let (place, _) = place_of_users(&folder).await;
    let mut codes = Vec::new();
    for _ in 0..7 {
        let Err(e) = connect(&place, "root", "guess").await else { panic!("a guess was right") };
        codes.push(code(&e).to_string());
    }
    assert_eq!(codes[..5], ["28P01"; 5]);
    assert_eq!(codes[6], "28000");
}

#[tokio::test]
async fn roles_may_do_what_they_say() {
    let folder = tempfile::tempdir().unwrap();
    let (place, _) = place_of_users(&folder).await;
    let file = folder.path().join("secret.csv");
    std::fs::write(&file, "a\n1\n").unwrap();
    let file = file.display();
    let root = connect(&place, "root", "root's").await.unwrap();
    let writer = connect(&place, "writer", "writer's").await.unwrap();
    let reader = connect(&place, "reader", "reader's").await.unwrap();
    root.batch_execute("CREATE TABLE t (a BIGINT); INSERT INTO t VALUES (1)").await.unwrap();
    let of_admins = [
        format!("SELECT * FROM '{file}'"),
        format!("SELECT (SELECT max(a) FROM '{file}') FROM t"),
        format!("COPY t FROM '{file}'"),
        format!("COPY t TO '{}/out.csv'", folder.path().display()),
        format!("CREATE TABLE u AS FROM '{file}'"),
        "SET functions.allow_python = 'true'".into(),
        "SET temp_directory = '/'".into(),
        "SET memory_limit = '1GiB'".into(),
        "RESET temp_directory".into(),
        "CREATE FUNCTION f(a BIGINT) RETURNS BIGINT LANGUAGE python AS $$ def f(a): return a $$".into(),
    ];
    for text in &of_admins {
        for client in [&writer, &reader] {
            let e = client.simple_query(text).await.unwrap_err();
            assert_eq!(code(&e), "42501", "{text}: {e:?}");
        }
    }
    assert!(!folder.path().join("out.csv").exists());
    let of_writers = [
        "INSERT INTO t VALUES (2)",
        "UPDATE t SET a = 3",
        "DELETE FROM t",
        "TRUNCATE t",
        "CREATE TABLE v (a BIGINT)",
        "CREATE VIEW w AS SELECT 1 AS one",
        "DROP TABLE IF EXISTS t",
        "CHECKPOINT",
        "PREPARE p AS INSERT INTO t VALUES (4)",
        "EXECUTE p",
        "SELECT * FROM logregr_train('t', 'm', label => 'a', features => 'a')",
    ];
    for text in of_writers {
        let outcome = reader.simple_query(text).await;
        if !text.starts_with("PREPARE") {
            let e = outcome.unwrap_err();
            assert_eq!(code(&e), "42501", "{text}: {e:?}");
        }
    }
    let insert = reader.prepare("INSERT INTO t VALUES ($1)").await.unwrap();
    assert_eq!(code(&reader.execute(&insert, &[&5_i64]).await.unwrap_err()), "42501");
    let copied = reader.copy_in::<_, bytes::Bytes>("COPY t FROM STDIN").await.map(|_| ());
    let copied = match copied {
        Err(e) => code(&e).to_string(),
        Ok(()) => "went on".into(),
    };
    assert!(["42501", "went on"].contains(&copied.as_str()), "{copied}");
    let reader = connect(&place, "reader", "reader's").await.unwrap();
    assert_eq!(reader.query_one("SELECT sum(a) FROM t", &[]).await.unwrap().get::<_, i64>(0), 1);
    writer.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
    assert_eq!(reader.query_one("SELECT count(*) FROM t", &[]).await.unwrap().get::<_, i64>(0), 2);
    assert_eq!(root.query_one(&of_admins[0], &[]).await.unwrap().get::<_, i64>(0), 1);
}

#[tokio::test]
async fn what_would_not_be_safe_does_not_begin() {
    let folder = tempfile::tempdir().unwrap();
    let database = onehop_engine::Database::memory(&Default::default()).unwrap();
    let bind = |options| Server::bind(database.clone(), options, support::executors());
    let elsewhere = Options { listen: ([0, 0, 0, 0], 0).into(), ..options() };
    let users = Users::at(folder.path().join("users"));
    assert!(bind(elsewhere.clone()).await.unwrap_err().to_string().contains("both users who log in and TLS"));
    // The file does not exist.
    assert!(bind(Options { users: Some(users.clone()), ..options() }).await.is_err());
    users.add("ada", "x", Rights::Admin).unwrap();
    assert!(bind(Options { users: Some(users), ..elsewhere }).await.is_err());
    let broken = folder.path().join("broken.pem");
    std::fs::write(&broken, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").unwrap();
    let tls = TlsFiles { certificates: broken.clone(), key: broken };
    assert!(bind(Options { tls: Some(tls), ..options() }).await.unwrap_err().to_string().contains("for TLS"));
}
