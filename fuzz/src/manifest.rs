//! Properties of the reader of manifests for any input.

use std::io::{Seek, Write};

use longshore_load::Manifest;

/// Parses `data` as a manifest of checksums.
pub fn manifest(data: &[u8]) {
    let mut file = tempfile::NamedTempFile::new().expect("a temporary file");
    file.write_all(data).and_then(|()| file.rewind()).expect("room for a temporary file");
    match Manifest::open(file.path()) {
        Ok(manifest) => {
            let kinds = manifest.kinds();
            let names: std::collections::BTreeSet<_> =
                kinds.iter().map(ToString::to_string).collect();
            assert_eq!(names.len(), kinds.len(), "a kind occurs twice");
            assert!(std::str::from_utf8(data).is_ok());
        }
        Err(refused) => {
            // The message goes to a terminal.
            let text = refused.to_string();
            assert!(!text.is_empty() && !text.contains(char::is_control), "{text:?}");
            assert!(text.len() < 4096, "{} bytes of message", text.len());
        }
    }
}
