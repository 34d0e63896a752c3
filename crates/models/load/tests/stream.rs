//! Streams: content, order, selection, memory, and what ends a stream.

use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use longshore_load::{
    CancelToken, DigestKind, Error, FormatChoice, Loader, Manifest, MemoryLimit, OnFull, Opened,
    Order, ReadMode, Rows, Selection, Stream, StreamOptions, StreamProblem, StreamedTensor,
};
use proptest::prelude::*;

const MIB: usize = 1 << 20;

/// A model of safetensors files with random content.
struct Model {
    _folder: tempfile::TempDir,
    paths: Vec<PathBuf>,
    /// The bytes of each tensor, in the order of the files.
    tensors: Vec<(String, Vec<u8>)>,
}

impl Model {
    /// Writes files with U8 tensors of these rows and lengths of a row.
    fn new(files: &[&[(u64, u64)]]) -> Self {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let (mut paths, mut tensors, mut state) = (Vec::new(), Vec::new(), 0x9e37_79b9_7f4a_7c15);
        for (file, shapes) in files.iter().enumerate() {
            let mut header = BTreeMap::new();
            let mut data = Vec::new();
            for (at, (rows, row_bytes)) in shapes.iter().enumerate() {
                let name = format!("f{file}.t{at}");
                let content = random((rows * row_bytes) as usize, &mut state);
                let entry = serde_json::json!({
                    "dtype": "U8", "shape": [rows, row_bytes],
                    "data_offsets": [data.len(), data.len() + content.len()],
                });
                header.insert(name.clone(), entry);
                data.extend_from_slice(&content);
                tensors.push((name, content));
            }
            let header = serde_json::to_vec(&header).unwrap();
            let path = folder.path().join(format!("model-{file}.safetensors"));
            let mut out = File::create(&path).unwrap();
            out.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
            out.write_all(&header).unwrap();
            out.write_all(&data).unwrap();
            out.sync_all().unwrap();
            paths.push(path);
        }
        Self { _folder: folder, paths, tensors }
    }

    fn open(&self) -> Opened {
        longshore_load::open(&self.paths, FormatChoice::Auto).unwrap()
    }

    fn stream(&self, loader: Loader<'_>, selection: &Selection, options: &StreamOptions) -> Stream {
        loader.stream(self.open(), selection, options).unwrap()
    }

    fn whole(&self, loader: Loader<'_>, options: &StreamOptions) -> Stream {
        self.stream(loader, &Selection::all(), options)
    }

    /// Removes the files from the page cache.
    fn evict(&self) {
        for path in &self.paths {
            let file = File::open(path).unwrap();
            longshore_sys::page_cache::evict(&file).unwrap();
        }
    }
}

/// Returns random bytes: xorshift64 (Marsaglia 2003).
fn random(len: usize, state: &mut u64) -> Vec<u8> {
    let mut next = || {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8)).flat_map(|_| next().to_le_bytes()).collect();
    bytes.truncate(len);
    bytes
}

fn collect(stream: &Stream) -> Vec<(String, Vec<u8>)> {
    stream
        .tensors()
        .map(|tensor| tensor.unwrap())
        .map(|it| (it.name().to_owned(), it.to_vec()))
        .collect()
}

/// A model with small, large, empty and unaligned tensors in two files.
fn mixed() -> Model {
    let first: &[(u64, u64)] = &[
        (1, 100),
        (3, MIB as u64),
        (0, 5),
        (7, 1_000_003),
        (1, 4095),
        (1, 1),
        (1, 4096),
        (9, 2 * MIB as u64 + 13),
        (1, MIB as u64 - 1),
    ];
    let second: &[(u64, u64)] = &[(2, 50_000), (5, 700_001), (1, MIB as u64)];
    Model::new(&[first, second])
}

