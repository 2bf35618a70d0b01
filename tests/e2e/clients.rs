//! Other people's clients against the real server.

use crate::server::Server;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/clients")
}

/// A Python with the packages of `requirements.txt`, made once below the build folder.
fn python() -> PathBuf {
    let venv = Path::new(env!("CARGO_TARGET_TMPDIR")).join("clients-venv");
    let python = venv.join("bin/python");
    let requirements = folder().join("requirements.txt");
    let wanted = std::fs::read_to_string(&requirements).unwrap();
    let stamp = venv.join("installed.txt");
    if std::fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return python;
    }
    checked("python3 -m venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(&venv).output());
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"];
    checked("pip install", Command::new(&python).args(install).arg(&requirements).output());
    std::fs::write(stamp, wanted).unwrap();
    python
}

fn checked(what: &str, output: std::io::Result<Output>) -> String {
    let output = output.unwrap_or_else(|error| panic!("{what}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_official_openai_client_drives_the_server() {
    let python = python();
    let server = Server::start(&["--api-key", "a-key-of-the-test"]);
    let url = format!("{}/v1", server.url);
    let script = folder().join("openai_client.py");
    let output = Command::new(python).arg(script).args([&url, "--key", "a-key-of-the-test"]).output();
    let report = checked("openai_client.py", output);
    assert!(report.matches("ok ").count() >= 12, "{report}");
}
