//! The life of a job on the embedded model: launch, answer, look, stop; interruptions at any moment; deaths.

use crate::support::{Home, Running, eventually, free_port, is_alive, outcome};
use serde_json::Value;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn send_signal(pid: u32, signal: &str) {
    let status = std::process::Command::new("kill").args([&format!("-{signal}"), &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

fn jobs(home: &Home) -> Vec<Value> {
    let (code, stdout, stderr) = home.outcome(&["status", "--all", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    serde_json::from_str(&stdout).unwrap()
}

/// Nothing of this home runs, nothing claims to, and the port can be bound.
fn assert_nothing_left(home: &Home, port: u16, context: &str) {
    assert_eq!(home.processes(), Vec::<u32>::new(), "{context}");
    for job in jobs(home) {
        let condition = job["condition"].as_str().unwrap();
        assert!(["dead", "stopped"].contains(&condition), "{context}: {job}");
    }
    TcpListener::bind(("127.0.0.1", port)).unwrap_or_else(|error| panic!("{context}: {error}"));
}

#[test]
fn a_detached_job_lives_until_it_is_stopped() {
    let home = Home::new();
    let (code, stdout, stderr) = home.outcome(&["run", "@atlas/tiny", "--port", "0", "--detach", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    // What is printed is what the committed schemas promise.
    let _: atlas_schemas::outputs::RunSummary = serde_json::from_str(&stdout).unwrap();
    let _: Vec<atlas_schemas::outputs::JobStatus> = serde_json::from_value(jobs(&home).into()).unwrap();
    let summary: Value = serde_json::from_str(&stdout).unwrap();
    let (id, url) = (summary["job"].as_str().unwrap(), summary["url"].as_str().unwrap());
    let port = u16::try_from(summary["port"].as_u64().unwrap()).unwrap();
    assert_ne!(port, 0);

    let job = &jobs(&home)[0];
    assert_eq!((job["condition"].as_str(), job["id"].as_str()), (Some("running"), Some(id)));
    assert_eq!(home.outcome(&["status", "tiny"]).0, 0);
    assert!(home.outcome(&["logs", id]).1.contains("listening"));
    // The newest running job is what `chat` talks to.
    for arguments in [
        &["chat", "--json"][..],
        &["chat", "--json", "--url", url],
        &["chat", "--json", "--url", &format!("{url}/v1/")],
    ] {
        let (code, stdout, stderr) = home.outcome_with_input(arguments, "What is the capital of France?\n");
        assert_eq!(code, 0, "{stderr}");
        let turn: Value = serde_json::from_str(&stdout).unwrap();
        assert!(turn["usage"]["completion_tokens"].as_u64().unwrap() > 0, "{turn}");
    }
    // Its port is taken, and the refusal says by what.
    let (code, _, stderr) = home.outcome(&["run", "@atlas/tiny", "--port", &port.to_string()]);
    assert_eq!((code, stderr.contains(&format!("in use by job {id} (@atlas/tiny)"))), (4, true), "{stderr}");

    let (code, stdout, stderr) = home.outcome(&["stop", "tiny"]);
    assert_eq!((code, stdout.contains("stopped")), (0, true), "{stderr}");
    assert_nothing_left(&home, port, "after stop");
    assert_eq!(jobs(&home)[0]["condition"], "stopped");
    let (code, _, stderr) = home.outcome_with_input(&["chat"], "hello\n");
    assert_eq!((code, stderr.contains("nothing listens at http://127.0.0.1:8888")), (1, true), "{stderr}");
}

#[test]
fn interrupted_at_any_moment_a_run_leaves_nothing_behind() {
    let home = Home::new();
    let port = free_port();
    // How long a whole launch takes here, to spread the moments over it and a little beyond.
    let begun = Instant::now();
    assert_eq!(home.outcome(&["run", "@atlas/tiny", "--port", &port.to_string(), "--detach"]).0, 0);
    let launch = begun.elapsed();
    assert_eq!(home.outcome(&["stop", "tiny"]).0, 0);

    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    for round in 0..24 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let moment = launch.mul_f64((random % 1000) as f64 / 1000.0 * 1.3);
        let signal = ["INT", "TERM", "KILL"][round % 3];
        let context = format!("{signal} after {moment:?} of {launch:?} (round {round})");
        let mut run = home.spawn(&["run", "@atlas/tiny", "--port", &port.to_string()]);
        std::thread::sleep(moment);
        send_signal(run.id(), signal);
        let status = run.wait(LONG);
        match signal {
            "KILL" => eventually(&context, Duration::from_secs(10), || home.processes().is_empty()),
            // Before `main` runs, no process can handle a signal.
            _ => assert!(
                status.code() == Some(130) || (status.signal().is_some() && moment < launch / 4),
                "{context}: {status}"
            ),
        }
        assert_nothing_left(&home, port, &context);
    }
    // Interrupted launches cleared their directories away; those killed outright have at most a record.
    let recorded = jobs(&home).len();
    assert!(recorded <= 24, "{recorded}");
}

#[test]
fn an_interrupted_launch_removes_its_directory() {
    let home = Home::new();
    let mut run = home.spawn(&["run", "@atlas/tiny", "--port", "0"]);
    eventually("the job's directory appears", LONG, || {
        std::fs::read_dir(home.jobs()).is_ok_and(|mut jobs| jobs.next().is_some())
    });
    send_signal(run.id(), "INT");
    assert_eq!(run.wait(LONG).code(), Some(130));
    let left: Vec<_> = std::fs::read_dir(home.jobs()).unwrap().collect();
    // Unless the job was ready already: then it was stopped, and its log is kept.
    if !left.is_empty() {
        assert_eq!(jobs(&home)[0]["condition"], "stopped");
    }
}

#[test]
fn a_server_that_is_killed_is_told_with_exit_code_1() {
    let home = Home::new();
    let run = home.spawn_ready(&["run", "@atlas/tiny", "--port", "0"]);
    let job = jobs(&home).remove(0);
    send_signal(u32::try_from(job["ranks"][0]["pid"].as_u64().unwrap()).unwrap(), "KILL");
    let (code, _, stderr) = outcome(run.finish(LONG));
    assert_eq!(code, 1, "{stderr}");
    assert!(stderr.contains("died: signal: 9") && stderr.contains("its last log lines"), "{stderr}");
    assert_eq!(jobs(&home)[0]["condition"], "dead");
    assert_eq!(home.processes(), Vec::<u32>::new());
}

#[test]
fn a_foreground_job_ends_with_its_launcher_or_with_stop() {
    let home = Home::new();
    let mut run = home.spawn_ready(&["run", "@atlas/tiny", "--port", "0"]);
    send_signal(run.id(), "KILL");
    run.wait(LONG);
    eventually("the server ends without its launcher", Duration::from_secs(10), || home.processes().is_empty());
    let job = jobs(&home).remove(0);
    assert_eq!(job["condition"], "dead");
    assert!(job["detail"].as_str().unwrap().contains("the launcher went away"), "{job}");

    let mut run = home.spawn_ready(&["run", "@atlas/tiny", "--port", "0"]);
    let (code, _, stderr) = home.outcome(&["stop", "tiny"]);
    assert_eq!(code, 0, "{stderr}");
    assert_eq!(run.wait(LONG).code(), Some(0));
    assert_eq!(home.processes(), Vec::<u32>::new());
}

#[test]
fn of_two_launches_on_one_port_exactly_one_wins() {
    let home = Home::new();
    let port = free_port();
    for round in 0..3 {
        let launch = || home.spawn(&["run", "@atlas/tiny", "--port", &port.to_string(), "--detach"]);
        let results = [launch(), launch()].map(|run| outcome(run.finish(LONG)));
        let mut codes = results.each_ref().map(|(code, ..)| *code);
        codes.sort_unstable();
        assert_eq!(codes, [0, 4], "round {round}: {results:?}");
        let running = jobs(&home).into_iter().filter(|job| job["condition"] == "running").count();
        assert_eq!(running, 1);
        assert_eq!(home.outcome(&["stop", "--all"]).0, 0);
        assert_nothing_left(&home, port, "after both");
    }
}

#[test]
fn modes_are_private_under_any_umask() {
    for umask in ["000", "077"] {
        let home = Home::new();
        let script = format!("umask {umask}; exec \"$0\" run @atlas/tiny --port 0 --detach");
        let output = home.through_shell(&script).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let pid = jobs(&home)[0]["ranks"][0]["pid"].as_u64().unwrap();
        assert!(is_alive(u32::try_from(pid).unwrap()));
        for path in home.listing().into_iter().filter(|path| path.starts_with(home.state())) {
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            let expected = if metadata.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(metadata.permissions().mode() & 0o7777, expected, "{} under {umask}", path.display());
        }
        assert_eq!(home.outcome(&["stop", "--all"]).0, 0);
    }
}

#[test]
fn secrets_are_in_no_command_line_environment_or_file() {
    const SENTINEL: &str = "sk-sentinel-5f2e";
    let home = Home::new();
    let recipe = home.path().join("secret.yaml");
    let text = format!("recipe_version: \"2\"\nmodel: embedded\nruntime: atlas\ndefaults:\n  api_key: {SENTINEL}\n");
    std::fs::write(&recipe, text).unwrap();
    let recipe = recipe.to_str().unwrap();
    let plan = home.run(&["run", recipe, "--port", "0", "--dry-run", "--json"]);
    assert!(!String::from_utf8_lossy(&plan.stdout).contains(SENTINEL));
    let (code, stdout, stderr) = home.outcome(&["-vvv", "run", recipe, "--port", "0", "--detach", "--json"]);
    assert_eq!(code, 0, "{stderr}");
    assert!(!stdout.contains(SENTINEL) && !stderr.contains(SENTINEL));
    let summary: Value = serde_json::from_str(&stdout).unwrap();
    for file in ["cmdline", "environ"] {
        let bytes = std::fs::read(format!("/proc/{}/{file}", summary["pid"])).unwrap();
        assert!(!String::from_utf8_lossy(&bytes).contains(SENTINEL), "{file}");
    }
    // The key is in force: without it no, with it yes.
    assert_eq!(home.outcome_with_input(&["chat"], "hello\n").0, 1);
    let mut chat = home.atlas(&["chat"]);
    chat.env("ATLAS_API_KEY", SENTINEL);
    assert_eq!(home.with_input(chat, "hello\n").0, 0);
    for path in home.listing().iter().filter(|path| path.starts_with(home.state()) && path.is_file()) {
        assert!(!std::fs::read_to_string(path).unwrap().contains(SENTINEL), "{}", path.display());
    }
    assert_eq!(home.outcome(&["stop", "--all"]).0, 0);
}

#[test]
fn serve_says_where_it_listens_and_ends_in_order() {
    let home = Home::new();
    for (arguments, signal) in
        [(&["serve", "embedded", "--port", "0"][..], "TERM"), (&["serve", "embedded", "--port", "0", "--json"], "INT")]
    {
        let mut child = home.atlas(arguments).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let url = match serde_json::from_str::<Value>(&line) {
            Ok(event) => event["url"].as_str().unwrap().to_owned(),
            Err(_) => line.trim().strip_prefix("listening on ").unwrap().to_owned(),
        };
        let (code, _, stderr) = home.outcome_with_input(&["chat", "--url", &url], "hello\n");
        assert_eq!(code, 0, "{stderr}");
        send_signal(child.id(), signal);
        assert_eq!(Running(child).wait(LONG).code(), Some(130));
        assert_eq!(home.processes(), Vec::<u32>::new());
    }
}

#[test]
fn a_chat_keeps_its_history_and_answers_line_by_line() {
    let home = Home::new();
    let (code, _, stderr) = home.outcome(&["run", "@atlas/tiny", "--port", "0", "--detach"]);
    assert_eq!(code, 0, "{stderr}");
    let (code, stdout, _) =
        home.outcome_with_input(&["chat", "--json", "--max-tokens", "8"], "Hello!\n\nHello!\n/reset\nHello!\n");
    assert_eq!(code, 0);
    let turns: Vec<Value> = stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let prompt_tokens: Vec<u64> = turns.iter().map(|turn| turn["usage"]["prompt_tokens"].as_u64().unwrap()).collect();
    assert_eq!(prompt_tokens.len(), 3);
    assert!(prompt_tokens[1] > prompt_tokens[0] && prompt_tokens[2] == prompt_tokens[0], "{prompt_tokens:?}");
    // A prompt that cannot fit is the server's clear refusal, and exit code 1.
    let (code, _, stderr) = home.outcome_with_input(&["chat"], &format!("{}\n", "word ".repeat(20_000)));
    assert_eq!((code, stderr.contains("400")), (1, true), "{stderr}");
    assert_eq!(home.outcome(&["stop", "--all"]).0, 0);
}

#[test]
fn the_doctor_finds_a_machine_that_can_run_the_embedded_model() {
    let home = Home::new();
    let (code, stdout, stderr) = home.outcome(&["doctor", "--json"]);
    let report: atlas_schemas::outputs::DoctorReport = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, report.ok), (0, true), "{stdout}{stderr}");
    let names: Vec<&str> = report.checks.iter().map(|check| check.name.as_str()).collect();
    for name in [
        "cpu",
        "cores",
        "memory",
        "disk",
        "gpu",
        "open files",
        "port",
        "state",
        "cache",
        "environment",
        "clock",
        "engine",
    ] {
        assert!(names.contains(&name), "{name}");
    }
    assert!(home.listing().is_empty());
    // A state directory that others could write to would stop a run.
    std::fs::create_dir(home.state()).unwrap();
    std::fs::set_permissions(home.state(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let (code, stdout, _) = home.outcome(&["doctor"]);
    assert_eq!((code, stdout.contains("FAIL  state")), (1, true), "{stdout}");
}

/// Starts an endless answer (`ignore_eos`) and returns its connection after the first bytes of it.
fn long_answer(port: u16) -> std::net::TcpStream {
    let body = r#"{"prompt":"Once","max_tokens":3500,"ignore_eos":true,"stream":true}"#;
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    write!(
        stream,
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut start = [0; 512];
    let read = stream.read(&mut start).unwrap();
    assert!(String::from_utf8_lossy(&start[..read]).starts_with("HTTP/1.1 200"));
    stream
}

#[test]
fn the_first_signal_lets_answers_finish_and_the_second_does_not() {
    let home = Home::new();
    let port = free_port();
    let serve = |port: u16| {
        let mut child = home.atlas(&["serve", "embedded", "--port", &port.to_string()]);
        let mut child = child.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("listening"), "{line}");
        Running(child)
    };
    let mut server = serve(port);
    let mut answer = long_answer(port);
    send_signal(server.id(), "TERM");
    let mut rest = String::new();
    answer.read_to_string(&mut rest).unwrap();
    assert!(rest.contains("[DONE]"), "the answer was cut off");
    assert_eq!(server.wait(LONG).code(), Some(130));

    let mut server = serve(port);
    let _answer = long_answer(port);
    send_signal(server.id(), "TERM");
    std::thread::sleep(Duration::from_millis(100));
    assert!(is_alive(server.id()), "the first signal must not end it at once");
    send_signal(server.id(), "TERM");
    assert_eq!(server.wait(Duration::from_secs(2)).code(), Some(130));
}

#[test]
fn a_job_stopped_while_it_is_launched_is_stopped() {
    for _ in 0..3 {
        let home = Home::new();
        let run = home.spawn(&["run", "@atlas/tiny", "--port", "0"]);
        eventually("the job appears", LONG, || !jobs(&home).is_empty());
        let (code, _, stderr) = home.outcome(&["stop", "--all"]);
        assert_eq!(code, 0, "{stderr}");
        let status = run.finish(LONG).status;
        // 0: it was ready already; 1: it was not; 130: it was only about to start its server.
        assert!([Some(0), Some(1), Some(130)].contains(&status.code()), "{status}");
        assert_eq!(home.processes(), Vec::<u32>::new());
        assert!(jobs(&home).iter().all(|job| job["condition"] == "stopped"), "{:?}", jobs(&home));
    }
}