#[test]
fn every_tensor_has_the_bytes_of_the_file() {
    let model = mixed();
    type Make = fn() -> Loader<'static>;
    let loaders: [(&str, Make); 6] = [
        ("auto", Loader::new),
        ("threads", || Loader::new().use_uring(false)),
        ("small reads", || Loader::new().read_size(2 << 20).depth(2).populate_ahead(1)),
        ("direct", || Loader::new().mode(ReadMode::Direct)),
        ("uncached", || Loader::new().mode(ReadMode::Uncached)),
        ("buffered", || Loader::new().mode(ReadMode::Buffered)),
    ];
    for (name, loader) in loaders {
        for (options, is_cold) in [
            (StreamOptions::new(), true),
            (StreamOptions::new(), false),
            // As large as the largest tensor, and the blocks at its ends.
            (StreamOptions::new().memory(18 * MIB as u64 + (64 << 10)), true),
        ] {
            if is_cold {
                model.evict();
            }
            let stream = match loader().stream(model.open(), &Selection::all(), &options) {
                Err(Error::ModeUnavailable { reason, .. }) => {
                    println!("SKIPPED: {name}: {reason}");
                    continue;
                }
                made => made.unwrap(),
            };
            let found = match stream.next_tensor() {
                Err(Error::ModeUnavailable { reason, .. }) => {
                    println!("SKIPPED: {name}: {reason}");
                    continue;
                }
                first => {
                    let first = first.unwrap().unwrap();
                    let first = (first.name().to_owned(), first.to_vec());
                    [vec![first], collect(&stream)].concat()
                }
            };
            assert!(found == model.tensors, "{name}, {options:?}");
            let report = stream.report();
            let selected_bytes: usize = model.tensors.iter().map(|it| it.1.len()).sum();
            assert_eq!(report.selected_bytes, selected_bytes as u64);
            assert_eq!(report.delivered_tensors, model.tensors.len() as u64);
            let more_bytes = report.read_bytes - report.selected_bytes;
            // Two blocks for each unit, which can be 4096 bytes.
            assert!(more_bytes <= 2 * 4096 * model.tensors.len() as u64, "{more_bytes}");
            assert!(report.memory_bytes <= 1 << 30);
        }
    }
}

#[test]
fn tensors_of_gguf_files_are_those_of_a_load() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gguf");
    for name in ["every_dtype.gguf", "aligned.gguf", "split-00001-of-00003.gguf"] {
        let open = || longshore_load::open(&[folder.join(name)], FormatChoice::Auto).unwrap();
        let opened = open();
        let loaded = Loader::new().load(&opened.plan).unwrap();
        let memory = loaded.buffer.read().unwrap();
        let stream = Loader::new().stream(open(), &Selection::all(), &StreamOptions::new());
        let stream = stream.unwrap();
        let mut placed = opened.placed_tensors();
        for (tensor, placed) in stream.tensors().map(Result::unwrap).zip(placed.by_ref()) {
            let range = placed.buffer_range.start as usize..placed.buffer_range.end as usize;
            assert_eq!((tensor.name(), tensor.dtype()), (placed.tensor.name, placed.tensor.dtype));
            assert_eq!(tensor.shape(), placed.tensor.shape);
            assert!(*tensor == memory[range], "{name}: {}", tensor.name());
        }
        assert!(placed.next().is_none());
    }
}

#[test]
fn tensors_that_are_complete_come_in_any_order() {
    let model = mixed();
    let stream = model.whole(Loader::new(), &StreamOptions::new().order(Order::Completion));
    let mut found = collect(&stream);
    found.sort();
    let mut expected = model.tensors.clone();
    expected.sort();
    assert!(found == expected);
}

#[test]
fn only_the_selected_bytes_are_read() {
    let (rows, row_bytes) = (64, 256 << 10);
    let model = Model::new(&[&[(rows, row_bytes), (rows, row_bytes)], &[(rows, row_bytes)]]);
    model.evict();
    let count = 8;
    for index in [0, 3, 7] {
        let rows = Rows::Share { index, count };
        let stream =
            model.stream(Loader::new(), &Selection::all().rows(rows), &StreamOptions::new());
        let part = model.tensors[0].1.len() / count as usize;
        let range = index as usize * part..(index as usize + 1) * part;
        for (tensor, (name, whole)) in stream.tensors().map(Result::unwrap).zip(&model.tensors) {
            assert_eq!((tensor.name(), tensor.shape()), (&**name, &[8, row_bytes][..]));
            assert_eq!(tensor.rows(), Some(index * 8..index * 8 + 8));
            assert!(*tensor == whole[range.clone()]);
        }
    }
    let stream = model.stream(
        Loader::new(),
        &Selection::all().rows(Rows::Share { index: 1, count }),
        &StreamOptions::new(),
    );
    assert_eq!(collect(&stream).len(), 3);
    let report = stream.report();
    let whole_bytes = 3 * rows * row_bytes;
    assert_eq!(report.selected_bytes, whole_bytes / 8);
    assert!(report.read_bytes <= whole_bytes / 8 * 105 / 100, "{report:?}");
}

