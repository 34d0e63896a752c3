//! The access to Xet storage: tokens, and descriptions of files ("Authentication" and "CAS API" in the
//! specification).

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Deserialize;
use url::Url;

use super::plan::{Plan, is_permitted};
use super::{InvalidXet, XetId};
use crate::http::{Client, Field, HttpError, Limits, Tries};

/// The limit on the response with a token, in bytes. The token and the URL have at most 64,000 characters each.
const TOKEN_MAX_BYTES: usize = 256 << 10;
/// The limit on the description of a range of a file, in bytes.
const PLAN_MAX_BYTES: usize = 8 << 20;
/// A token is renewed this long before it expires.
const EXPIRES_SOON: Duration = Duration::from_secs(30);
/// The time between two looks at a token that another thread renews.
const GLANCE: Duration = Duration::from_millis(20);

/// The access to the Xet storage of a repository at a commit.
pub(crate) struct XetAccess {
    client: Arc<Client>,
    /// The URL of the Hub that gives tokens, and the fields that authorise a request to it.
    url: Url,
    secret: Vec<Field>,
    token: Mutex<Option<Arc<Token>>>,
    /// Locked by the thread that requests a token.
    renewal: Mutex<()>,
    /// `true` if the server has only version 1 of descriptions.
    is_old: AtomicBool,
}

/// The server that describes files, and the right to ask it.
struct Token {
    server: Url,
    secret: Field,
    expires: SystemTime,
}

/// The response of the Hub.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    cas_url: String,
    access_token: String,
    exp: u64,
}

impl fmt::Debug for XetAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("XetAccess").field("path", &self.url.path()).finish_non_exhaustive()
    }
}

