//! `load`, `write` and `extents`: copies from and to the disk.

use std::fs::{self, File};
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;

use longshore::heap::Heap;
use longshore::iov::crc32c;
use longshore_nvme::{DiskRange, Error, ExtentList, Namespace, store};
use serde_json::json;

use crate::args::{LoadArgs, WriteArgs};
use crate::device::{open, start};
use crate::failure::{Failure, Result};

pub(crate) fn extents(file: &Path) -> Result<()> {
    let list = ExtentList::from_file(file)?;
    let text = serde_json::to_string_pretty(&list).expect("numbers and text");
    writeln!(io::stdout(), "{text}").map_err(failed("writing the list"))
}

pub(crate) fn load(args: &LoadArgs) -> Result<()> {
    // The list is read before the device is opened.
    let list = args.extents.as_deref().map(read_list).transpose()?;
    let (builder, passed) = open(&args.device)?;
    let domain = builder.build();
    let (controller, namespace) = start(&domain, passed, &args.device)?;
    let (ranges, len_bytes) = match &list {
        Some(list) => (list.disk_ranges(&namespace)?, list.len_bytes),
        None => range(args, &namespace)?,
    };
    if len_bytes == 0 {
        return Err(Failure::Arguments("there is nothing to load: the length is zero".to_owned()));
    }
    let memory_bytes = len_bytes.next_multiple_of(namespace.block_bytes());
    let buffer = args.heap.allocate(memory_bytes)?;
    let started = Instant::now();
    let mut progress = Progress::new("loaded", ranges.iter().map(|s| s.len_bytes).sum());
    let depth = args.device.depth;
    let buffer = longshore_nvme::load(&controller, &namespace, depth, &ranges, buffer, |done| {
        progress.tell(done);
    })?;
    let seconds = started.elapsed().as_secs_f64();
    let content = buffer.read()?;
    let content = &content[..len_bytes as usize];
    let crc = crc32c::of(content);
    if let Some(path) = &args.output {
        write_whole(path, content)?;
    }
    let mib_per_second = len_bytes as f64 / seconds / f64::from(1 << 20);
    if args.json {
        println!(
            "{}",
            json!({
                "len_bytes": len_bytes,
                "stretches": ranges.len(),
                "seconds": seconds,
                "mib_per_second": mib_per_second,
                "crc32c": format!("{crc:08x}"),
                "heap": buffer.heap().to_string(),
            })
        );
    } else {
        let ranges = ranges.len();
        println!(
            "{len_bytes} bytes of {ranges} ranges in {seconds:.3} s, {mib_per_second:.1} MiB/s; \
             CRC-32C {crc:08x}"
        );
    }
    Ok(())
}

pub(crate) fn write(args: &WriteArgs) -> Result<()> {
    let path = &args.input;
    let named = |what: &str| failed(&format!("{what} {}", path.display()));
    let mut file = File::open(path).map_err(named("opening"))?;
    let len_bytes = file.metadata().map_err(named("reading the length of"))?.len();
    if len_bytes == 0 {
        return Err(Failure::Arguments(format!(
            "there is nothing to write: {} is empty",
            path.display()
        )));
    }
    let (builder, passed) = open(&args.device)?;
    let domain = builder.build();
    let (controller, namespace) = start(&domain, passed, &args.device)?;
    let memory_bytes = len_bytes.next_multiple_of(namespace.block_bytes());
    let mut buffer = Heap::Memfd.allocate(memory_bytes)?;
    let mut content = buffer.write()?;
    file.read_exact(&mut content[..len_bytes as usize]).map_err(named("reading"))?;
    drop(content);
    let range = DiskRange { disk_offset: args.offset, offset: 0, len_bytes: memory_bytes };
    let started = Instant::now();
    let mut progress = Progress::new("written", memory_bytes);
    let depth = args.device.depth;
    store(&controller, &namespace, depth, &[range], buffer, |done| progress.tell(done))?;
    let seconds = started.elapsed().as_secs_f64();
    if args.json {
        println!("{}", json!({"len_bytes": memory_bytes, "seconds": seconds}));
    } else {
        println!("{memory_bytes} bytes in {seconds:.3} s");
    }
    Ok(())
}

fn range(args: &LoadArgs, namespace: &Namespace) -> Result<(Vec<DiskRange>, u64)> {
    let disk_offset = args.offset;
    let rest = namespace.len().saturating_sub(disk_offset);
    let len_bytes = args.len.unwrap_or(rest);
    if len_bytes > rest {
        let namespace_bytes = namespace.len();
        return Err(Error::OutOfRange { offset: disk_offset, len_bytes, namespace_bytes }.into());
    }
    Ok((vec![DiskRange { disk_offset, offset: 0, len_bytes }], len_bytes))
}

fn read_list(path: &Path) -> Result<ExtentList> {
    let text = fs::read_to_string(path).map_err(failed(&format!("reading {}", path.display())))?;
    serde_json::from_str(&text).map_err(|error| {
        Failure::Arguments(format!("{} is not a list of extents: {error}", path.display()))
    })
}

/// Writes all of `content` to a file, or removes the file.
fn write_whole(path: &Path, content: &[u8]) -> Result<()> {
    let named = |what: &str| failed(&format!("{what} {}", path.display()));
    let mut file = File::create(path).map_err(named("creating"))?;
    if let Err(error) = file.write_all(content).and_then(|()| file.sync_all()) {
        // The file is incomplete.
        let _ = fs::remove_file(path);
        return Err(named("writing")(error));
    }
    Ok(())
}

fn failed(operation: &str) -> impl FnOnce(io::Error) -> Failure + use<> {
    let operation = operation.to_owned();
    move |source| Failure::Io { operation, source }
}

/// A report of the progress: one line that is updated on a terminal, otherwise a line for each tenth.
struct Progress {
    verb: &'static str,
    all: u64,
    told: u64,
    on_terminal: bool,
}

impl Progress {
    fn new(verb: &'static str, all: u64) -> Self {
        Self { verb, all, told: 0, on_terminal: io::stderr().is_terminal() }
    }

    fn tell(&mut self, done: u64) {
        let steps = if self.on_terminal { 100 } else { 10 };
        let step = (u128::from(done) * steps / u128::from(self.all.max(1))) as u64;
        if step == self.told {
            return;
        }
        self.told = step;
        let (verb, all, percent) = (self.verb, self.all, step * (100 / steps as u64));
        // An error means that the reader has closed the pipe.
        let _ = if self.on_terminal {
            let end = if percent == 100 { "\n" } else { "" };
            write!(io::stderr(), "\r{verb} {percent} % of {all} bytes{end}")
        } else {
            writeln!(io::stderr(), "{verb} {percent} % of {all} bytes")
        };
    }
}