#[test]
fn tensors_are_selected_by_name_pattern_file_and_rows() {
    let model = mixed();
    let names = |selection: &Selection| -> Vec<String> {
        let stream = model.stream(Loader::new(), selection, &StreamOptions::new());
        collect(&stream).into_iter().map(|it| it.0).collect()
    };
    assert_eq!(names(&Selection::all().name("f1.t2").name("f0.t0")), ["f0.t0", "f1.t2"]);
    assert_eq!(names(&Selection::all().pattern("*.t1")), ["f0.t1", "f1.t1"]);
    assert_eq!(names(&Selection::all().pattern("f1.*").name("f0.t7")).len(), 4);
    assert_eq!(names(&Selection::all().file("model-1.safetensors")), ["f1.t0", "f1.t1", "f1.t2"]);
    assert_eq!(names(&Selection::all().file(&model.paths[0])).len(), 9);
    let rows = Selection::all().name("f0.t3").rows_of("f0.t3", Rows::Range(2..4));
    let stream = model.stream(Loader::new(), &rows, &StreamOptions::new());
    assert!(collect(&stream)[0].1 == model.tensors[3].1[2_000_006..4_000_012]);

    let refused = |selection: Selection| -> StreamProblem {
        let refused = Loader::new().stream(model.open(), &selection, &StreamOptions::new());
        match refused.unwrap_err() {
            Error::Stream { reason } => reason,
            other => panic!("{other}"),
        }
    };
    use StreamProblem::{NoFile, NoSuchShare, NoTensor, RowsBeyond};
    assert!(matches!(refused(Selection::all().name("f2")), NoTensor { .. }));
    assert!(matches!(refused(Selection::all().pattern("f?.t11*")), NoTensor { .. }));
    assert!(matches!(refused(Selection::all().file("f2")), NoFile { .. }));
    let rows = |rows| Selection::all().name("f0.t3").rows(rows);
    assert!(matches!(refused(rows(Rows::Range(6..8))), RowsBeyond { of_rows: 7, .. }));
    let (index, count) = (2, 2);
    assert!(matches!(refused(rows(Rows::Share { index, count })), NoSuchShare { .. }));
    let unused = Selection::all().name("f0.t3").rows_of("f0.t4", Rows::Range(0..1));
    assert!(matches!(refused(unused), NoTensor { .. }));
}

#[test]
fn memory_that_the_consumer_holds_is_an_error_and_not_a_hang() {
    let shapes = [(1, 2 * MIB as u64); 8];
    let model = Model::new(&[&shapes]);
    let options = StreamOptions::new().memory(5 * MIB as u64).wait(Duration::from_millis(100));
    let stream = model.whole(Loader::new(), &options);
    let mut held: Vec<StreamedTensor> = Vec::new();
    let began = Instant::now();
    let full = loop {
        match stream.next_tensor() {
            Ok(tensor) => held.push(tensor.unwrap()),
            Err(error) => break error,
        }
    };
    assert!(began.elapsed() < Duration::from_secs(10));
    let message = full.to_string();
    assert!(message.contains("f0.t0"), "{message}");
    let Error::StreamFull { held_bytes, limit_bytes, .. } = full else { panic!("{full}") };
    assert_eq!(limit_bytes, 5 * MIB as u64);
    assert_eq!((held.len(), held_bytes), (2, 2 * (2 * MIB as u64 + (64 << 10))));
    // Another thread drops one.
    let dropped = held.remove(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(30));
            drop(dropped);
        });
        held.push(stream.next_tensor().unwrap().unwrap());
    });
    for (tensor, (name, content)) in held.iter().zip(&model.tensors[1..]) {
        assert!(tensor.name() == name && **tensor == content[..]);
    }
    held.clear();
    assert!(collect(&stream) == model.tensors[3..]);
}

