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

/// Removes the queries of URLs, which can be secret, from a text.
fn without_queries(text: &str) -> String {
    let mut shown = String::new();
    for word in text.split_inclusive(char::is_whitespace) {
        match word.split_once('?') {
            Some((before, query)) if before.contains("://") => {
                shown.push_str(before);
                shown.extend(query.chars().rev().take(1).filter(|last| last.is_whitespace()));
            }
            _ => shown.push_str(word),
        }
    }
    shown
}
