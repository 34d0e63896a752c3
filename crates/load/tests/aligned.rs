//! Tensors at multiples of an alignment: each with its own bytes, in a buffer that is a whole file
//! of its format, whichever way they came.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use longshore_heap::Heap;
use longshore_load::format::safetensors::Header;
use longshore_load::format::{self, FormatChoice, Opened, gguf};
use longshore_load::{CancelToken, DigestKind, Error, Loader, ReadMode};
use longshore_mem::Granule;
use serde_json::{Map, json};

const MIB: usize = 1 << 20;

/// Large ones, small ones side by side, odd sizes and none: the second is longer than any read.
const SIZES: [usize; 12] =
    [8192, 9 * MIB + 4096, 1, 0, 4096, 100, 3 * MIB, 64, 4097, 2 * MIB, 12_345, 640];

fn content(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
    /// Names and bytes.
    tensors: Vec<(String, Vec<u8>)>,
    /// The whole file.
    bytes: Vec<u8>,
}

/// A safetensors file, its data from an offset that is a multiple of `pad` but for 8 bytes.
fn model(sizes: &[usize], pad: usize) -> Model {
    let all = content(sizes.iter().sum());
    let (mut object, mut tensors, mut at) = (Map::new(), Vec::new(), 0);
    for (index, size) in sizes.iter().enumerate() {
        let (name, end) = (format!("layer.{index}"), at + size);
        let description = json!({ "dtype": "U8", "shape": [size], "data_offsets": [at, end] });
        object.insert(name.clone(), description);
        tensors.push((name, all[at..end].to_vec()));
        at = end;
    }
    let mut text = serde_json::Value::Object(object).to_string();
    text.extend(std::iter::repeat_n(' ', text.len().next_multiple_of(pad) - text.len()));
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(&all);
    // `/var/tmp` is on a disk where `/tmp` may not be.
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("model.safetensors");
    let mut file = File::create(&path).unwrap();
    file.write_all(&bytes).unwrap();
    file.sync_all().unwrap();
    Model { _folder: folder, path, tensors, bytes }
}

fn evict(path: &Path) {
    longshore_sys::page_cache::evict(File::open(path).unwrap()).unwrap();
}

/// Has the file in the page cache, or not.
fn settle(path: &Path, cold: bool) {
    if cold {
        evict(path);
    } else {
        std::fs::read(path).unwrap();
    }
}

fn open(path: &Path, alignment: u64) -> Opened {
    let opened = format::open(&[path], FormatChoice::Auto).unwrap();
    opened.align(Granule::new(alignment).unwrap()).unwrap()
}

/// Holds what was loaded against the model, and returns how many bytes were staged.
fn check(model: &Model, alignment: u64, loader: Loader<'_>, case: &str) -> u64 {
    let opened = open(&model.path, alignment);
    let loaded = loader.digest(DigestKind::Crc32c).load(&opened.plan).unwrap();
    let bytes = loaded.buffer.read().unwrap();
    let mut seen = 0;
    for placed in opened.placed_tensors() {
        let named = model.tensors.iter().find(|(name, _)| *name == placed.tensor.name);
        let Some((name, expected)) = named else { continue };
        let range = placed.buffer_range.start as usize..placed.buffer_range.end as usize;
        assert!(
            range.is_empty() || (range.start as u64).is_multiple_of(alignment),
            "{case}, {name}"
        );
        assert!(bytes[range] == expected[..], "{case}: {name} differs");
        seen += 1;
    }
    assert_eq!(seen, model.tensors.len(), "{case}");
    // The buffer is a file by itself, and so read by whoever reads such files.
    let header = Header::parse(Path::new("buffer"), &bytes, bytes.len() as u64).unwrap();
    let header = format::Header::Safetensors(header);
    assert!(header.is_aligned(Granule::new(alignment).unwrap()), "{case}");
    safetensors::SafeTensors::deserialize(&bytes).unwrap();
    // The checksum is that of the file on the disk.
    let whole = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &model.bytes);
    assert_eq!(loaded.files[0].digests[0].1, format!("{whole:08x}"), "{case}");
    let routes = loaded.report.by_route;
    let sum = routes.direct + routes.staged + routes.page_cache + routes.uncached + routes.buffered;
    assert_eq!((sum, loaded.report.content_bytes), (sum, sum), "{case}");
    routes.staged
}

