//! An `Opener` that limits the number of files of a model, and one that finds only one file.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use longshore_load::{Error, FormatChoice, Opener, Result, SourceFile, open_by, others_of};

mod allocator;

use allocator::peak_bytes;

const FILES_MAX: u64 = 2;

struct Few;

impl Opener for Few {
    fn open(&self, path: &Path) -> Result<SourceFile> {
        SourceFile::open(path)
    }

    fn permit_files(&self, source: &SourceFile, count: u64) -> Result<()> {
        if count <= FILES_MAX {
            return Ok(());
        }
        let (path, source) = (source.path().to_owned(), format!("{count} files").into());
        Err(Error::Refused { path, source })
    }
}

/// Returns the first of `count` splits, without tensors.
fn split_header(count: u32) -> Vec<u8> {
    let mut header = [&b"GGUF"[..], &3_u32.to_le_bytes()].concat();
    header.extend([0_u64, 2].map(u64::to_le_bytes).concat());
    for (key, number) in [("split.no", 0), ("split.count", count)] {
        header.extend((key.len() as u64).to_le_bytes());
        header.extend(key.as_bytes());
        header.extend([4, number].map(u32::to_le_bytes).concat());
    }
    header
}

#[test]
fn the_number_of_files_is_checked_before_their_paths_are_made() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("m.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"x":"a","y":"b","z":"c"}}"#).unwrap();
    let first = folder.path().join("m-00001-of-99999.gguf");
    fs::write(&first, split_header(99_999)).unwrap();
    for (path, count) in [(&index, 3), (&first, 99_999)] {
        let calls: [fn(&Path) -> Result<usize>; 2] = [
            |path| others_of(path, FormatChoice::Auto, &Few).map(|others| others.len()),
            |path| {
                open_by(&[path], FormatChoice::Auto, &Few).map(|opened| opened.plan.files().len())
            },
        ];
        for call in calls {
            let (refused, peak_bytes) = peak_bytes(|| call(path));
            match refused.unwrap_err() {
                Error::Refused { source, .. } => {
                    assert_eq!(source.to_string(), format!("{count} files"));
                }
                other => panic!("{other:?}"),
            }
            assert!(peak_bytes < 1 << 20, "{peak_bytes} bytes for {}", path.display());
        }
    }
    // With the permitted number of files, the opener is asked for them, but they do not exist.
    fs::write(&index, r#"{"weight_map":{"x":"a","y":"b"}}"#).unwrap();
    assert_eq!(others_of(&index, FormatChoice::Auto, &Few).unwrap().len(), 2);
    let missing = open_by(&[index], FormatChoice::Auto, &Few).unwrap_err();
    assert!(matches!(missing, Error::Format { .. }), "{missing}");
}

#[test]
fn only_the_opener_looks_for_missing_files() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("m.safetensors.index.json");
    fs::write(&index, r#"{"weight_map":{"x":"a","y":"b"}}"#).unwrap();
    let first = folder.path().join("m-00001-of-00003.gguf");
    fs::write(&first, split_header(3)).unwrap();
    // These files exist, but the opener does not find them.
    for name in ["a", "b", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"] {
        fs::write(folder.path().join(name), []).unwrap();
    }
    for (named, count) in [(index, "2 of 2 shards are missing"), (first, "2 of 3 are missing")] {
        let opener = |path: &Path| match path == named {
            true => SourceFile::open(path),
            false => Err(Error::Open { path: path.into(), source: ErrorKind::NotFound.into() }),
        };
        let missing = open_by(&[&named], FormatChoice::Auto, &opener).unwrap_err().to_string();
        assert!(missing.contains(count), "{missing}");
    }
}
