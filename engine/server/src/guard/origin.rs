//! Which web pages may talk to the server.
//!
//! A page from anywhere can make a browser send requests to a server on the same machine. Two checks stop it: on a
//! loopback bind the `Host` must be a loopback name (a name that an attacker's DNS points to 127.0.0.1 is not), and a
//! request that changes or computes something must not carry a foreign `Origin`. Pages served from a loopback address
//! count as local on a loopback bind.

use crate::config::ServerConfig;
use crate::error::ApiError;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Names and origins that are welcome at one listening address.
#[derive(Debug)]
pub(crate) struct OriginPolicy {
    bound: IpAddr,
    hosts: Vec<String>,
    origins: Vec<String>,
}

impl OriginPolicy {
    pub(crate) fn new(config: &ServerConfig, bound: SocketAddr) -> Self {
        Self { bound: bound.ip(), hosts: config.allowed_hosts.clone(), origins: config.allowed_origins.clone() }
    }

    /// The request's authority, if it is one that this address answers to.
    fn check_host(&self, request: &Request) -> Result<Authority, ApiError> {
        let refuse = |message| Err(ApiError::forbidden("host_not_allowed", message));
        let mut given = request.headers().get_all(header::HOST).iter();
        let (Some(host), None) = (given.next(), given.next()) else {
            return refuse("exactly one Host header is required");
        };
        let Ok(host) = Authority::try_from(host.as_bytes()) else {
            return refuse("the Host header is malformed");
        };
        let mut named = std::iter::once(&host).chain(request.uri().authority());
        if named.all(|authority| self.host_is_welcome(authority)) {
            return Ok(host);
        }
        refuse("this server listens on loopback only; call it localhost, 127.0.0.1 or [::1]")
    }

    fn host_is_welcome(&self, authority: &Authority) -> bool {
        !authority.as_str().contains('@')
            && (!self.bound.is_loopback()
                || is_loopback_name(authority.host())
                || self.hosts.iter().any(|host| host.eq_ignore_ascii_case(authority.host())))
    }

    /// Whether pages of `origin` may use the server that they call `host`.
    fn origin_is_welcome(&self, origin: &HeaderValue, host: &Authority) -> bool {
        let Ok(origin) = origin.to_str() else { return false };
        if self.origins.iter().any(|allowed| allowed.eq_ignore_ascii_case(origin)) {
            return true;
        }
        let Some((_, authority)) = origin.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https"))
        else {
            return false;
        };
        let Ok(authority) = Authority::try_from(authority) else { return false };
        authority == *host || (self.bound.is_loopback() && is_loopback_name(authority.host()))
    }
}

/// Refuses foreign hosts and origins, answers preflights, and marks answers to welcome pages.
pub(crate) async fn check_origin(
    State(policy): State<Arc<OriginPolicy>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let host = policy.check_host(&request)?;
    let Some(origin) = request.headers().get(header::ORIGIN).cloned() else {
        return Ok(next.run(request).await);
    };
    if !policy.origin_is_welcome(&origin, &host) {
        if matches!(*request.method(), Method::GET | Method::HEAD) {
            return Ok(next.run(request).await); // Without CORS headers the browser keeps the answer from the page.
        }
        let message = "web pages of this origin may not use this server";
        return Err(ApiError::forbidden("origin_not_allowed", message));
    }
    let preflight =
        request.method() == Method::OPTIONS && request.headers().contains_key(header::ACCESS_CONTROL_REQUEST_METHOD);
    let mut response = if preflight { answer_preflight(request.headers()) } else { next.run(request).await };
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, origin);
    headers.insert(header::ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static("x-request-id, retry-after"));
    headers.append(header::VARY, HeaderValue::from_static("origin"));
    Ok(response)
}

fn answer_preflight(request: &HeaderMap) -> Response {
    let mut response = StatusCode::NO_CONTENT.into_response();
    let headers = response.headers_mut();
    headers.insert(header::ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static("GET, POST"));
    headers.insert(header::ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static("600"));
    if let Some(wanted) = request.get(header::ACCESS_CONTROL_REQUEST_HEADERS) {
        headers.insert(header::ACCESS_CONTROL_ALLOW_HEADERS, wanted.clone());
    }
    response
}

/// `localhost` or a loopback address.
fn is_loopback_name(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    host.eq_ignore_ascii_case("localhost") || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn policy(bound: &str) -> OriginPolicy {
        let mut config = ServerConfig::new("m");
        config.allowed_hosts = vec!["spark.lan".into()];
        config.allowed_origins = vec!["https://chat.example".into()];
        OriginPolicy::new(&config, bound.parse().unwrap())
    }

    fn request(uri: &str, hosts: &[&str]) -> Request {
        let builder = hosts.iter().fold(Request::builder().uri(uri), |builder, host| builder.header("host", *host));
        builder.body(Body::empty()).unwrap()
    }

    #[test]
    fn loopback_answers_to_loopback_names_only() {
        let policy = policy("127.0.0.1:8888");
        let welcome =
            ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8888", "127.1.2.3", "[::1]", "[::1]:80", "Spark.LAN"];
        for host in welcome {
            assert!(policy.check_host(&request("/", &[host])).is_ok(), "{host}");
        }
        let foreign = [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.nip.io",
            "evil@localhost",
            "localhost@evil.example",
            "localhost/v1/models?",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "",
            ":80",
            "localhost.",
            "127.1",
            "2130706433",
        ];
        for host in foreign {
            assert!(policy.check_host(&request("/", &[host])).is_err(), "{host}");
        }
        assert!(policy.check_host(&request("/", &[])).is_err());
        assert!(policy.check_host(&request("/", &["localhost", "localhost"])).is_err());
        assert!(policy.check_host(&request("http://evil.example/", &["localhost"])).is_err());
    }

    #[test]
    fn a_public_address_answers_to_any_name() {
        let policy = policy("0.0.0.0:8888");
        assert!(policy.check_host(&request("/", &["anything.example:8888"])).is_ok());
        assert!(policy.check_host(&request("/", &["user@anything.example"])).is_err());
    }

    #[test]
    fn origins() {
        let host = Authority::from_static("localhost:8888");
        let welcome =
            |bound: &str, origin: &str| policy(bound).origin_is_welcome(&HeaderValue::from_str(origin).unwrap(), &host);
        for origin in ["http://localhost:8888", "http://localhost:3000", "https://127.0.0.1", "https://chat.example"] {
            assert!(welcome("127.0.0.1:8888", origin), "{origin}");
        }
        for origin in ["null", "", "https://evil.example", "https://chat.example.evil", "file://localhost", "localhost"]
        {
            assert!(!welcome("127.0.0.1:8888", origin), "{origin}");
        }
        assert!(welcome("0.0.0.0:8888", "http://localhost:8888"), "the same origin");
        assert!(!welcome("0.0.0.0:8888", "http://localhost:3000"));
    }
}