#[test]
fn every_alignment_in_every_mode() {
    let model = model(&SIZES, 8);
    let status = longshore_sys::file::status(File::open(&model.path).unwrap()).unwrap();
    for alignment in [1, 64, 256, 4096, 2 << 20] {
        for mode in [ReadMode::Auto, ReadMode::Direct, ReadMode::Buffered, ReadMode::Uncached] {
            for (heap, cold) in
                [(Heap::Memfd, true), (Heap::Memfd, false), (Heap::MemfdBasePages, true)]
            {
                let case = format!("{alignment}, {mode}, {heap}, cold {cold}");
                settle(&model.path, cold);
                let opened = open(&model.path, alignment);
                let loader = || Loader::new().heap(heap.clone()).mode(mode).read_size(2 << 20);
                match loader().load(&opened.plan) {
                    Err(Error::ModeUnavailable { .. }) => continue,
                    loaded => drop(loaded.unwrap()),
                }
                settle(&model.path, cold);
                let staged = check(&model, alignment, loader(), &case);
                let from_disk = mode == ReadMode::Direct || cold && mode == ReadMode::Auto;
                // What the disk cannot write to its place: all of it, where it wants blocks.
                let all = model.tensors.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
                if alignment == 1 || !from_disk {
                    assert_eq!(staged, 0, "{case}");
                } else if status.direct.is_some_and(|direct| direct.memory.bytes() > 8) {
                    assert_eq!(staged, all, "{case}");
                }
            }
        }
    }
}

#[test]
fn what_is_aligned_already_is_loaded_as_it_is() {
    // The header ends at a multiple of 64, and so does every tensor but the last.
    let sizes = [64, 4096, 5 * MIB, 10];
    let base = model(&sizes, 64);
    let header_len = base.bytes.len() - sizes.iter().sum::<usize>();
    let model = model(&sizes, 64 - 8 + header_len.next_multiple_of(64));
    let opened = format::open(&[&model.path], FormatChoice::Auto).unwrap();
    let aligned = opened.tensors[0].header.is_aligned(Granule::new(8).unwrap());
    assert!(aligned);
    evict(&model.path);
    let loaded = Loader::new().heap(Heap::Memfd).load(&open(&model.path, 8).plan).unwrap();
    assert!(*loaded.buffer.read().unwrap() == model.bytes[..]);
    assert_eq!(loaded.report.by_route.staged, 0);
}

#[test]
fn several_files_are_each_an_image_and_raw_ones_stay() {
    let (first, second) = (model(&[100, 200], 8), model(&[3 * MIB + 1, 7], 8));
    let raw = first.path.with_file_name("notes.bin");
    std::fs::write(&raw, content(5000)).unwrap();
    let opened = format::open(&[&first.path, &raw, &second.path], FormatChoice::Auto).unwrap();
    let alignment = Granule::new(64 << 10).unwrap();
    let opened = opened.align(alignment).unwrap();
    let loaded = Loader::new().heap(Heap::Memfd).load(&opened.plan).unwrap();
    let bytes = loaded.buffer.read().unwrap();
    for (file, planned) in loaded.files.iter().zip(opened.plan.files()) {
        assert!(alignment.is_aligned(file.buffer_offset), "{file:?}");
        let (start, end) = (planned.buffer_range().start, planned.buffer_range().end);
        assert_eq!((file.buffer_offset, file.len_bytes), (start, end - start));
    }
    let raw_at = loaded.files[1].buffer_offset as usize;
    assert_eq!(bytes[raw_at..raw_at + 5000], content(5000));
    let all: Vec<_> = first.tensors.iter().chain(&second.tensors).collect();
    let placed: Vec<_> =
        opened.placed_tensors().filter(|placed| !placed.tensor.is_padding()).collect();
    assert_eq!(placed.len(), all.len());
    for (placed, (name, expected)) in placed.iter().zip(all) {
        let range = placed.buffer_range.start as usize..placed.buffer_range.end as usize;
        assert!(bytes[range] == expected[..], "{name}");
    }
}

