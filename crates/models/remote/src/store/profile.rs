//! Profiles of the AWS tools, which `object_store` does not read: `aws` itself gives their credentials.

use std::env;
use std::fmt;
use std::io::{self, ErrorKind, Read as _};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::task::Poll;
use std::thread;
use std::time::{Duration, Instant};

use object_store::CredentialProvider;
use object_store::aws::AwsCredential;
use serde::Deserialize;

use crate::http::{HttpError, Limits};

/// The longest time that `aws` may take. With single sign-on, it makes a request.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The longest time until its output is there when it has ended.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which credentials are used. Those of a role are valid for at least 15 minutes.
const VALIDITY: Duration = Duration::from_secs(300);
/// The limit on the output of `aws`, in bytes. A session token has about 1,000.
const OUTPUT_MAX_BYTES: u64 = 64 << 10;

/// The credentials of a profile.
#[derive(Default)]
pub(super) struct Profile(Arc<Mutex<State>>);

/// The credentials that `aws` has given, or will give.
#[derive(Default)]
struct State {
    known: Option<(Instant, Result<Arc<AwsCredential>, String>)>,
    is_asked: bool,
}

/// The output of `aws configure export-credentials`, in the format for credential processes.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Exported {
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
}

impl Exported {
    /// Asks `aws` for the credentials.
    fn ask() -> io::Result<Arc<AwsCredential>> {
        let arguments = ["configure", "export-credentials", "--format", "process"];
        let exported: Self = match run(&arguments, None) {
            // The error of the parser could show a part of the text.
            Ok(output) => serde_json::from_str(&output)
                .map_err(|_| io::Error::new(ErrorKind::InvalidData, "its output is not valid"))?,
            // Version 1 has no such command, and knows only the keys in files.
            Err(error) => Self::of_files().ok_or(error)?,
        };
        // `object_store` cannot make a request with other characters.
        let is_sent = |text: &str| text.bytes().all(|byte| byte.is_ascii_graphic());
        if !is_sent(&exported.access_key_id)
            || !exported.session_token.as_deref().is_none_or(is_sent)
        {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "its output has invalid characters",
            ));
        }
        Ok(Arc::new(AwsCredential {
            key_id: exported.access_key_id,
            secret_key: exported.secret_access_key,
            token: exported.session_token,
        }))
    }

    /// Returns the keys that are in the files of the profile itself.
    fn of_files() -> Option<Self> {
        let setting = |name| Profile::setting(name, None).ok().flatten();
        Some(Self {
            access_key_id: setting("aws_access_key_id")?,
            secret_access_key: setting("aws_secret_access_key")?,
            session_token: setting("aws_session_token"),
        })
    }
}

impl Profile {
    /// Returns the profile of the environment, if there is one.
    pub(super) fn from_env() -> Option<Self> {
        has_profile().then(Self::default)
    }

    /// Returns a setting of the profile, such as `region`.
    ///
    /// # Errors
    /// [`HttpError::Stopped`], [`HttpError::TimeLimit`].
    pub(super) fn setting(
        name: &str,
        limits: Option<&Limits<'_>>,
    ) -> Result<Option<String>, HttpError> {
        let value = run(&["configure", "get", name], limits);
        limits.map_or(Ok(()), Limits::check_ended)?;
        let value = value.ok().map(|value| value.trim().to_owned());
        Ok(value.filter(|value| !value.is_empty()))
    }

    /// Returns the credentials, if they are known; otherwise a thread asks `aws` for them.
    fn credential(&self) -> Poll<Result<Arc<AwsCredential>, String>> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &state.known {
            Some((since, known)) if since.elapsed() < VALIDITY && known.is_ok() => {
                return Poll::Ready(known.clone());
            }
            Some((_, Err(error))) if !state.is_asked => {
                let error = Err(error.clone());
                // The next request asks again.
                state.known = None;
                return Poll::Ready(error);
            }
            _ if state.is_asked => return Poll::Pending,
            _ => state.is_asked = true,
        }
        let shared = Arc::clone(&self.0);
        let started = thread::Builder::new().name("longshore-aws".to_owned()).spawn(move || {
            let asked = Exported::ask().map_err(|error| error.to_string());
            let mut state = shared.lock().unwrap_or_else(PoisonError::into_inner);
            *state = State { known: Some((Instant::now(), asked)), is_asked: false };
        });
        match started {
            Ok(_) => Poll::Pending,
            Err(error) => {
                state.is_asked = false;
                Poll::Ready(Err(error.to_string()))
            }
        }
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").finish_non_exhaustive()
    }
}

impl CredentialProvider for Profile {
    type Credential = AwsCredential;

    fn get_credential<'a, 'f>(
        &'a self,
    ) -> Pin<Box<dyn Future<Output = object_store::Result<Arc<AwsCredential>>> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(std::future::poll_fn(|_| {
            self.credential().map(|credential| {
                credential.map_err(|error| {
                    let text = format!(
                        "the credentials of the AWS profile could not be read by `aws configure \
                         export-credentials` ({error}); install version 2 of the AWS command line and sign \
                         in, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or \
                         AWS_SKIP_SIGNATURE=true for a public bucket"
                    );
                    object_store::Error::Generic { store: "S3", source: text.into() }
                })
            })
        }))
    }
}

/// Returns `true` if the environment names a profile, or has files with profiles and `aws`.
pub(crate) fn has_profile() -> bool {
    let set = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
    let is_there = |variable: &str, name: &str| {
        let path = set(variable).map(PathBuf::from);
        let path = path.or_else(|| Some(env::home_dir()?.join(".aws").join(name)));
        path.is_some_and(|path| path.is_file())
    };
    let has_files = is_there("AWS_CONFIG_FILE", "config")
        || is_there("AWS_SHARED_CREDENTIALS_FILE", "credentials");
    // A file with only a region is usual on instances, whose metadata server has the credentials.
    let has_aws = || {
        let path = set("PATH").unwrap_or_default();
        env::split_paths(&path).any(|folder| folder.join("aws").is_file())
    };
    set("AWS_PROFILE").is_some() || has_files && has_aws()
}

/// Runs `aws`, and returns its output.
fn run(arguments: &[&str], limits: Option<&Limits<'_>>) -> io::Result<String> {
    let mut command = Command::new("aws");
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let stdout = child.stdout.take();
    let (sender, output) = mpsc::channel();
    thread::spawn(move || {
        let mut text = String::new();
        let read = stdout.map(|it| it.take(OUTPUT_MAX_BYTES).read_to_string(&mut text)).transpose();
        // The receiver may have given up.
        let _ = sender.send(read.map(|_| text));
    });
    let until = Instant::now() + TIMEOUT;
    let status = loop {
        match child.try_wait()? {
            Some(status) => break status,
            None if Instant::now() < until && limits.is_none_or(|it| it.check().is_ok()) => {
                thread::sleep(Duration::from_millis(10));
            }
            None => {
                child.kill()?;
                child.wait()?;
                return Err(ErrorKind::TimedOut.into());
            }
        }
    };
    if !status.success() {
        return Err(io::Error::other(status.to_string()));
    }
    // A program that it has started may keep its output open.
    output.recv_timeout(OUTPUT_TIMEOUT).map_err(|_| io::Error::from(ErrorKind::TimedOut))?
}
