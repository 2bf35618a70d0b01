//! `status`, `logs` and `stop` against job records with real processes behind them.

use crate::support::{Home, Process, boot_id, eventually, is_alive, record, start_ticks};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

const A: &str = "aaaaaaaaaaaa";
const B: &str = "aaaabbbbbbbb";

/// A server that answers every request with one status line, until dropped.
fn http(status: &'static str) -> (u16, std::sync::Arc<TcpListener>) {
    let listener = std::sync::Arc::new(TcpListener::bind("127.0.0.1:0").unwrap());
    let port = listener.local_addr().unwrap().port();
    let accepting = listener.clone();
    std::thread::spawn(move || {
        for stream in accepting.incoming() {
            let Ok(mut stream) = stream else { return };
            let mut request = [0; 2048];
            let _ = stream.read(&mut request);
            let _ = write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{{}}");
        }
    });
    (port, listener)
}

fn status(home: &Home, job: &str) -> Value {
    let (_, stdout, stderr) = home.outcome(&["status", job, "--json"]);
    let rows: Value = serde_json::from_str(&stdout).unwrap_or_else(|_| panic!("{stdout}{stderr}"));
    rows[0].clone()
}

#[test]
fn status_tells_how_a_job_really_is() {
    let home = Home::new();
    let process = Process::sleep();
    let (ready, _keep) = http("200 OK");
    let (loading, _keep_too) = http("503 Service Unavailable");
    let cases = [
        (record(A, "@atlas/tiny", "ready", Some(process.id()), ready), "running", 0),
        (record(A, "@atlas/tiny", "ready", Some(process.id()), loading), "unhealthy", 1),
        (record(A, "@atlas/tiny", "starting", Some(process.id()), loading), "starting", 0),
        (record(A, "@atlas/tiny", "starting", Some(process.id()), 0), "starting", 0),
        (record(A, "@atlas/tiny", "stopped", Some(process.id()), ready), "stopped", 1),
        (record(A, "@atlas/tiny", "starting", None, 0), "dead", 1),
    ];
    for (job, expected, code) in cases {
        home.write_job(&job);
        assert_eq!(status(&home, A)["condition"], expected, "{job}");
        assert_eq!(home.outcome(&["status", A]).0, code, "{expected}");
    }
}

