//! Tests of synthetic models with the reference implementation, and of writing them to the disk.

use std::fs;
use std::path::Path;

use longshore::CancelToken;
use longshore::formats::safetensors::Header;

use super::safetensors::Synthetic;

const MIB: u64 = 1 << 20;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in("/var/tmp").unwrap()
}

/// Returns the names in a folder, sorted.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_reference_implementation_parses_a_synthetic_model() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    for len_bytes in [32 << 10, 100_003, 512 << 10, 8 * MIB, 33 * MIB + 9] {
        let model = Synthetic::new(len_bytes).unwrap().seed(len_bytes);
        let mut seen = Vec::new();
        model
            .write(&path, &CancelToken::new(), |progress| {
                assert_eq!(progress.total_bytes, len_bytes & !7);
                seen.push(progress.done_bytes);
            })
            .unwrap();
        assert!(seen.is_sorted() && seen.last() == Some(&(len_bytes & !7)), "{seen:?}");
        let file = fs::read(&path).unwrap();
        assert_eq!((file.len() as u64, model.len_bytes()), (len_bytes & !7, len_bytes & !7));
        let mut expected = vec![0; file.len()];
        model.fill(0, &mut expected);
        assert!(file == expected);
        let (_, theirs) = ::safetensors::SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(theirs.tensors().len(), model.header().tensors.len());
        let read = Header::parse(&file, file.len() as u64).unwrap();
        assert_eq!(read, *model.header());
        assert_eq!(read.metadata["format"], "pt");
        assert!(read.tensor("model.layers.0.self_attn.q_proj.weight").is_some());
        assert_eq!(names(folder.path()), ["model.safetensors"]);
    }
}

#[test]
fn synthetic_content_neither_repeats_nor_compresses() {
    let model = Synthetic::new(MIB).unwrap();
    let mut bytes = vec![0; MIB as usize];
    model.fill(0, &mut bytes);
    let content = &bytes[model.header().data_offset as usize..];
    let mut words: Vec<&[u8]> = content.chunks_exact(8).collect();
    let count = words.len();
    words.sort_unstable();
    words.dedup();
    assert_eq!(words.len(), count, "a word occurs twice");
    // Each byte value occurs about 4,000 times, within 5 standard deviations.
    let mut histogram = [0u32; 256];
    content.iter().for_each(|byte| histogram[usize::from(*byte)] += 1);
    let mean = content.len() as f64 / 256.0;
    for count in histogram {
        assert!((f64::from(count) - mean).abs() < 5.0 * mean.sqrt(), "{count} of {mean}");
    }
    let mut other = vec![0; MIB as usize];
    Synthetic::new(MIB).unwrap().seed(1).fill(0, &mut other);
    assert_ne!(bytes, other);
}

#[test]
fn a_failed_or_cancelled_write_keeps_the_existing_file() {
    let folder = folder();
    let path = folder.path().join("model.safetensors");
    for len_bytes in [0, (32 << 10) - 1, u64::MAX] {
        let refused = Synthetic::new(len_bytes).unwrap_err();
        assert!(refused.to_string().contains("32.77 kB to 17.59 TB"), "{refused}");
    }
    fs::write(&path, "before").unwrap();
    let model = Synthetic::new(30 * MIB).unwrap();
    let cancel = CancelToken::new();
    let written = model.write(&path, &cancel, |_| cancel.cancel()).unwrap();
    assert_eq!((written, model.len_bytes()), (8 * MIB, 30 * MIB));
    assert_eq!(fs::read(&path).unwrap(), b"before");
    for nowhere in ["missing/model", "model.safetensors/model", "."] {
        let nowhere = folder.path().join(nowhere);
        let error = model.write(&nowhere, &CancelToken::new(), |_| {}).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("failed after 0 bytes of 31.46 MB"), "{text}");
    }
    assert_eq!(names(folder.path()), ["model.safetensors"]);
}
