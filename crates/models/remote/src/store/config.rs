//! The settings of object stores: the variables that the tools of the providers read, and options of the caller.

use std::env;
use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use http::Uri;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::{ObjectStore, RetryConfig};
use url::Url;

use super::drive::Handover;
use super::name::Provider;
use super::refusal::unclear;
use super::{azure_cli, profile};
use crate::http::{HttpError, Limits};

/// The settings of S3 that give credentials.
const CREDENTIALS: [AmazonS3ConfigKey; 4] = [
    AmazonS3ConfigKey::AccessKeyId,
    AmazonS3ConfigKey::WebIdentityTokenFile,
    AmazonS3ConfigKey::ContainerCredentialsRelativeUri,
    AmazonS3ConfigKey::ContainerCredentialsFullUri,
];

/// The settings that are paths of files.
const S3_FILES: [AmazonS3ConfigKey; 2] =
    [AmazonS3ConfigKey::WebIdentityTokenFile, AmazonS3ConfigKey::ContainerAuthorizationTokenFile];
const GOOGLE_FILES: [GoogleConfigKey; 2] =
    [GoogleConfigKey::ServiceAccount, GoogleConfigKey::ApplicationCredentials];
const AZURE_FILES: [AzureConfigKey; 1] = [AzureConfigKey::FederatedTokenFile];

/// The settings of Azure that come before its command line.
const AZURE_CREDENTIALS: [AzureConfigKey; 6] = [
    AzureConfigKey::Token,
    AzureConfigKey::AccessKey,
    AzureConfigKey::SasKey,
    AzureConfigKey::ClientSecret,
    AzureConfigKey::FederatedTokenFile,
    AzureConfigKey::FabricSessionToken,
];

/// The settings that are URLs, and those that requests contain as they are.
const S3_URLS: [AmazonS3ConfigKey; 4] = [
    AmazonS3ConfigKey::Endpoint,
    AmazonS3ConfigKey::S3Endpoint,
    AmazonS3ConfigKey::StsEndpoint,
    AmazonS3ConfigKey::MetadataEndpoint,
];
const S3_WORDS: [AmazonS3ConfigKey; 3] =
    [AmazonS3ConfigKey::AccessKeyId, AmazonS3ConfigKey::Token, AmazonS3ConfigKey::Region];
const AZURE_URLS: [AzureConfigKey; 3] =
    [AzureConfigKey::Endpoint, AzureConfigKey::AuthorityHost, AzureConfigKey::MsiEndpoint];
const AZURE_WORDS: [AzureConfigKey; 2] = [AzureConfigKey::AccountName, AzureConfigKey::Token];

/// Settings that replace those of the environment. Their values can be secret, so they are not shown.
#[derive(Clone, Default)]
pub(crate) struct StoreOptions(Vec<(String, String)>);

impl StoreOptions {
    /// Sets an option. Returns `false` if no provider has one of this name.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> bool {
        let is_known = is_known::<AmazonS3ConfigKey>(name)
            || is_known::<GoogleConfigKey>(name)
            || is_known::<AzureConfigKey>(name);
        if is_known {
            self.0.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        is_known
    }

