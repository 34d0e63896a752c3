//! Tokens of the command line of Azure. `object_store` would run it itself, but could not end it.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};

use object_store::azure::AzureCredential;
use serde::Deserialize;

use super::program::{Asked, run};

/// The output of `az account get-access-token`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Output {
    access_token: String,
}

/// Returns the credentials that `az` gives.
pub(super) fn credentials() -> Asked<AzureCredential> {
    Asked::new(ask, |error| {
        format!(
            "`az account get-access-token` has given no token ({error}); sign in with `az login`, or set \
             AZURE_STORAGE_ACCOUNT_KEY"
        )
    })
}

fn ask(is_ended: &AtomicBool) -> io::Result<AzureCredential> {
    let scope = "https://storage.azure.com/.default";
    let arguments = ["account", "get-access-token", "--output", "json", "--scope", scope];
    let output = run("az", &arguments, &|| is_ended.load(Ordering::Relaxed))?;
    // The error of the parser could show a part of the text.
    let invalid = || io::Error::new(ErrorKind::InvalidData, "its output is not valid");
    let Output { access_token } = serde_json::from_str(&output).map_err(|_| invalid())?;
    match access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
        true => Ok(AzureCredential::BearerToken(access_token)),
        false => Err(invalid()),
    }
}
