//! Aligned layouts: each tensor is aligned and has its own bytes, and the buffer is a whole file of its
//! format, for every route of the bytes.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use longshore_formats::safetensors::Header;
use longshore_formats::{self as formats, gguf, safetensors};
use longshore_heap::Heap;
use longshore_load::{CancelToken, DigestKind, Error, FormatChoice, Loader, Opened, ReadMode};
use longshore_mem::{ByteSize, Granule};
use serde_json::{Map, json};

mod allocator;

use allocator::peak_bytes;

const MIB: usize = 1 << 20;

/// Large tensors, small tensors side by side, odd sizes, and an empty tensor. The second is longer than
/// a read.
const SIZES: [usize; 12] =
    [8192, 9 * MIB + 4096, 1, 0, 4096, 100, 3 * MIB, 64, 4097, 2 * MIB, 12_345, 640];

fn content(len_bytes: usize) -> Vec<u8> {
    (0..len_bytes).map(|at| (at as u32).wrapping_mul(2_654_435_761).to_le_bytes()[3]).collect()
}

struct Model {
    _folder: tempfile::TempDir,
    path: PathBuf,
    /// The names and bytes.
    tensors: Vec<(String, Vec<u8>)>,
    /// The whole file.
    bytes: Vec<u8>,
}

/// Writes a safetensors file whose data begins 8 bytes behind a multiple of `pad`.
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
    // In `/var/tmp`, because `/tmp` may be a tmpfs.
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

/// Evicts the file from the page cache if `cold`, or else reads it into the cache.
fn settle(path: &Path, cold: bool) {
    if cold {
        evict(path);
    } else {
        std::fs::read(path).unwrap();
    }
}

fn open(path: &Path, alignment: u64) -> Opened {
    let opened = longshore_load::open(&[path], FormatChoice::Auto).unwrap();
    opened.align(Granule::new(alignment).unwrap()).unwrap()
}

/// Loads the model, compares the buffer with it, and returns the number of bytes that were staged.
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
    // The buffer is a whole file, so other readers of the format accept it.
    let header = Header::parse(&bytes, bytes.len() as u64).unwrap();
    let header = formats::Header::Safetensors(header);
    assert!(header.is_aligned(Granule::new(alignment).unwrap()), "{case}");
    ::safetensors::SafeTensors::deserialize(&bytes).unwrap();
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
                // If direct I/O needs alignment to blocks, all tensors are staged.
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

type Change<'a> = &'a dyn Fn(&mut [safetensors::Tensor]);

#[test]
fn a_header_that_was_changed_cannot_be_aligned() {
    let model = model(&[100, 200, 300], 8);
    let file_len = model.bytes.len() as u64;
    let aligned = |change: Change<'_>| {
        let mut opened = longshore_load::open(&[&model.path], FormatChoice::Auto).unwrap();
        let formats::Header::Safetensors(header) = &mut opened.tensors[0].header else {
            panic!("a safetensors file")
        };
        change(&mut header.tensors);
        opened.align(Granule::SIZE_4K)
    };
    aligned(&|_| {}).unwrap();
    let changes: [Change<'_>; 5] = [
        // Two tensors with the same bytes would be read by two threads at once.
        &|tensors| tensors[1].data = tensors[0].data.clone(),
        &|tensors| tensors[1].data.start -= 1,
        &|tensors| tensors[2].data.end = file_len + 1,
        &|tensors| tensors[2].data = u64::MAX - 1..u64::MAX,
        &|tensors| tensors[1].data = tensors[1].data.end..tensors[1].data.start,
    ];
    for (which, change) in changes.into_iter().enumerate() {
        let error = aligned(change).map(drop).unwrap_err();
        let Error::Format { reason, .. } = error else { panic!("{which}: {error}") };
        let reason = reason.to_string();
        assert!(reason.contains("or lie outside the file of"), "{which}: {reason}");
    }
}