#[test]
fn a_dead_job_is_told_with_its_exit_and_its_last_words() {
    let home = Home::new();
    let mut process = Process::sleep();
    home.write_job(&record(A, "@atlas/tiny", "ready", Some(process.id()), 1));
    home.write_job_file(A, "log", &(0..50).map(|n| format!("log line {n}\n")).collect::<String>());
    home.write_job_file(A, "exit.json", r#"{"code":1,"message":"the weights are broken"}"#);
    process.0.kill().unwrap();
    // Not reaped yet: the number still exists, but the process does not run.
    eventually("the process ends", Duration::from_secs(5), || !is_alive(process.id()));
    let (code, stdout, _) = home.outcome(&["status"]);
    assert_eq!(code, 0);
    for expected in ["dead", "exit code 1: the weights are broken", "log line 49"] {
        assert!(stdout.contains(expected), "{stdout}");
    }
    assert!(!stdout.contains("running"), "{stdout}");
    assert_eq!(home.outcome(&["stop", A]).0, 0);
    assert_eq!(status(&home, A)["condition"], "stopped");
    assert_eq!(home.outcome(&["status"]).1, "no jobs\n");
    assert!(home.outcome(&["status", "--all"]).1.contains(A));
}

#[test]
fn a_reused_process_number_is_never_signalled() {
    let home = Home::new();
    let stranger = Process::sleep();
    let mut job = record(A, "@atlas/tiny", "ready", Some(stranger.id()), 1);
    job["ranks"][0]["pid_start_ticks"] = json!(start_ticks(stranger.id()).unwrap() - 1);
    home.write_job(&job);
    assert_eq!(status(&home, A)["condition"], "dead");
    let (code, stdout, _) = home.outcome(&["stop", A]);
    assert_eq!((code, stdout.contains("was not running")), (0, true), "{stdout}");
    assert!(is_alive(stranger.id()));

    let mut job = record(B, "@atlas/tiny", "ready", Some(stranger.id()), 1);
    job["ranks"][0]["boot_id"] = json!("00000000-0000-0000-0000-000000000000");
    home.write_job(&job);
    assert_ne!(boot_id(), "00000000-0000-0000-0000-000000000000");
    assert_eq!(home.outcome(&["stop", B]).0, 0);
    assert!(is_alive(stranger.id()));
}

#[test]
fn stop_verifies_before_it_says_stopped() {
    let home = Home::new();
    let mut polite = Process::sleep();
    home.write_job(&record(A, "@atlas/tiny", "ready", Some(polite.id()), 1));
    // Reaped at once, as a detached server is by init.
    let reaper = std::thread::spawn(move || polite.0.wait().unwrap());
    let (code, stdout, stderr) = home.outcome(&["stop", A]);
    assert_eq!((code, stdout.as_str()), (0, "aaaaaaaaaaaa (@atlas/tiny) stopped\n"), "{stderr}");
    assert!(!reaper.join().unwrap().success());
    assert_eq!(home.record(A)["state"], "stopped");
    assert!(home.record(A)["ended_at"].is_string());
}

#[test]
fn stop_kills_what_ignores_the_request() {
    let home = Home::new();
    let stubborn = Process::shell("trap '' TERM; while :; do sleep 0.05; done");
    std::thread::sleep(Duration::from_millis(200));
    home.write_job(&record(A, "@atlas/tiny", "ready", Some(stubborn.id()), 1));
    let begun = Instant::now();
    let (code, stdout, stderr) = home.outcome(&["stop", "--all", "--timeout", "1"]);
    assert_eq!((code, stdout.contains("killed")), (0, true), "{stdout}{stderr}");
    assert!(begun.elapsed() >= Duration::from_secs(1));
    assert!(!is_alive(stubborn.id()));
}

#[test]
fn stop_reaches_a_process_that_is_suspended() {
    let home = Home::new();
    let suspended = Process::shell("kill -STOP $$; sleep 300");
    std::thread::sleep(Duration::from_millis(200));
    home.write_job(&record(A, "@atlas/tiny", "ready", Some(suspended.id()), 1));
    let (code, stdout, _) = home.outcome(&["stop", A, "--timeout", "20"]);
    assert_eq!((code, stdout.contains(" stopped")), (0, true), "{stdout}");
}

#[test]
fn jobs_are_named_by_id_prefix_or_recipe_and_ambiguity_is_told() {
    let home = Home::new();
    let (one, two) = (Process::sleep(), Process::sleep());
    home.write_job(&record(A, "@atlas/tiny", "ready", Some(one.id()), 1));
    home.write_job(&record(B, "recipes/other.yaml", "ready", Some(two.id()), 1));
    let (code, _, stderr) = home.outcome(&["stop", "aaaa"]);
    assert_eq!(code, 2);
    assert!(stderr.contains(A) && stderr.contains(B), "{stderr}");
    let (code, _, stderr) = home.outcome(&["stop"]);
    assert_eq!((code, stderr.contains("which job?")), (2, true), "{stderr}");
    for (name, id) in [("aaaaa", A), ("tiny", A), ("@atlas/tiny", A), ("aaaab", B), ("other", B)] {
        assert_eq!(status(&home, name)["id"], id, "{name}");
    }
    let (code, _, stderr) = home.outcome(&["stop", "tinny"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("did you mean `tiny`?"), "{stderr}");
    assert!(is_alive(one.id()) && is_alive(two.id()));
    // A recipe's name prefers what is alive to what has ended.
    home.write_job(&record("cccccccccccc", "@atlas/tiny", "stopped", None, 1));
    assert_eq!(status(&home, "tiny")["id"], A);
}

#[test]
fn without_jobs_nothing_is_created_and_the_answers_are_clear() {
    let home = Home::new();
    assert_eq!(home.outcome(&["status"]), (0, "no jobs\n".to_owned(), String::new()));
    assert_eq!(home.outcome(&["status", "--json"]).1, "[]\n");
    assert_eq!(home.outcome(&["stop", "--all"]).0, 0);
    let (code, _, stderr) = home.outcome(&["stop", "tiny"]);
    assert_eq!((code, stderr.contains("unknown job `tiny`")), (2, true), "{stderr}");
    assert_eq!(home.outcome(&["logs"]).0, 1);
    assert_eq!(home.outcome(&["logs", "tiny"]).0, 2);
    assert!(home.listing().is_empty());
}

#[test]
fn logs_show_the_end_and_follow_until_the_job_ends() {
    let home = Home::new();
    let mut process = Process::sleep();
    home.write_job(&record(A, "@atlas/tiny", "ready", Some(process.id()), 1));
    home.write_job_file(A, "log", "one\ntwo\nthree\n");
    assert_eq!(home.outcome(&["logs", "--tail", "2"]).1, "two\nthree\n");
    let json: Value = serde_json::from_str(&home.outcome(&["logs", A, "--json"]).1).unwrap();
    assert_eq!(json["lines"], json!(["one", "two", "three"]));

    let follower =
        home.atlas(&["logs", A, "--follow", "--tail", "1"]).stdout(std::process::Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(300));
    let mut log = std::fs::OpenOptions::new().append(true).open(home.jobs().join(A).join("log")).unwrap();
    log.write_all(b"four\n").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    process.0.kill().unwrap();
    process.0.wait().unwrap();
    let output = follower.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "three\nfour\n");
    assert!(output.status.success());
}

#[test]
fn links_and_directories_that_others_can_write_are_refused() {
    let home = Home::new();
    let elsewhere = home.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).unwrap();
    symlink(&elsewhere, home.state()).unwrap();
    let (code, _, stderr) = home.outcome(&["status"]);
    assert_eq!((code, stderr.contains("symbolic link")), (1, true), "{stderr}");

    std::fs::remove_file(home.state()).unwrap();
    std::fs::create_dir(home.state()).unwrap();
    symlink(&elsewhere, home.jobs()).unwrap();
    assert!(home.outcome(&["stop", "--all"]).2.contains("symbolic link"));

    std::fs::remove_file(home.jobs()).unwrap();
    std::fs::set_permissions(home.state(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (code, _, stderr) = home.outcome(&["status"]);
    assert_eq!((code, stderr.contains("others can write")), (1, true), "{stderr}");
}

#[test]
fn a_broken_record_hides_neither_itself_nor_the_others() {
    let home = Home::new();
    let process = Process::sleep();
    home.write_job(&record(A, "@atlas/tiny", "ready", Some(process.id()), 1));
    home.write_job(&record(B, "@atlas/tiny", "ready", None, 1));
    home.write_job_file(B, "job.json", "{ half");
    let (code, stdout, stderr) = home.outcome(&["status"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.contains(A), "{stdout}");
    assert!(stderr.contains(B), "{stderr}");
}