    /// Makes the part of `object_store` that signs requests for a bucket. A `region` replaces that of the settings.
    ///
    /// # Errors
    /// [`HttpError::Credentials`] or [`io::ErrorKind::InvalidInput`] if the settings are not valid;
    /// [`HttpError::Stopped`] and [`HttpError::TimeLimit`] while `aws` is asked for a profile.
    pub(super) fn signer(
        &self,
        provider: Provider,
        bucket: &str,
        region: Option<&str>,
        limits: &Limits<'_>,
    ) -> Result<Arc<dyn ObjectStore>, HttpError> {
        // The client makes the tries.
        let retry = RetryConfig { max_retries: 0, ..RetryConfig::default() };
        let built: object_store::Result<Arc<dyn ObjectStore>> = match provider {
            Provider::S3 => {
                let builder =
                    environment("AWS_", AmazonS3Builder::new(), AmazonS3Builder::with_config)
                        .with_bucket_name(bucket)
                        .with_http_connector(Handover)
                        .with_retry(retry);
                let mut builder = self.each(builder, AmazonS3Builder::with_config);
                let value = |key| builder.get_config_value(&key);
                let is_unsigned =
                    value(AmazonS3ConfigKey::SkipSignature).as_deref() == Some("true");
                let has_credentials =
                    is_unsigned || CREDENTIALS.into_iter().any(|key| value(key).is_some());
                if !has_credentials && let Some(credentials) = profile::credentials() {
                    for (key, name) in [
                        (AmazonS3ConfigKey::Region, "region"),
                        (AmazonS3ConfigKey::Endpoint, "endpoint_url"),
                    ] {
                        if builder.get_config_value(&key).is_none()
                            && let Some(value) = profile::setting(name, limits)?
                        {
                            builder = builder.with_config(key, value);
                        }
                    }
                    builder = builder.with_credentials(Arc::new(credentials));
                }
                if let Some(region) = region {
                    builder = builder.with_region(region);
                }
                check(|key| builder.get_config_value(key), &S3_URLS, &S3_WORDS, &S3_FILES)?;
                builder.build().map(|store| Arc::new(store) as _)
            }
            Provider::Gcs => {
                let mut builder = GoogleCloudStorageBuilder::new();
                if let Some(path) = set("SERVICE_ACCOUNT") {
                    builder = builder.with_service_account_path(path);
                }
                builder = environment("GOOGLE_", builder, GoogleCloudStorageBuilder::with_config)
                    .with_bucket_name(bucket)
                    .with_http_connector(Handover)
                    .with_retry(retry);
                if let Some(host) = set("STORAGE_EMULATOR_HOST") {
                    let url = if host.contains("://") { host } else { format!("http://{host}") };
                    builder = builder.with_base_url(&url).with_skip_signature(true);
                }
                let builder = self.each(builder, GoogleCloudStorageBuilder::with_config);
                check(
                    |key| builder.get_config_value(key),
                    &[GoogleConfigKey::BaseUrl],
                    &[],
                    &GOOGLE_FILES,
                )?;
                builder.build().map(|store| Arc::new(store) as _)
            }
            Provider::Azure => {
                let mut builder = MicrosoftAzureBuilder::new();
                if let Some(endpoint) = set("IDENTITY_ENDPOINT") {
                    builder = builder.with_msi_endpoint(endpoint);
                }
                builder = environment("AZURE_", builder, MicrosoftAzureBuilder::with_config);
                for (key, value) in azure_environment() {
                    builder = builder.with_config(key, value);
                }
                let builder = builder
                    .with_container_name(bucket)
                    .with_http_connector(Handover)
                    .with_retry(retry);
                let mut builder = self.each(builder, MicrosoftAzureBuilder::with_config);
                let value = |key| builder.get_config_value(&key);
                let uses_cli = value(AzureConfigKey::UseAzureCli).as_deref() == Some("true");
                if uses_cli && AZURE_CREDENTIALS.into_iter().all(|key| value(key).is_none()) {
                    let credentials = Arc::new(azure_cli::credentials());
                    builder = builder.with_use_azure_cli(false).with_credentials(credentials);
                }
                check(
                    |key| builder.get_config_value(key),
                    &AZURE_URLS,
                    &AZURE_WORDS,
                    &AZURE_FILES,
                )?;
                builder.build().map(|store| Arc::new(store) as _)
            }
        };
        built.map_err(|error| unclear(&error))
    }

    /// Applies the options that a provider knows.
    fn each<B, K: FromStr>(&self, builder: B, apply: impl Fn(B, K, String) -> B) -> B {
        self.0.iter().fold(builder, |builder, (name, value)| match name.parse() {
            Ok(key) => apply(builder, key, value.clone()),
            Err(_) => builder,
        })
    }
}

impl fmt::Debug for StoreOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

fn is_known<K: FromStr>(name: &str) -> bool {
    name.to_ascii_lowercase().parse::<K>().is_ok()
}

/// Checks the settings that requests contain: `object_store` panics if it cannot make a request of them.
fn check<K: AsRef<str>>(
    value: impl Fn(&K) -> Option<String>,
    urls: &[K],
    words: &[K],
    files: &[K],
) -> Result<(), HttpError> {
    let invalid = |key: &K, problem: &str| {
        let message = format!("{} {problem}", key.as_ref());
        Err(io::Error::new(io::ErrorKind::InvalidInput, message).into())
    };
    for key in urls {
        if value(key).is_some_and(|url| !is_http_url(&url)) {
            return invalid(key, "is not a URL that begins with https:// or http://");
        }
    }
    for key in words {
        if value(key).is_some_and(|word| !word.bytes().all(|byte| byte.is_ascii_graphic())) {
            return invalid(key, "contains a space, a line break or another invalid character");
        }
    }
    for key in files {
        // A FIFO would be waited for.
        let found = value(key).and_then(|path| std::fs::metadata(path).ok());
        if found.is_some_and(|found| !found.is_file()) {
            return invalid(key, "is not the path of a regular file");
        }
    }
    Ok(())
}