#[test]
fn a_file_that_is_aligned_already_is_loaded_unchanged() {
    // The header ends at a multiple of 64, and so does every tensor but the last.
    let sizes = [64, 4096, 5 * MIB, 10];
    let base = model(&sizes, 64);
    let header_len = base.bytes.len() - sizes.iter().sum::<usize>();
    let model = model(&sizes, 64 - 8 + header_len.next_multiple_of(64));
    let opened = longshore_load::open(&[&model.path], FormatChoice::Auto).unwrap();
    let aligned = opened.tensors[0].header.is_aligned(Granule::new(8).unwrap());
    assert!(aligned);
    evict(&model.path);
    let loaded = Loader::new().heap(Heap::Memfd).load(&open(&model.path, 8).plan).unwrap();
    assert!(*loaded.buffer.read().unwrap() == model.bytes[..]);
    assert_eq!(loaded.report.by_route.staged, 0);
}

#[test]
fn each_of_several_files_is_aligned_and_raw_files_are_unchanged() {
    let (first, second) = (model(&[100, 200], 8), model(&[3 * MIB + 1, 7], 8));
    let raw = first.path.with_file_name("notes.bin");
    std::fs::write(&raw, content(5000)).unwrap();
    let opened =
        longshore_load::open(&[&first.path, &raw, &second.path], FormatChoice::Auto).unwrap();
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

/// Writes a GGUF file of version 3 with tensors of bytes at multiples of 32, as ggml writes them.
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
fn a_gguf_file_declares_its_alignment() {
    let model = gguf_model(&[100, 32, 3 * MIB + 5, 64, 7]);
    for alignment in [1, 32, 64, 4096, 2 << 20] {
        for cold in [true, false] {
            settle(&model.path, cold);
            let opened = open(&model.path, alignment);
            let loader = Loader::new().heap(Heap::Memfd).digest(DigestKind::Crc32c);
            let loaded = loader.load(&opened.plan).unwrap();
            let bytes = loaded.buffer.read().unwrap();
            let header = gguf::Header::parse(&bytes, bytes.len() as u64).unwrap();
            assert_eq!(header.alignment.bytes(), alignment.max(32));
            assert_eq!(formats::Header::Gguf(header), opened.tensors[0].header, "{alignment}");
            for (placed, (name, expected)) in opened.placed_tensors().zip(&model.tensors) {
                assert_eq!(placed.tensor.name, name);
                let range = placed.buffer_range.start as usize..placed.buffer_range.end as usize;
                assert!((range.start as u64).is_multiple_of(alignment), "{alignment}, {name}");
                assert!(bytes[range] == expected[..], "{alignment}: {name} differs");
            }
            let whole = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, &model.bytes);
            assert_eq!(loaded.files[0].digests[0].1, format!("{whole:08x}"));
            // Repacking writes the same bytes to a file.
            let repacked = model.path.with_extension("repacked.gguf");
            let file = &opened.plan.files()[0];
            longshore_load::repack(file, &repacked, &CancelToken::new(), |_| {}).unwrap();
            assert!(std::fs::read(&repacked).unwrap() == bytes[..], "{alignment}");
        }
    }
}

#[test]
fn a_file_that_became_shorter_is_an_error() {
    let model = model(&SIZES, 8);
    let opened = open(&model.path, 64);
    let file = File::options().write(true).open(&model.path).unwrap();
    file.set_len(model.bytes.len() as u64 - 5000).unwrap();
    for mode in [ReadMode::Auto, ReadMode::Direct, ReadMode::Buffered] {
        let refused = Loader::new().heap(Heap::Memfd).mode(mode).load(&opened.plan).unwrap_err();
        assert!(matches!(refused, Error::Truncated { .. }), "{mode}: {refused}");
    }
}

