//! Keys, hosts, origins, media types, methods: who is let in, on which paths, in which spelling.

use crate::support::engine::ScriptedEngine;
use crate::support::http::{Raw, request, status};
use crate::support::{TestServer, chat_body, config};
use atlas_server::{ApiKey, AppState, ConfigError, ServeError, ServerConfig, serve};
use tokio::net::TcpListener;

const KEY: &str = "sesame-7f3a";
const ROUTES: [(&str, &str); 7] = [
    ("POST", "/v1/chat/completions"),
    ("POST", "/v1/completions"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/atlas-test"),
    ("POST", "/tokenize"),
    ("POST", "/detokenize"),
    ("GET", "/metrics"),
];
const JSON: &str = "content-type: application/json";

fn with_key() -> ServerConfig {
    let mut config = config();
    config.api_keys = vec![ApiKey::new("another").unwrap(), ApiKey::new(KEY).unwrap()];
    config
}

/// Status of one request on a connection of its own.
async fn ask(server: &TestServer, method: &str, target: &str, headers: &[&str]) -> u16 {
    let headers: Vec<_> = headers.iter().copied().chain(["connection: close", JSON]).collect();
    let raw = Raw::say(server.address, request(method, target, &headers, "{}")).await;
    status(&raw.until_closed().await)
}

#[tokio::test]
async fn every_route_wants_the_key_in_every_form() {
    let server = TestServer::start_with(with_key(), ScriptedEngine::says("x")).await;
    let bad = [
        vec![],
        vec!["authorization: Bearer wrong"],
        vec!["authorization: Bearer"],
        vec!["authorization: Bearer "],
        vec!["authorization: Basic c2VzYW1lLTdmM2E="],
        vec!["authorization: sesame-7f3a"],
        vec!["authorization: Bearersesame-7f3a"],
        vec!["authorization: Bearer sesame-7f3"],
        vec!["authorization: Bearer sesame-7f3aa"],
        vec!["authorization: Bearer SESAME-7F3A"],
        vec!["authorization: Bearer \"sesame-7f3a\""],
        vec!["authorization: Bearer sesame-7f3a,x"],
        vec!["x-api-key: wrong"],
        vec!["x-api-key: Bearer sesame-7f3a"],
        vec!["x-api-key:"],
        vec!["api-key: sesame-7f3a"],
        vec!["cookie: authorization=sesame-7f3a"],
        vec!["proxy-authorization: Bearer sesame-7f3a"],
        vec!["authorization: Bearer \u{fffd}"],
    ];
    let good = [
        "authorization: Bearer sesame-7f3a",
        "authorization: bearer   sesame-7f3a ",
        "Authorization: Bearer another",
        "x-api-key: sesame-7f3a",
        "X-API-Key: another",
    ];
    for (method, path) in ROUTES {
        for headers in &bad {
            let headers: Vec<_> = headers.iter().copied().chain(["host: localhost"]).collect();
            assert_eq!(ask(&server, method, path, &headers).await, 401, "{method} {path} {headers:?}");
        }
        for header in good {
            let status = ask(&server, method, path, &[header, "host: localhost"]).await;
            assert!(status == 200 || status == 400, "{method} {path} {header}: {status}");
        }
    }
    let one_right = ["host: localhost", "authorization: Bearer wrong", "x-api-key: sesame-7f3a"];
    assert_eq!(ask(&server, "GET", "/v1/models", &one_right).await, 200);
}

#[tokio::test]
async fn no_spelling_of_path_method_or_host_goes_round_the_key() {
    let server = TestServer::start_with(with_key(), ScriptedEngine::says("x")).await;
    let paths = [
        "/",
        "//",
        "/v1",
        "/v1/",
        "/v1/models/",
        "//v1/models",
        "/v1//models",
        "/v1/models/../models",
        "/./v1/models",
        "/%76%31/models",
        "/v1/%6dodels",
        "/v1%2fmodels",
        "/v1/models%00",
        "/v1/models?x=/health",
        "/health/../v1/models",
        "/health/%2e%2e/v1/models",
        "/health%2f..%2fv1/models",
        "/health//",
        "/health/",
        "/HEALTH",
        "/health;/v1/models",
        "/%68ealth",
        "/v1/models#/health",
        "/v1/models\\..\\health",
        "/health/ready/x",
        "/docs",
        "/openapi.json",
        "/v1/models/a/b/%2e%2e/c",
        "http://localhost/v1/models",
        "http://localhost/health/../v1/models",
    ];
    let hosts =
        ["host: localhost", "host: 127.0.0.1:1", "host: localhost/v1/models?", "host: [::1]", "host: evil.example"];
    for method in ["GET", "POST", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PATCH", "BREW"] {
        for path in paths {
            for host in hosts {
                let status = ask(&server, method, path, &[host]).await;
                assert!(matches!(status, 400 | 401 | 403), "{method} {path} {host}: {status}");
            }
        }
        let open = ask(&server, method, "/health", &["host: localhost"]).await;
        assert_eq!(open, if matches!(method, "GET" | "HEAD") { 200 } else { 405 }, "{method}");
    }
    assert_eq!(server.engine.submitted(), 0);
}

#[tokio::test]
async fn the_refusal_says_what_to_do() {
    let server = TestServer::start_with(with_key(), ScriptedEngine::says("x")).await;
    let answer = server.get("/v1/models").await;
    assert_eq!(answer.headers["www-authenticate"], "Bearer");
    insta::assert_json_snapshot!(answer.json());
}

#[tokio::test]
async fn a_body_is_not_read_before_the_key_is_checked() {
    let server = TestServer::start_with(with_key(), ScriptedEngine::says("x")).await;
    let headers = "host: localhost\r\ncontent-type: application/json\r\ncontent-length: 30000000\r\n\r\n";
    let mut raw = Raw::say(server.address, format!("POST /v1/chat/completions HTTP/1.1\r\n{headers}")).await;
    assert_eq!(status(&raw.until("\r\n\r\n").await), 401);
}

#[tokio::test]
async fn foreign_hosts_are_refused_on_loopback() {
    let mut config = config();
    config.allowed_hosts = vec!["spark.lan".into()];
    let server = TestServer::start_with(config, ScriptedEngine::says("x")).await;
    let port = server.address.port();
    for host in ["localhost", "127.0.0.1", "[::1]", &format!("127.0.0.1:{port}"), "localhost:9", "spark.lan:80"] {
        assert_eq!(ask(&server, "GET", "/v1/models", &[&format!("host: {host}")]).await, 200, "{host}");
    }
    for host in ["evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", "evil@localhost", ""] {
        for path in ["/v1/models", "/health", "/nowhere"] {
            assert_eq!(ask(&server, "GET", path, &[&format!("host: {host}")]).await, 403, "{host} {path}");
        }
    }
    assert_eq!(ask(&server, "GET", "/v1/models", &[]).await, 403);
    assert_eq!(ask(&server, "GET", "/v1/models", &["host: localhost", "host: evil.example"]).await, 403);
    assert_eq!(ask(&server, "GET", "http://evil.example/v1/models", &["host: localhost"]).await, 403);
    insta::assert_json_snapshot!(
        server
            .client
            .get(server.url("/"))
            .header("host", "evil.example")
            .send()
            .await
            .unwrap()
            .json::<serde_json::Value>()
            .await
            .unwrap()
    );
}

#[tokio::test]
async fn foreign_origins_get_nothing() {
    let mut config = config();
    config.allowed_origins = vec!["https://chat.example".into()];
    let server = TestServer::start_with(config, ScriptedEngine::says("x")).await;
    let call = async |method: &str, origin: &str, more: &[(&str, &str)]| {
        let url = server.url("/v1/chat/completions");
        let method = reqwest::Method::from_bytes(method.as_bytes()).unwrap();
        let mut request = server.client.request(method, url).header("origin", origin).body(chat_body(""));
        for (name, value) in more {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap()
    };
    let json = [("content-type", "application/json")];
    for origin in ["https://evil.example", "null", "http://localhost.evil.example", "https://chat.example:444"] {
        let answer = call("POST", origin, &json).await;
        assert_eq!(answer.status(), 403, "{origin}");
        assert!(!answer.headers().keys().any(|name| name.as_str().starts_with("access-control")), "{origin}");
        let preflight = call("OPTIONS", origin, &[("access-control-request-method", "POST")]).await;
        assert_eq!(preflight.status(), 403, "{origin}");
        let read = server.client.get(server.url("/v1/models")).header("origin", origin).send().await.unwrap();
        assert!(!read.headers().keys().any(|name| name.as_str().starts_with("access-control")), "{origin}");
    }
    assert_eq!(server.engine.submitted(), 0);
    for origin in ["https://chat.example", "http://localhost:3000", &format!("http://{}", server.address)] {
        let answer = call("POST", origin, &json).await;
        assert_eq!(
            (answer.status().as_u16(), &answer.headers()["access-control-allow-origin"]),
            (200, &origin.parse().unwrap())
        );
        let wanted = [("access-control-request-method", "POST"), ("access-control-request-headers", "authorization")];
        let preflight = call("OPTIONS", origin, &wanted).await;
        assert_eq!(preflight.status(), 204);
        assert_eq!(preflight.headers()["access-control-allow-headers"], "authorization");
    }
}

#[tokio::test]
async fn what_pages_can_send_without_asking_is_refused() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    for path in ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"] {
        for kind in ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "text/json"]
        {
            let request = server.client.post(server.url(path)).header("content-type", kind).body(chat_body(""));
            assert_eq!(request.send().await.unwrap().status(), 415, "{path} {kind}");
        }
        let untyped = server.client.post(server.url(path)).body(chat_body("")).send().await.unwrap();
        assert_eq!(untyped.status(), 415, "{path}");
    }
    assert_eq!(server.engine.submitted(), 0);
}