/// Tensors of one length take different numbers of blocks, but each fits where another one was.
#[test]
fn memory_for_two_tensors_is_enough_for_a_consumer_that_holds_one() {
    let shapes = [(1, 2_000_003); 12];
    let model = Model::new(&[&shapes]);
    let options = StreamOptions::new().memory(4 * MIB as u64).wait(Duration::ZERO);
    let stream = model.whole(Loader::new(), &options);
    let mut held = None;
    for (_, content) in &model.tensors {
        let tensor = stream.next_tensor().unwrap().unwrap();
        assert!(*tensor == content[..]);
        held = Some(tensor);
    }
    drop(held);
    assert!(stream.next_tensor().unwrap().is_none());
}

#[test]
fn a_stream_that_may_grow_yields_everything_to_a_consumer_that_holds_it() {
    let shapes = [(1, 2 * MIB as u64 + 77); 8];
    let model = Model::new(&[&shapes]);
    let options = StreamOptions::new().memory(5 * MIB as u64).on_full(OnFull::Grow);
    let stream = model.whole(Loader::new(), &options);
    let mut held: Vec<StreamedTensor> = stream.tensors().map(Result::unwrap).collect();
    for (tensor, (name, content)) in held.iter_mut().zip(&model.tensors) {
        assert!(tensor.name() == name && **tensor == content[..]);
        tensor.bytes_mut().fill(1);
    }
    let report = stream.report();
    assert_eq!(report.grown_bytes, 6 * (2 * MIB as u64 + (64 << 10)));
    drop(stream);
    assert!(held.iter().all(|tensor| tensor.iter().all(|byte| *byte == 1)));
}

#[test]
fn a_tensor_larger_than_the_memory_is_refused_before_anything_is_read() {
    let model = mixed();
    let options = StreamOptions::new().memory(18 * MIB as u64);
    let refused = Loader::new().stream(model.open(), &Selection::all(), &options).unwrap_err();
    assert!(refused.to_string().contains("f0.t7"), "{refused}");
    let Error::NotEnoughMemory { limit: MemoryLimit::Stream { .. }, .. } = refused else {
        panic!("{refused}")
    };
    let limited = Loader::new().memory_max(MIB as u64);
    let refused = limited.stream(model.open(), &Selection::all(), &StreamOptions::new());
    assert!(matches!(refused, Err(Error::NotEnoughMemory { .. })));
    // Rows of it fit.
    let selection = Selection::all().rows(Rows::Share { index: 1, count: 9 });
    let stream = model.stream(Loader::new(), &selection, &options);
    assert_eq!(collect(&stream).len(), model.tensors.len());
}

#[test]
fn checksums_of_whole_files_are_verified_before_the_last_tensor() {
    let model = mixed();
    let digests = |loader: Loader<'_>, options: &StreamOptions| {
        let stream = model.whole(loader.digest(DigestKind::Sha256), options);
        let mut found = 0;
        for tensor in &stream {
            // Whatever a consumer does with its tensors.
            let mut tensor = tensor.unwrap();
            tensor.bytes_mut().fill(0);
            found += 1;
        }
        assert_eq!(found, model.tensors.len());
        stream.digests()
    };
    let expected: Vec<_> = {
        let loaded = Loader::new().digest(DigestKind::Sha256).load(&model.open().plan).unwrap();
        loaded.files.into_iter().map(|file| (file.path, file.digests)).collect()
    };
    assert_eq!(digests(Loader::new(), &StreamOptions::new()), expected);
    let completion = StreamOptions::new().order(Order::Completion);
    assert_eq!(digests(Loader::new().use_uring(false), &completion), expected);

    let sums = |digest: &str| {
        let path = model.paths[0].with_file_name("sums");
        let of = |path: &Path, digest: &str| {
            format!("{digest}  {}\n", path.file_name().unwrap().display())
        };
        let second = of(&model.paths[1], &expected[1].1[0].1);
        fs::write(&path, of(&model.paths[0], digest) + &second).unwrap();
        Manifest::open(path).unwrap()
    };
    let right = sums(&expected[0].1[0].1);
    let stream = model.whole(Loader::new().manifest(&right), &StreamOptions::new());
    assert_eq!(collect(&stream).len(), model.tensors.len());
    let wrong = sums(&"0".repeat(64));
    let stream = model.whole(Loader::new().manifest(&wrong), &StreamOptions::new());
    let found: Vec<_> = stream.tensors().take_while(Result::is_ok).collect();
    assert!(found.len() < 9, "the last tensor of the first file is not yielded");
    let again = stream.next_tensor().unwrap_err().to_string();
    assert!(again.contains("failed before") && again.contains("model-0"), "{again}");

    let part = Selection::all().name("f1.t1");
    let loader = Loader::new().digest(DigestKind::Xxh3);
    let refused = loader.stream(model.open(), &part, &StreamOptions::new()).unwrap_err();
    assert!(matches!(refused, Error::Stream { reason: StreamProblem::NotWhole { .. } }));
}

