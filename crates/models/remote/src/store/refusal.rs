//! Errors of `object_store`, without secrets.

use crate::http::HttpError;

/// Makes the error for settings or credentials that `object_store` refuses. The `secrets` are not shown.
pub(super) fn unclear<'a>(
    error: &object_store::Error,
    secrets: impl Iterator<Item = &'a str>,
) -> HttpError {
    let text = error.to_string();
    let text = match text.split_once(" error: ") {
        Some((store, reason)) if store.starts_with("Generic ") => reason,
        _ => &text,
    };
    let shown = secrets.fold(without_queries(text), |text, secret| text.replace(secret, "…"));
    HttpError::Credentials(shown)
}

/// Removes the rest of a text from the query of a URL on, which can be secret.
fn without_queries(text: &str) -> String {
    match text.split_once('?') {
        Some((before, _)) if before.contains("://") => format!("{before}…"),
        _ => text.to_owned(),
    }
}