#[tokio::test]
async fn wrong_methods_and_paths_have_the_error_shape() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    for (right, path) in ROUTES {
        for wrong in ["GET", "POST", "PUT", "DELETE", "PATCH", "TRACE", "OPTIONS"].into_iter().filter(|m| *m != right) {
            let method = reqwest::Method::from_bytes(wrong.as_bytes()).unwrap();
            let answer = server.client.request(method, server.url(path)).send().await.unwrap();
            assert_eq!(answer.status(), 405, "{wrong} {path}");
            assert!(answer.headers()["allow"].to_str().unwrap().contains(right), "{wrong} {path}");
            let body: serde_json::Value = answer.json().await.unwrap();
            assert_eq!(body["error"]["code"], "method_not_allowed");
        }
    }
    for path in ["/", "/v2/models", "/v1/chat", "/v1/chat/completions/", "/console"] {
        let answer = server.get(path).await;
        assert_eq!(answer.status, 404, "{path}");
        answer.error_param();
    }
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    insta::assert_json_snapshot!(server.get("/v1/models").await.json());
    assert_eq!(server.get("/v1/models/org/alias").await.json()["id"], "org/alias");
    assert_eq!(server.get("/v1/models/org%2Falias").await.json()["root"], "atlas-test");
    for path in ["/v1/models/gpt-4o", "/v1/models/%1b%5b31m", "/v1/models/%ff"] {
        let answer = server.get(path).await;
        assert!(matches!(answer.status, 400 | 404), "{path}");
        answer.error_param();
    }
}