/// A GGUF file of version 3 with tensors of bytes at multiples of 32, as ggml writes them.
fn gguf_model(sizes: &[usize]) -> Model {
    const I8: u32 = 24;
    let mut head = b"GGUF".to_vec();
    head.extend(3u32.to_le_bytes());
    head.extend((sizes.len() as u64).to_le_bytes());
    head.extend(0u64.to_le_bytes());
    let (mut tensors, mut data) = (Vec::new(), Vec::new());
    for (index, size) in sizes.iter().enumerate() {
        let name = format!("blk.{index}.weight");
        head.extend((name.len() as u64).to_le_bytes());
        head.extend(name.as_bytes());
        head.extend(1u32.to_le_bytes());
        head.extend((*size as u64).to_le_bytes());
        head.extend(I8.to_le_bytes());
        head.extend((data.len() as u64).to_le_bytes());
        let bytes = content(index + size)[index..].to_vec();
        data.extend_from_slice(&bytes);
        data.resize(data.len().next_multiple_of(32), 0);
        tensors.push((name, bytes));
    }
    head.resize(head.len().next_multiple_of(32), 0);
    let bytes = [head, data].concat();
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, &bytes).unwrap();
    Model { _folder: folder, path, tensors, bytes }
}

#[test]
fn gguf_says_its_alignment() {
    let model = gguf_model(&[100, 32, 3 * MIB + 5, 64, 7]);
    for alignment in [1, 32, 64, 4096, 2 << 20] {
        for cold in [true, false] {
            settle(&model.path, cold);
            let opened = open(&model.path, alignment);
            let loader = Loader::new().heap(Heap::Memfd).digest(DigestKind::Crc32c);
            let loaded = loader.load(&opened.plan).unwrap();
            let bytes = loaded.buffer.read().unwrap();
            let header =
                gguf::Header::parse(Path::new("buffer"), &bytes, bytes.len() as u64).unwrap();
            assert_eq!(header.alignment.bytes(), alignment.max(32));
            assert_eq!(format::Header::Gguf(header), opened.tensors[0].header, "{alignment}");
            for (placed, (name, expected)) in opened.placed_tensors().zip(&model.tensors) {
                assert_eq!(placed.tensor.name, name);
                let range = placed.buffer_range.start as usize..placed.buffer_range.end as usize;
                assert!((range.start as u64).is_multiple_of(alignment), "{alignment}, {name}");
                assert!(bytes[range] == expected[..], "{alignment}: {name} differs");
            }
            let whole = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &model.bytes);
            assert_eq!(loaded.files[0].digests[0].1, format!("{whole:08x}"));
            // The same as a file of its own.
            let repacked = model.path.with_extension("repacked.gguf");
            let file = &opened.plan.files()[0];
            longshore_load::repack(file, &repacked, &CancelToken::new(), |_| {}).unwrap();
            assert!(std::fs::read(&repacked).unwrap() == bytes[..], "{alignment}");
        }
    }
}

#[test]
fn a_file_that_became_shorter_is_told_and_leaves_nothing() {
    let model = model(&SIZES, 8);
    let opened = open(&model.path, 64);
    let file = File::options().write(true).open(&model.path).unwrap();
    file.set_len(model.bytes.len() as u64 - 5000).unwrap();
    for mode in [ReadMode::Auto, ReadMode::Direct, ReadMode::Buffered] {
        let refused = Loader::new().heap(Heap::Memfd).mode(mode).load(&opened.plan).unwrap_err();
        assert!(matches!(refused, Error::Truncated { .. }), "{mode}: {refused}");
    }
}
