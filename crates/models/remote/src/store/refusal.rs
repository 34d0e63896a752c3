//! Errors of `object_store`, without secrets.

use std::error::Error;
use std::io;

use crate::http::HttpError;

/// The number of characters that are shown of an error.
const SHOWN_MAX: usize = 200;
/// The beginnings of errors that say nothing of their own.
const EMPTY: [&str; 3] = ["GCP credential error", "Azure credential error", "Generic error"];

/// The text of an error of this crate, which has no secrets.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Clear(pub(super) String);

/// Makes the error for settings or credentials that `object_store` refuses.
///
/// Its causes can be errors of parsers, which show what they cannot parse: keys and responses with tokens. So only the
/// beginning is shown, without text in quotation marks, and the error of the system.
pub(super) fn unclear(error: &object_store::Error) -> HttpError {
    if let Some(Clear(text)) = causes(error).find_map(|cause| cause.downcast_ref()) {
        return HttpError::Credentials(text.clone());
    }
    let text = error.to_string();
    let text = match text.split_once(" error: ") {
        Some((store, reason)) if store.starts_with("Generic ") => reason,
        _ => &text,
    };
    let parts = text.split(": ").skip_while(|part| EMPTY.contains(part));
    let mut shown: String = without_quoted(parts.take(1).next().unwrap_or_default());
    let mut errors = causes(error).filter_map(|cause| cause.downcast_ref::<io::Error>());
    if let Some(number) = errors.find_map(io::Error::raw_os_error) {
        shown += &format!(": {}", io::Error::from_raw_os_error(number));
    }
    HttpError::Credentials(shown.chars().take(SHOWN_MAX).collect())
}

/// The codes of S3 for credentials that it does not accept, and what to do.
const S3_CODES: [(&str, &str); 6] = [
    ("ExpiredToken", "renew the credentials"),
    ("TokenRefreshRequired", "renew the credentials"),
    ("InvalidToken", "check the session token"),
    ("InvalidAccessKeyId", "check the access key"),
    ("SignatureDoesNotMatch", "check the secret access key"),
    ("RequestTimeTooSkewed", "correct the clock of this machine"),
];

/// Returns the code in the body of a refusal, and what to do, if it is one for credentials.
pub(super) fn s3_refusal(body: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(body);
    let code = text.split_once("<Code>")?.1.split_once("</Code>")?.0;
    let (code, hint) = S3_CODES.iter().find(|(known, _)| *known == code)?;
    Some(format!("{code}); {hint}"))
}

/// Returns an error and its causes.
fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

/// Removes texts in quotation marks, and the rest from the query of a URL on.
fn without_quoted(text: &str) -> String {
    let parts = text.split('"').enumerate();
    let parts = parts.map(|(at, part)| if at % 2 == 0 { part } else { "…" });
    let text = parts.collect::<Vec<_>>().join("\"");
    match text.split_once('?') {
        Some((before, _)) if before.contains("://") => format!("{before}…"),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> String {
        let source = text.to_owned().into();
        unclear(&object_store::Error::Generic { store: "S3", source }).to_string()
    }

    #[test]
    fn only_the_beginning_of_an_error_is_shown() {
        for (text, expected) in [
            ("Missing SecretAccessKey", "Missing SecretAccessKey"),
            ("failed to parse \"secret\" as boolean", "failed to parse \"…\" as boolean"),
            (
                "Error reading pem file: missing section end marker: [80, 82]",
                "Error reading pem file",
            ),
            (
                "GCP credential error: Unable to decode service account file: invalid type: string \"s\"",
                "Unable to decode service account file",
            ),
            ("Error at https://host/a?sig=1", "Error at https://host/a…"),
        ] {
            assert_eq!(shown(text), expected);
        }
    }

    #[test]
    fn errors_of_this_crate_and_of_the_system_are_shown() {
        let source = Clear("a: b: c".to_owned()).into();
        let error = object_store::Error::Generic { store: "S3", source };
        assert_eq!(unclear(&error).to_string(), "a: b: c");
        let source = io::Error::from_raw_os_error(2).into();
        let error = object_store::Error::Generic { store: "S3", source };
        assert!(unclear(&error).to_string().contains("No such file"), "{}", unclear(&error));
    }
}