/// Writes a sparse safetensors file of tensors of bytes: only its header takes space on the disk. Prints
/// `SKIPPED` and returns `None` if the folder cannot have a file of that length.
fn sparse_model(folder: &Path, sizes: &[(&str, u64)]) -> Option<PathBuf> {
    let (mut object, mut at) = (Map::new(), 0);
    for (name, size) in sizes {
        let end = at + size;
        let description = json!({ "dtype": "U8", "shape": [size], "data_offsets": [at, end] });
        object.insert((*name).to_owned(), description);
        at = end;
    }
    let text = serde_json::Value::Object(object).to_string();
    let path = folder.join("sparse.safetensors");
    std::fs::write(&path, [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    match file.set_len(8 + text.len() as u64 + at) {
        Ok(()) => Some(path),
        Err(error) => {
            eprintln!("SKIPPED: {} has no files of {at} bytes: {error}", folder.display());
            None
        }
    }
}

#[test]
fn repacking_does_not_begin_if_the_disk_has_too_little_space() {
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let len = (8u64 << 40) - 4096;
    let Some(path) = sparse_model(folder.path(), &[("a", len)]) else { return };
    let found = rustix::fs::statvfs(folder.path()).unwrap();
    if found.f_bavail.saturating_mul(found.f_frsize) > len {
        eprintln!("SKIPPED: /var/tmp has room for 8 TiB");
        return;
    }
    let opened = open(&path, 64);
    // If the check were missing, this would end the repacking at once.
    let cancel = CancelToken::new();
    cancel.cancel();
    let target = folder.path().join("packed.safetensors");
    let refused = longshore_load::repack(&opened.plan.files()[0], &target, &cancel, |_| {});
    let refused = refused.unwrap_err();
    let Error::Write { path, source } = &refused else { panic!("{refused}") };
    assert_eq!((path, source.kind()), (&target, std::io::ErrorKind::StorageFull));
    let range = opened.plan.files()[0].buffer_range();
    let message = source.to_string();
    assert!(message.contains(&ByteSize(range.end - range.start).to_string()), "{message}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Writes a file of `count` tensors of one byte, whose names have `name_len` bytes.
fn file_of_bytes(count: usize, name_len: usize) -> tempfile::NamedTempFile {
    let mut header = String::from("{");
    for at in 0..count {
        let (comma, end) = (if at == 0 { "" } else { "," }, at + 1);
        std::fmt::Write::write_fmt(&mut header, format_args!(
            r#"{comma}"{at:0name_len$x}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{end}]}}"#
        ))
        .unwrap();
    }
    let file = tempfile::NamedTempFile::with_suffix(".safetensors").unwrap();
    header.push('}');
    let bytes = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    std::fs::write(file.path(), &bytes).unwrap();
    file.as_file().set_len((bytes.len() + count) as u64).unwrap();
    file
}

#[test]
fn aligning_takes_no_more_memory_than_parsing_the_result() {
    let open = |file: &tempfile::NamedTempFile| {
        longshore_load::open(&[file.path()], FormatChoice::Auto).unwrap()
    };
    let opened = open(&file_of_bytes(100_000, 5));
    let (aligned, peak) = peak_bytes(|| opened.align(Granule::new(64).unwrap()).unwrap());
    let header = &aligned.tensors[0].header;
    assert_eq!(header.tensor_count(), 2 * 100_000 - 1);
    let bound = safetensors::parse_memory_max_bytes(header.data_offset());
    assert!(peak <= bound, "{peak} bytes for a header of {}", header.data_offset());

    // A header that would be too long is refused before it is allocated.
    let opened = open(&file_of_bytes(safetensors::TENSORS_MAX, 5));
    let (refused, peak) = peak_bytes(|| opened.align(Granule::new(64).unwrap()));
    let refused = refused.err().unwrap().to_string();
    assert!(refused.contains("longer than the limit of 100.00 MB"), "{refused}");
    assert!(peak <= 16 * safetensors::TENSORS_MAX as u64 + (64 << 10), "{peak} bytes");
}