#[test]
fn each_tensor_goes_to_one_of_several_consumers() {
    let shapes: Vec<(u64, u64)> =
        (0..200).map(|at| if at % 3 == 0 { (1, 1_500_000) } else { (at % 7, 9000) }).collect();
    let model = Model::new(&[&shapes]);
    let stream = model.whole(Loader::new(), &StreamOptions::new().memory(6 * MIB as u64));
    let found = Mutex::new(HashSet::new());
    let by_name: BTreeMap<_, _> = model.tensors.iter().map(|(name, it)| (&**name, it)).collect();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for tensor in &stream {
                    let tensor = tensor.unwrap();
                    assert!(*tensor == by_name[tensor.name()][..]);
                    assert!(found.lock().unwrap().insert(tensor.name().to_owned()));
                }
            });
        }
    });
    assert_eq!(found.lock().unwrap().len(), 200);
}

#[test]
fn a_file_that_changes_ends_the_stream() {
    let shapes = [(1, 2 * MIB as u64); 20];
    for truncated in [false, true] {
        let model = Model::new(&[&shapes]);
        let options = StreamOptions::new().memory(5 * MIB as u64);
        let stream = model.whole(Loader::new(), &options);
        let first = stream.next_tensor().unwrap().unwrap();
        let mut file = File::options().write(true).open(&model.paths[0]).unwrap();
        if truncated {
            file.set_len(30 * MIB as u64).unwrap();
        } else {
            file.seek(SeekFrom::End(-1)).unwrap();
            file.write_all(b"x").unwrap();
        }
        let failed = stream.tensors().find_map(Result::err).unwrap();
        let is_expected = matches!(failed, Error::Changed { .. } | Error::Truncated { .. });
        assert!(is_expected, "{failed}");
        assert!(*first == model.tensors[0].1[..]);
        let again = stream.next_tensor().unwrap_err();
        assert!(matches!(again, Error::Stream { reason: StreamProblem::Failed { .. } }), "{again}");
    }
}