fn is_http_url(text: &str) -> bool {
    let is_http = Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "https" | "http"));
    is_http && text.parse::<Uri>().is_ok_and(|uri| uri.host().is_some())
}

fn set(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// Applies the variables of the environment with this prefix, except empty ones.
fn environment<B, K: FromStr>(prefix: &str, builder: B, apply: impl Fn(B, K, String) -> B) -> B {
    let all = env::vars_os().filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with(prefix))?;
        Some((name.to_ascii_lowercase().parse().ok()?, value.into_string().ok()?))
    });
    all.filter(|(_, value)| !value.is_empty())
        .fold(builder, |builder, (key, value)| apply(builder, key, value))
}

/// Returns the settings that the Azure tools read, and `object_store` does not.
fn azure_environment() -> Vec<(AzureConfigKey, String)> {
    let mut found = Vec::new();
    let (mut account, mut suffix) = (None, None);
    let text = set("AZURE_STORAGE_CONNECTION_STRING").unwrap_or_default();
    for part in text.split(';') {
        let Some((name, value)) = part.split_once('=') else { continue };
        let key = match name {
            "AccountName" => {
                account = Some(value);
                AzureConfigKey::AccountName
            }
            "EndpointSuffix" => {
                suffix = Some(value);
                continue;
            }
            "UseDevelopmentStorage" => AzureConfigKey::UseEmulator,
            "AccountKey" => AzureConfigKey::AccessKey,
            "BlobEndpoint" => AzureConfigKey::Endpoint,
            "SharedAccessSignature" => AzureConfigKey::SasKey,
            _ => continue,
        };
        found.push((key, value.to_owned()));
    }
    if let (Some(account), Some(suffix)) = (account, suffix)
        && !found.iter().any(|(key, _)| *key == AzureConfigKey::Endpoint)
    {
        let endpoint = format!("https://{account}.blob.{suffix}");
        found.push((AzureConfigKey::Endpoint, endpoint));
    }
    for (name, key) in [
        ("AZURE_STORAGE_ACCOUNT", AzureConfigKey::AccountName),
        ("AZURE_STORAGE_KEY", AzureConfigKey::AccessKey),
    ] {
        found.extend(set(name).map(|value| (key, value)));
    }
    found
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn signer(provider: Provider, options: &[(&str, &str)]) -> Result<(), HttpError> {
        let mut settings = StoreOptions::default();
        for (name, value) in options {
            assert!(settings.set(name, value), "{name}");
        }
        let limits = Limits { control: &|| false, idle_timeout: Duration::ZERO, deadline: None };
        settings.signer(provider, "bucket", None, &limits).map(drop)
    }

    #[test]
    fn settings_of_which_no_request_can_be_made_are_named_and_not_shown() {
        let line = "secret\nsecret";
        for (provider, name, value, expected) in [
            (Provider::S3, "aws_endpoint_url", "localhost:9000", "is not a URL"),
            (Provider::S3, "aws_endpoint_url", "", "is not a URL"),
            (Provider::S3, "aws_endpoint_url", "http://", "is not a URL"),
            (Provider::S3, "aws_endpoint_url", "http://\u{fc}", "is not a URL"),
            (Provider::S3, "aws_access_key_id", line, "line break"),
            (Provider::S3, "aws_session_token", line, "line break"),
            (Provider::S3, "aws_region", "us east", "a space"),
            (Provider::Gcs, "google_base_url", "localhost:9000", "is not a URL"),
            (Provider::Azure, "azure_storage_account_name", line, "line break"),
            (Provider::Azure, "azure_storage_token", line, "line break"),
            (Provider::S3, "aws_web_identity_token_file", "/dev/null", "regular file"),
            (Provider::Gcs, "google_service_account", "/dev/null", "regular file"),
            (Provider::Azure, "azure_federated_token_file", "/dev/null", "regular file"),
        ] {
            let error = signer(provider, &[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(expected) && !error.contains("secret\n"), "{name}: {error}");
        }
    }

    #[test]
    fn values_that_cannot_be_parsed_are_not_shown() {
        let error = signer(Provider::S3, &[("aws_skip_signature", "hidden-value")]).unwrap_err();
        assert!(error.to_string().contains("parse \"…\" as boolean"), "{error}");
    }
}
