//! The credentials that the environment has for servers, by the names of the variables and files that have them.

use std::env;
use std::path::PathBuf;

use crate::hub;
use crate::store::{Provider, has_profile};

/// The credentials that were found for a kind of source. They are not tried, and their content is not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundCredentials {
    /// The scheme of the sources, such as `s3`.
    pub scheme: &'static str,
    /// The names of the variables and files that have them. `None` if there are none.
    pub found: Option<String>,
    /// The advice if there are none.
    pub hint: &'static str,
}

/// Variables that have credentials together, the first choice first.
const S3: [&[&str]; 5] = [
    &["AWS_SKIP_SIGNATURE"],
    &["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"],
    &["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"],
    &["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"],
    &["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"],
];
const GCS: [&[&str]; 6] = [
    &["STORAGE_EMULATOR_HOST"],
    &["GOOGLE_SKIP_SIGNATURE"],
    &["GOOGLE_SERVICE_ACCOUNT"],
    &["GOOGLE_SERVICE_ACCOUNT_KEY"],
    &["SERVICE_ACCOUNT"],
    &["GOOGLE_APPLICATION_CREDENTIALS"],
];
const AZURE: [&[&str]; 8] = [
    &["AZURE_SKIP_SIGNATURE"],
    &["AZURE_STORAGE_CONNECTION_STRING"],
    &["AZURE_STORAGE_ACCOUNT_KEY"],
    &["AZURE_STORAGE_KEY"],
    &["AZURE_STORAGE_SAS_TOKEN"],
    &["AZURE_STORAGE_TOKEN"],
    &["AZURE_FEDERATED_TOKEN_FILE", "AZURE_CLIENT_ID", "AZURE_TENANT_ID"],
    &["AZURE_CLIENT_ID", "AZURE_CLIENT_SECRET", "AZURE_TENANT_ID"],
];

impl FoundCredentials {
    /// Looks for the credentials of each kind of source. Makes no request.
    pub fn all() -> Vec<Self> {
        let home = |path: &str| env::home_dir().map(|home| home.join(path));
        let is_file = |path: &PathBuf| path.is_file();
        let profile = || {
            let name = env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
            has_profile().then(|| format!("profile {name} of the AWS tools"))
        };
        let of_gcloud = || {
            let path = home(".config/gcloud/application_default_credentials.json");
            path.filter(is_file).map(|path| path.display().to_string())
        };
        vec![
            Self::of(Provider::S3, variables(&S3).or_else(profile)),
            Self::of(Provider::Gcs, variables(&GCS).or_else(of_gcloud)),
            Self::of(Provider::Azure, variables(&AZURE)),
            Self {
                scheme: "hf",
                found: hub::token_place(),
                hint: "set HF_TOKEN, or run: hf auth login (public models need none)",
            },
        ]
    }

    fn of(provider: Provider, found: Option<String>) -> Self {
        Self { scheme: provider.scheme(), found, hint: provider.hint() }
    }
}

/// Returns the names of the first variables that are all set.
fn variables(choices: &[&[&str]]) -> Option<String> {
    let is_set = |name: &&str| env::var_os(name).is_some_and(|value| !value.is_empty());
    let found = choices.iter().find(|names| names.iter().all(is_set));
    found.map(|names| names.join(", "))
}