#[tokio::test]
async fn request_ids_are_kept_if_harmless() {
    let server = TestServer::start(ScriptedEngine::says("x")).await;
    let echoed = async |id: &[u8]| {
        let value = reqwest::header::HeaderValue::from_bytes(id).unwrap();
        let request = server.client.get(server.url("/health")).header("x-request-id", value);
        request.send().await.unwrap().headers()["x-request-id"].to_str().unwrap().to_owned()
    };
    assert_eq!(echoed(b"trace-1/7").await, "trace-1/7");
    for id in [&b"a b"[..], b"\xff", b"", &[b'x'; 200], b"{\"a\":1}"] {
        assert!(echoed(id).await.starts_with("req-"));
    }
}

#[tokio::test]
async fn a_public_bind_without_a_key_does_not_start() {
    let listener = TcpListener::bind("0.0.0.0:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let outcome = serve(listener, AppState::new(config()), std::future::pending()).await;
    assert!(matches!(outcome, Err(ServeError::Config(ConfigError::Unauthenticated(at))) if at == address));

    assert!(with_key().check_bind(address).is_ok());
    let mut open = config();
    open.allow_unauthenticated = true;
    assert!(open.check_bind(address).is_ok());
    assert!(config().check_bind("[::1]:80".parse().unwrap()).is_ok());
    assert!(config().check_bind("[::]:80".parse().unwrap()).is_err());
    assert!(config().check_bind("192.168.1.9:80".parse().unwrap()).is_err());
}