impl XetAccess {
    /// Makes the access for which `url` of the Hub gives tokens.
    pub(crate) fn new(client: &Arc<Client>, url: Url, secret: &[Field]) -> Self {
        Self {
            client: Arc::clone(client),
            url,
            secret: secret.to_vec(),
            token: Mutex::default(),
            renewal: Mutex::default(),
            is_old: AtomicBool::new(false),
        }
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// Requests the description of a range of a file.
    pub(super) fn plan(
        &self,
        file: &XetId,
        len_bytes: u64,
        range: &Range<u64>,
        limits: &Limits<'_>,
    ) -> Result<Plan, HttpError> {
        let range_field = Field::range(range)?;
        let mut was_refused = false;
        loop {
            let token = self.token(limits)?;
            let is_old = self.is_old.load(Ordering::Relaxed);
            let mut url = token.server.clone();
            if let Ok(mut path) = url.path_segments_mut() {
                let version = if is_old { "v1" } else { "v2" };
                path.pop_if_empty().extend([version, "reconstructions", file.hash.as_str()]);
            }
            let (fields, secret) =
                (std::slice::from_ref(&range_field), std::slice::from_ref(&token.secret));
            match self.get(&url, fields, secret, PLAN_MAX_BYTES, limits)? {
                (200 | 206, body) => {
                    let plan = Plan::parse(&body, range, len_bytes, self.allows_http())?;
                    return Ok(plan);
                }
                (401 | 403, _) if !was_refused => {
                    was_refused = true;
                    self.forget(&token);
                }
                (404 | 501, _) if !is_old => self.is_old.store(true, Ordering::Relaxed),
                (416, _) => return Err(InvalidXet("the file is shorter").into()),
                (status, _) => return Err(HttpError::of_status(status)),
            }
        }
    }

    /// Returns `true` if URLs of `http` are permitted, because the Hub has such a URL.
    fn allows_http(&self) -> bool {
        self.url.scheme() == "http"
    }

    /// Returns a token that does not expire soon. One thread requests it, and the others wait.
    fn token(&self, limits: &Limits<'_>) -> Result<Arc<Token>, HttpError> {
        loop {
            if let Some(token) = self.last().as_ref().filter(|token| token.is_fresh()) {
                return Ok(Arc::clone(token));
            }
            // A lock is poisoned by a panic, which is not that of another request.
            let renewal = match self.renewal.try_lock() {
                Ok(renewal) => Some(renewal),
                Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(std::sync::TryLockError::WouldBlock) => None,
            };
            if renewal.is_some() {
                // Another thread may have stored one since.
                if let Some(token) = self.last().as_ref().filter(|token| token.is_fresh()) {
                    return Ok(Arc::clone(token));
                }
                // The clocks may differ, so a token that seems to have expired is tried, too.
                let token = Arc::new(self.request_token(limits)?);
                *self.last() = Some(Arc::clone(&token));
                return Ok(token);
            }
            limits.check()?;
            thread::sleep(GLANCE);
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Arc<Token>>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets a token that the server refuses.
    fn forget(&self, token: &Arc<Token>) {
        let mut last = self.last();
        if last.as_ref().is_some_and(|last| Arc::ptr_eq(last, token)) {
            *last = None;
        }
    }

    fn request_token(&self, limits: &Limits<'_>) -> Result<Token, HttpError> {
        let body = match self.get(&self.url, &[], &self.secret, TOKEN_MAX_BYTES, limits)? {
            (200, body) => body,
            (status, _) => return Err(HttpError::of_status(status)),
        };
        Ok(Token::parse(&body, self.allows_http())?)
    }

    /// Requests `url`, and receives the whole body. Failures that may pass are tried again.
    fn get(
        &self,
        url: &Url,
        fields: &[Field],
        secret: &[Field],
        max_bytes: usize,
        limits: &Limits<'_>,
    ) -> Result<(u16, Vec<u8>), HttpError> {
        let mut tries = Tries::default();
        loop {
            let answer = self.client.follow(url, fields, secret, limits).and_then(|followed| {
                let mut response = followed.response;
                let (status, retry_after_s) = (response.head.status, response.head.retry_after_s);
                let body = match status {
                    200 | 206 => response.body(max_bytes, limits)?,
                    _ => return Ok((status, retry_after_s, Vec::new())),
                };
                if !response.head.is_chunked && response.head.content_length.is_some() {
                    self.client.keep(response);
                }
                Ok((status, retry_after_s, body))
            });
            let (retry_after_s, error) = match answer {
                Ok((status, retry_after_s, body)) => match HttpError::of_status(status) {
                    error if error.is_transient() => (retry_after_s, error),
                    _ => return Ok((status, body)),
                },
                Err(error) => (None, error.into()),
            };
            tries.again(retry_after_s, error, limits)?;
        }
    }
}

impl Token {
    /// Parses the response of the Hub.
    fn parse(answer: &[u8], allow_http: bool) -> Result<Self, InvalidXet> {
        let answer: Answer = serde_json::from_slice(answer)
            .map_err(|_| InvalidXet("the response with the token is not valid"))?;
        let server = Url::parse(&answer.cas_url).ok();
        let server = server.filter(|url| is_permitted(url, allow_http));
        let mut server = server.ok_or(InvalidXet("the URL of the server is not valid"))?;
        server.set_query(None);
        server.set_fragment(None);
        let secret = Field::new("Authorization", format!("Bearer {}", answer.access_token));
        let secret = secret.ok_or(InvalidXet("the token has a control character"))?;
        let expires = UNIX_EPOCH.checked_add(Duration::from_secs(answer.exp));
        let expires = expires.ok_or(InvalidXet("the time of expiry is not valid"))?;
        Ok(Self { server, secret, expires })
    }

    fn is_fresh(&self) -> bool {
        self.expires.duration_since(SystemTime::now()).is_ok_and(|left| left > EXPIRES_SOON)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str, token: &str, exp: u64, allow_http: bool) -> Result<Token, InvalidXet> {
        let text = format!(r#"{{"casUrl":"{url}","accessToken":"{token}","exp":{exp}}}"#);
        Token::parse(text.as_bytes(), allow_http)
    }

    #[test]
    fn a_token_is_for_a_server_of_https() {
        let token = parse("https://cas/a/?b", "secret", 1 << 40, false).unwrap();
        assert!(token.server.as_str() == "https://cas/a/" && token.is_fresh());
        assert!(!format!("{:?}", token.secret).contains("secret"));
        assert!(!parse("https://cas", "secret", 1, false).unwrap().is_fresh());
        assert!(parse("http://127.0.0.1:1", "secret", 1, true).is_ok());
        for (url, token, exp, words) in [
            ("http://cas", "secret", 1, "URL"),
            ("file:///cas", "secret", 1, "URL"),
            ("/cas", "secret", 1, "URL"),
            ("https://cas", "secret\\r\\nA: b", 1, "control character"),
            ("https://cas", "secret\\u001b", 1, "control character"),
            ("https://cas", "secret", u64::MAX, "time of expiry"),
        ] {
            let refused = parse(url, token, exp, false).err().unwrap().to_string();
            assert!(refused.contains(words) && !refused.contains("secret"), "{url}: {refused}");
        }
        assert!(Token::parse(b"{}", true).is_err());
    }
}
