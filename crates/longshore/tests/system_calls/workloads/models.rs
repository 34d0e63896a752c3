//! The crates `formats`, `load` and `serve`.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::thread;

use longshore::formats::safetensors;
use longshore::load::{self, DigestKind, FormatChoice, Outcome, PublishedModels, Publisher};
use longshore::serve::{Client, Listener, Options, Server, Stop, Wanted};
use longshore::{CancelToken, Heap, Loader, Progress};

use longshore_sys::namespace;

use crate::run::{Files, Phase, Run, Steps};

/// Long enough for several reads.
const DATA_BYTES: usize = 12 << 20;

/// The model's file, in the folder of all runs.
const MODEL: &str = "model.safetensors";

fn header() -> Vec<u8> {
    let text = format!(
        r#"{{"weight":{{"dtype":"U8","shape":[{DATA_BYTES}],"data_offsets":[0,{DATA_BYTES}]}}}}"#
    );
    let mut header = (text.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(text.as_bytes());
    header
}

/// Writes the model that is loaded and served.
pub(crate) fn write_model(folder: &Path) -> io::Result<()> {
    let mut bytes = header();
    bytes.resize(bytes.len() + DATA_BYTES, 7);
    let mut file = File::create(folder.join(MODEL))?;
    file.write_all(&bytes)?;
    file.sync_all()
}

/// Returns the path of the model, after evicting it from the page cache.
fn model(folder: &Path) -> PathBuf {
    let path = folder.join(MODEL);
    longshore_sys::page_cache::evict(File::open(&path).unwrap()).unwrap();
    path
}

pub(crate) fn formats(run: &mut Run) -> ! {
    let header = header();
    let file_bytes = (header.len() + DATA_BYTES) as u64;

    run.begin(Phase::Setup);
    let warm = safetensors::Header::parse(&header, file_bytes).unwrap();

    run.begin(Phase::Steady);
    assert_eq!(warm.tensors.len(), 1);

    run.begin(Phase::Teardown);
    drop(warm);
    run.end()
}

pub(crate) fn load(run: &mut Run) -> ! {
    let files = Files::new();
    let path = model(&files.models);

    run.begin(Phase::Setup);
    let opened = load::open(&[&path], FormatChoice::Auto).unwrap();

    run.begin(Phase::Steady);
    let loader = || Loader::new().heap(Heap::Memfd).memory_max(1 << 30).digest(DigestKind::Crc32c);
    let loaded = loader().load(&opened.plan).unwrap();
    // As on a machine that forbids io_uring.
    let by_threads = loader().use_uring(false).load(&opened.plan).unwrap();

    run.begin(Phase::Teardown);
    drop((loaded, by_threads, opened));
    run.end()
}

pub(crate) fn publish(run: &mut Run) -> ! {
    let files = Files::new();
    let path = files.run.join(MODEL);
    std::fs::copy(model(&files.models), &path).unwrap();
    let source = File::open(&path).unwrap();
    // It ends with the process.
    let tmpfs = files.run.join("tmpfs");
    std::fs::create_dir(&tmpfs).unwrap();
    namespace::enter().expect("namespaces are permitted");
    let folder = longshore_sys::directory::open(&tmpfs).unwrap();
    longshore_sys::tmpfs::mount(folder, Some(64 << 20)).unwrap();

    run.begin(Phase::Setup);
    let models = PublishedModels::open(&tmpfs).unwrap();
    let lock = models.lock().unwrap();

    run.begin(Phase::Steady);
    models.remove_leftovers();
    let publish = || Publisher::new(&tmpfs).digest(DigestKind::Crc32c).publish(&path).unwrap();
    assert_eq!(publish().outcome, Outcome::New);
    longshore_sys::directory::set_mode(&source, 0o600).unwrap();
    assert_eq!(publish().outcome, Outcome::AccessChanged);
    let mut listed = models.list().unwrap();
    listed[0].set_pinned(true).unwrap();
    listed[0].set_pinned(false).unwrap();
    assert!(!listed[0].usage().is_open.unwrap());
    models.evict(&listed[0], false).unwrap();

    run.begin(Phase::Teardown);
    drop((models, lock, listed));
    run.end()
}

fn start(files: &Files) -> (Stop, thread::JoinHandle<()>) {
    let stop = Stop::new().unwrap();
    let options = Options::new().root(&files.models);
    let listener = Listener::bind(&files.run.join("serve.sock"), 0o600).unwrap();
    let server = Server::new(listener, options, stop.clone()).unwrap();
    let server = thread::spawn(move || server.run(|_| ()).unwrap());
    (stop, server)
}

fn connect(folder: &Path) -> Client {
    Client::connect(Some(&folder.join("serve.sock")), &CancelToken::new()).unwrap()
}

pub(crate) fn server(run: &mut Run) -> ! {
    let files = Files::new();
    model(&files.models);
    let mut peer = run.peer("a client of serve");

    run.begin(Phase::Setup);
    let (stop, server) = start(&files);
    peer.step();

    run.begin(Phase::Steady);
    peer.step();

    run.begin(Phase::Teardown);
    stop.stop();
    server.join().unwrap();
    run.end()
}

/// Requests the list of models, then attaches the model twice.
pub(crate) fn client_of_server(mut steps: Steps) {
    let files = Files::new();
    steps.step(|| connect(&files.run).list().unwrap());
    steps.step(|| {
        let wanted = Wanted::Path(files.models.join(MODEL));
        let mut observe = |_: Progress| ();
        for _ in 0..2 {
            let client = connect(&files.run);
            let attachment = client.attach(&wanted, FormatChoice::Auto, &mut observe).unwrap();
            assert_eq!(attachment.as_slice().last(), Some(&7));
            attachment.release().unwrap();
        }
    });
    steps.step(|| ());
}

pub(crate) fn client(run: &mut Run) -> ! {
    let files = Files::new();
    let path = model(&files.models);
    let mut peer = run.peer("a server of serve");
    peer.step();

    run.begin(Phase::Setup);
    let mut client = connect(&files.run);
    client.list().unwrap();
    let mut observe = |_: Progress| ();
    let attachment = client.attach(&Wanted::Path(path), FormatChoice::Auto, &mut observe).unwrap();

    run.begin(Phase::Steady);
    assert_eq!(attachment.as_slice().last(), Some(&7));
    assert!(attachment.is_server_alive());

    run.begin(Phase::Teardown);
    attachment.release().unwrap();
    run.end()
}

pub(crate) fn server_of_client(mut steps: Steps) {
    let files = Files::new();
    let (stop, server) = steps.step(|| start(&files));
    steps.step(|| ());
    stop.stop();
    server.join().unwrap();
}
