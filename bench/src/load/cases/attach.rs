//! Attaching a model that a server already holds, beside a private load and a mapping of the file: from
//! the call to readable memory.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use anyhow::{Context as _, Result, anyhow, ensure};
use longshore_heap::{Heap, Sealing};
use longshore_load::FormatChoice;
use longshore_load::{CancelToken, Loader, Plan};
use longshore_mem::Granule;
use longshore_serve::{Client, Event, Listener, Options, Server, Stop, Wanted};
use longshore_sys::file;
use longshore_sys::mapping::{Access, Mapping};

use crate::harness::cost::{Cost, process_cpu_seconds};
use crate::harness::metric::TIME_MS;
use crate::harness::{Against, Candidate, Run, Session};
use crate::load::Context;
use crate::load::data::DataFile;
use crate::load::machine::{Start, require_memory};

const CASE: &str = "attach";
const ATTACH: &str = "longshore attach";
const LOAD: &str = "longshore load, warm";
const MAP: &str = "mmap of the file";
const SIZE_BYTES: u64 = 1 << 30;
const SIZE_QUICK_BYTES: u64 = 64 << 20;

pub(super) fn run(context: &Context<'_>, session: &mut Session) -> Result<()> {
    if !context.options.common.wants(CASE) {
        return Ok(());
    }
    let quick = context.options.common.quick;
    let size_bytes = if quick { SIZE_QUICK_BYTES } else { SIZE_BYTES };
    let model = context.folder.safetensors_file(size_bytes)?;
    let serving = Serving::start(&model)?;
    let ways: [(&str, Way<'_>); 3] = [
        (ATTACH, Box::new(|| attach(&serving, &model))),
        (LOAD, Box::new(|| load(&model))),
        (MAP, Box::new(|| map(&model))),
    ];
    let candidates = ways.map(|(name, way)| {
        let (machine, model) = (context.machine, &model);
        let candidate = Candidate::new(name, move || {
            require_memory(model.len_bytes * 3)?;
            machine.prepare(&model.path, Start::Warm, 0)?;
            let (seconds, cpu_seconds) = way()?;
            let sample = vec![(TIME_MS, seconds * 1e3)];
            Ok(Run { sample, note: None, cost: Some(Cost::of_stretch(cpu_seconds)) })
        });
        if name == MAP { candidate } else { candidate.ours() }
    });
    let against = [Against::new(TIME_MS, LOAD), Against::new(TIME_MS, MAP).only(ATTACH)];
    session.compare(CASE, candidates.into(), &against)?;
    drop(serving);
    context.folder.discard(&model.path);
    Ok(())
}

/// One run. Returns seconds, and CPU seconds of this process, which includes the server.
type Way<'a> = Box<dyn Fn() -> Result<(f64, f64)> + 'a>;

fn timed<R>(work: impl FnOnce() -> Result<R>) -> Result<(R, (f64, f64))> {
    let (began, cpu) = (Instant::now(), process_cpu_seconds());
    let done = work()?;
    Ok((done, (began.elapsed().as_secs_f64(), process_cpu_seconds() - cpu)))
}

fn attach(serving: &Serving, model: &DataFile) -> Result<(f64, f64)> {
    let (wanted, cancel) = (Wanted::Path(model.path.clone()), CancelToken::new());
    let (attachment, took) = timed(|| {
        let client = Client::connect(Some(&serving.socket), &cancel)?;
        Ok(client.attach(&wanted, FormatChoice::Auto, &mut |_| {})?)
    })?;
    ensure!(attachment.id() == 1, "the model was loaded a second time");
    check(model, attachment.as_slice())?;
    attachment.release()?;
    Ok(took)
}

fn load(model: &DataFile) -> Result<(f64, f64)> {
    let (shared, took) = timed(|| {
        let loaded = Loader::new().heap(Heap::Memfd).load(&Plan::from_path(&model.path)?)?;
        Ok(loaded.buffer.share(Sealing::Content)?)
    })?;
    check(model, shared.as_slice().context("it is sealed")?)?;
    Ok(took)
}

fn map(model: &DataFile) -> Result<(f64, f64)> {
    let (mapping, took) = timed(|| {
        let file = file::open(&model.path)?;
        Ok(Mapping::of_file(&file, model.len_bytes, Granule::SIZE_2M, Access::Read)?)
    })?;
    ensure!(mapping.len_bytes() as u64 == model.len_bytes, "the mapping is shorter than the file");
    Ok(took)
}

/// Compares the content with the file.
fn check(model: &DataFile, content: &[u8]) -> Result<()> {
    ensure!(content.len() as u64 == model.len_bytes, "the content has the wrong length");
    let mut file = File::open(&model.path)?;
    let mut chunk = vec![0; 1 << 20];
    for expected in content.chunks(chunk.len()) {
        let read = &mut chunk[..expected.len()];
        file.read_exact(read)?;
        ensure!(read == expected, "the content differs from the file");
    }
    Ok(())
}

/// A server that runs on a thread of this process and holds the model.
struct Serving {
    socket: PathBuf,
    stop: Stop,
    thread: Option<thread::JoinHandle<longshore_serve::Result<()>>>,
}

impl Serving {
    fn start(model: &DataFile) -> Result<Self> {
        // A socket path must be short, and a cache folder's may be long.
        let socket = Path::new("/tmp").join(format!("longshore-bench-{}.sock", std::process::id()));
        let stop = Stop::new()?;
        let options = Options::new().file(model.path.clone());
        let server = Server::new(Listener::bind(&socket, 0o600)?, options, stop.clone())?;
        let (ready, is_ready) = std::sync::mpsc::channel();
        let run = move || {
            server.run(|event| {
                if let Event::Ready { .. } = event {
                    // The receiver may have given up.
                    let _ = ready.send(());
                }
            })
        };
        let thread = thread::spawn(run);
        let mut serving = Self { socket, stop, thread: Some(thread) };
        match is_ready.recv() {
            Ok(()) => Ok(serving),
            Err(_) => {
                let ended = serving.thread.take().map(thread::JoinHandle::join);
                Err(anyhow!("the server ended: {ended:?}"))
            }
        }
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.stop();
        // The server frees the model, so that the next case has the memory.
        let _ = self.thread.take().map(thread::JoinHandle::join);
    }
}