#[test]
fn a_cancelled_or_dropped_stream_leaves_no_thread_and_no_descriptor() {
    let shapes = [(1, 4 * MIB as u64); 20];
    let model = Model::new(&[&shapes]);
    let threads = || {
        let tasks = fs::read_dir("/proc/self/task").unwrap().map(|it| it.unwrap().path());
        let names = tasks.filter_map(|it| fs::read_to_string(it.join("comm")).ok());
        names.filter(|name| name.starts_with("longshore-load")).count()
    };
    let files = || {
        let open = fs::read_dir("/proc/self/fd").unwrap().map(|it| it.unwrap().path());
        let links = open.filter_map(|it| fs::read_link(it).ok());
        links.filter(|link| link == &model.paths[0]).count()
    };
    model.evict();
    let stream = model.whole(Loader::new(), &StreamOptions::new());
    let mut kept = stream.next_tensor().unwrap().unwrap();
    assert!(files() > 0);
    drop(stream);
    assert_eq!(files(), 0);
    assert!(*kept == model.tensors[0].1[..], "a tensor outlives its stream");
    kept.bytes_mut().fill(2);
    drop(kept);

    let token = CancelToken::new();
    let options = StreamOptions::new().memory(9 * MIB as u64);
    let stream = model.whole(Loader::new().cancel(&token), &options);
    let held = [0, 1].map(|_| stream.next_tensor().unwrap().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(Duration::from_millis(50));
            token.cancel();
        });
        let began = Instant::now();
        let cancelled = stream.next_tensor().unwrap_err();
        assert!(matches!(cancelled, Error::Cancelled { .. }), "{cancelled}");
        assert!(began.elapsed() < Duration::from_secs(5));
    });
    drop((stream, held));
    // Other tests of this process have threads, too.
    let until = Instant::now() + Duration::from_secs(60);
    while threads() > 0 && Instant::now() < until {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(files(), 0);

    // A caller stops one call, and goes on later.
    let stream = model.whole(Loader::new(), &options);
    let held = [0, 1].map(|_| stream.next_tensor().unwrap().unwrap());
    let calls = AtomicU32::new(0);
    let stopped = stream.next_while(|| calls.fetch_add(1, Ordering::Relaxed) < 2).unwrap_err();
    assert!(matches!(stopped, Error::Cancelled { .. }), "{stopped}");
    drop(held);
    assert_eq!(collect(&stream).len(), 18);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn any_rows_of_any_tensors_have_the_bytes_of_the_file(
        shapes in prop::collection::vec(
            prop_oneof![(0u64..9, 0u64..9000), (1u64..5, 300_000u64..900_000)], 1..30,
        ),
        count in 1u64..5, index in 0u64..5, memory_mib in 4u64..8, threads: bool,
    ) {
        let model = Model::new(&[&shapes]);
        let index = index % count;
        let selection = Selection::all().rows(Rows::Share { index, count });
        let options = StreamOptions::new().memory(memory_mib << 20);
        let loader = Loader::new().use_uring(!threads);
        let stream = model.stream(loader, &selection, &options);
        let found = collect(&stream);
        prop_assert_eq!(found.len(), shapes.len());
        // Tensors of no bytes are at the same offset as the next one, so their order is not that of the names.
        let found: BTreeMap<_, _> = found.into_iter().collect();
        for ((name, whole), (rows, row_bytes)) in model.tensors.iter().zip(&shapes) {
            let at = |index: u64| (rows * index / count * row_bytes) as usize;
            prop_assert!(found[name] == whole[at(index)..at(index + 1)]);
        }
    }
}

#[test]
fn a_file_without_tensors_is_verified() {
    let model = Model::new(&[&[(4, 100)], &[]]);
    let folder = tempfile::tempdir().unwrap();
    let manifest = folder.path().join("sums");
    let sums = |stream: &Stream| stream.digests();
    let stream = model.whole(Loader::new().digest(DigestKind::Sha256), &StreamOptions::new());
    while stream.next_tensor().unwrap().is_some() {}
    assert_eq!(sums(&stream).len(), 2);
    let lines: Vec<_> = sums(&stream)
        .iter()
        .map(|(path, digests)| format!("{}  {}\n", digests[0].1, path.display()))
        .collect();
    for (text, is_right) in [
        (lines.concat(), true),
        (format!("{}{:064}  {}\n", lines[0], 0, model.paths[1].display()), false),
    ] {
        fs::write(&manifest, text).unwrap();
        let manifest = Manifest::open(&manifest).unwrap();
        let stream = model.whole(Loader::new().manifest(&manifest), &StreamOptions::new());
        let mut last = stream.next_tensor();
        while let Ok(Some(_)) = last {
            last = stream.next_tensor();
        }
        assert_eq!(matches!(last, Ok(None)), is_right, "{last:?}");
    }
}

#[test]
fn a_stream_that_is_stopped_ends_calls_that_wait() {
    let model = Model::new(&[&[(4, MIB as u64), (4, MIB as u64), (4, MIB as u64)]]);
    let options = StreamOptions::new().memory(5 << 20).wait(Duration::from_secs(3600));
    let stream = model.whole(Loader::new(), &options);
    let held = stream.next_tensor().unwrap().unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| stream.next_tensor().unwrap_err());
        thread::sleep(Duration::from_millis(50));
        stream.stop();
        assert!(matches!(waiting.join().unwrap(), Error::Cancelled { .. }));
    });
    drop(held);
    assert!(matches!(stream.next_tensor(), Err(Error::Cancelled { .. })));
}

#[test]
fn small_tensors_need_little_memory() {
    let shapes: Vec<(u64, u64)> = (0..2000).map(|_| (1, 3000)).collect();
    let model = Model::new(&[&shapes]);
    let stream = model.whole(Loader::new(), &StreamOptions::new().memory(1 << 20));
    assert_eq!(collect(&stream).len(), 2000);
}
