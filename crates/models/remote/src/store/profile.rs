//! Profiles of the AWS tools, which `object_store` does not read: `aws` itself gives their credentials.

use std::env;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::aws::AwsCredential;
use serde::Deserialize;

use super::program::{Asked, run};
use crate::http::{HttpError, Limits};

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
    fn ask(is_ended: &AtomicBool) -> io::Result<AwsCredential> {
        let is_ended = || is_ended.load(Ordering::Relaxed);
        let arguments = ["configure", "export-credentials", "--format", "process"];
        let exported: Self = match run("aws", &arguments, &is_ended) {
            // The error of the parser could show a part of the text.
            Ok(output) => serde_json::from_str(&output)
                .map_err(|_| io::Error::new(ErrorKind::InvalidData, "its output is not valid"))?,
            // Version 1 has no such command, and knows only the keys in files.
            Err(error) => Self::of_files(&is_ended).ok_or(error)?,
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
        Ok(AwsCredential {
            key_id: exported.access_key_id,
            secret_key: exported.secret_access_key,
            token: exported.session_token,
        })
    }

    /// Returns the keys that are in the files of the profile itself.
    fn of_files(is_ended: &dyn Fn() -> bool) -> Option<Self> {
        Some(Self {
            access_key_id: get("aws_access_key_id", is_ended)?,
            secret_access_key: get("aws_secret_access_key", is_ended)?,
            session_token: get("aws_session_token", is_ended),
        })
    }
}

/// Returns the credentials of the profile of the environment, if there is one.
pub(super) fn credentials() -> Option<Asked<AwsCredential>> {
    has_profile().then(|| {
        Asked::new(Exported::ask, |error| {
            format!(
                "the credentials of the AWS profile could not be read by `aws configure export-credentials` \
                 ({error}); install version 2 of the AWS command line and sign in, or set AWS_ACCESS_KEY_ID \
                 and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a public bucket"
            )
        })
    })
}

/// Returns a setting of the profile, such as `region`.
///
/// # Errors
/// [`HttpError::Stopped`], [`HttpError::TimeLimit`].
pub(super) fn setting(name: &str, limits: &Limits<'_>) -> Result<Option<String>, HttpError> {
    let value = get(name, &|| limits.check().is_err());
    limits.check_ended()?;
    Ok(value)
}

fn get(name: &str, is_ended: &dyn Fn() -> bool) -> Option<String> {
    let value = run("aws", &["configure", "get", name], is_ended).ok()?;
    Some(value.trim().to_owned()).filter(|value| !value.is_empty())
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
