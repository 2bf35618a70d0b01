//! API keys: kept as hashes, compared in constant time.

use crate::config::ConfigError;
use crate::error::ApiError;
use crate::state::AppState;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use sha2::{Digest, Sha256};
use std::fmt;
use subtle::{Choice, ConstantTimeEq};

/// A key that opens the API. Only its SHA-256 is kept, so neither a log nor a dump can show the key.
#[derive(Clone)]
pub struct ApiKey {
    digest: [u8; 32],
}

impl ApiKey {
    /// A key from its text. An empty or blank key is refused: it would protect nothing.
    pub fn new(secret: &str) -> Result<Self, ConfigError> {
        if secret.trim().is_empty() {
            return Err(ConfigError::EmptyKey);
        }
        Ok(Self { digest: hash(secret.as_bytes()) })
    }

    fn matches(&self, digest: &[u8; 32]) -> Choice {
        self.digest.ct_eq(digest)
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("ApiKey(secret)")
    }
}

/// Lets a request pass if no key is configured or it presents one of them.
pub(crate) async fn require_key(
    State(state): State<AppState>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let keys = &state.config().api_keys;
    if keys.is_empty() {
        return Ok(next.run(request).await);
    }
    let mut presented = credentials(request.headers()).peekable();
    if presented.peek().is_none() {
        return Err(ApiError::unauthorized("an API key is required: send `Authorization: Bearer KEY`"));
    }
    if !bool::from(any_valid(keys, presented)) {
        return Err(ApiError::unauthorized("the API key is not valid"));
    }
    Ok(next.run(request).await)
}

/// Compares every credential with every key, whatever earlier comparisons gave.
fn any_valid<'a>(keys: &[ApiKey], presented: impl Iterator<Item = &'a [u8]>) -> Choice {
    presented.fold(Choice::from(0), |valid, credential| {
        let digest = hash(credential);
        keys.iter().fold(valid, |valid, key| valid | key.matches(&digest))
    })
}

/// The credentials in `Authorization: Bearer` and `x-api-key` headers.
fn credentials(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let bearer = headers.get_all(header::AUTHORIZATION).iter().filter_map(|value| {
        let (scheme, credential) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(credential)
    });
    let plain = headers.get_all("x-api-key").iter().map(|value| value.as_bytes());
    bearer.chain(plain).map(<[u8]>::trim_ascii)
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_shows_the_key() {
        let key = ApiKey::new("sesame").unwrap();
        assert_eq!(format!("{key:?}"), "ApiKey(secret)");
        assert_eq!(ApiKey::new("  ").unwrap_err(), ConfigError::EmptyKey);
    }

    #[test]
    fn any_of_several_keys_opens() {
        let keys = [ApiKey::new("one").unwrap(), ApiKey::new("two").unwrap()];
        let opens = |credentials: &[&[u8]]| bool::from(any_valid(&keys, credentials.iter().copied()));
        assert!(opens(&[b"one"]) && opens(&[b"two"]) && opens(&[b"wrong", b"two"]));
        assert!(!opens(&[b"on"]) && !opens(&[b"onetwo"]) && !opens(&[b""]) && !opens(&[]));
    }
}
