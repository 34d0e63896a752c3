//! `longshore load`.

mod notes;

use std::fmt::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use anyhow::Context;
use longshore::formats::printable;
use longshore::load::{self, Opened};
use longshore::load::{Engine, Manifest, PlannedFile, Report};
use longshore::{Heap, Loaded, Loader, Sealing, SharedBuffer};
use longshore_sys::huge_pages;
use serde_json::{Map, Value, json};

use crate::args::LoadArgs;
use crate::choices::Verify;
use crate::exit::failure;
use crate::output::print_result;
use crate::program::{become_program, check_program};
use crate::progress::Display;
use crate::signals;
use crate::sources::print_notes;
use crate::units::{Alignment, Decimal};

pub(crate) fn run(args: &LoadArgs) -> anyhow::Result<()> {
    check_program(&args.exec)?;
    let executes = !args.exec.is_empty();
    let cancel = signals::cancel_token()?;
    let heap = match &args.heap {
        // The best heap whose content can be sealed.
        Heap::Auto if args.read_only => Heap::Memfd,
        heap => heap.clone(),
    };
    if args.read_only && !heap.seals_content() {
        let refused = longshore::heap::Error::CannotSealContent { heap };
        return Err(load::Error::from(refused).into());
    }
    let remote = args.server.remote().cancel(&cancel);
    let to_keep = args.keep_copy.as_ref().map(|directory| {
        args.filter.open_to_keep(&remote, &args.files, args.format, directory, args.quiet)
    });
    let (mut opened, to_keep) = match to_keep.transpose()?.flatten() {
        Some((opened, model, copy)) => (opened, Some((model, copy))),
        None => (args.filter.open(&remote, &args.files, args.format, args.quiet)?, None),
    };
    if let Some(Alignment(alignment)) = args.align {
        if opened.tensors.is_empty() {
            let names = names(&opened);
            let message = format!("--align: no tensors were found in {}", names.join(", "));
            return Err(failure(15, message));
        }
        opened = opened.align(alignment)?;
    }
    if opened.plan.content_bytes() == 0 {
        let names = names(&opened);
        return Err(failure(17, format!("{} is empty: nothing to load", names.join(", "))));
    }
    let noted = remote.notes().len();
    let manifest = match &args.manifest {
        Some(_) if args.verify.contains(&Verify::Hub) => {
            return Err(failure(2, "--verify hub and --manifest are two manifests; give one"));
        }
        Some(path) => Some(Manifest::open(path)?),
        None if args.verify.contains(&Verify::Hub) => {
            Some(remote.hub_manifest(opened.plan.files().iter().map(PlannedFile::source))?)
        }
        None => None,
    };
    let mut display = Display::new(args.quiet || args.json);
    let mut loader = Loader::new()
        .heap(heap)
        .mode(args.mode)
        .populate_ahead(args.populate_ahead.0)
        .use_uring(!args.no_uring)
        .cancel(&cancel)
        .observe(|progress| display.show(progress));
    if let Some(limit) = args.memory_max {
        loader = loader.memory_max(limit.0);
    }
    if let Some(count) = args.connections {
        loader = loader.connections(usize::from(count));
    }
    for verify in &args.verify {
        if let Verify::Digest(kind) = verify {
            loader = loader.digest(*kind);
        }
    }
    if let Some(manifest) = &manifest {
        loader = loader.manifest(manifest);
    }
    let loaded = loader.load(&opened.plan)?;
    drop(display);
    print_notes(&remote.notes()[noted..], args.quiet);
    let mut kept_files = None;
    if let Some((model, copy)) = to_keep {
        copy.finish(&model, &opened.plan, &loaded, &cancel)?;
        kept_files = Some(model.paths().count());
    }
    let Loaded { buffer, files, report, .. } = loaded;
    let sealing = if args.read_only { Sealing::Content } else { Sealing::Size };
    let shared = buffer.share(sealing).map_err(load::Error::from)?;

    if args.json {
        let stays = args.hold || executes;
        let mut json = as_json(&report, &files, &opened, &shared, stays);
        json["kept_files"] = kept_files.into();
        print_result(&format!("{json}\n"), executes)?;
    } else if !args.quiet {
        let summary = summary(args, &report, &files, &opened, &shared, kept_files);
        let summary = summary.context("writing the summary")?;
        print_result(&summary, executes)?;
    }
    if args.hold {
        return signals::wait_for_end();
    }
    if let Some(signal) = signals::received() {
        // The signal came after everything was read.
        return Err(failure(128 + signal, format!("ended by signal {signal}")));
    }
    let export = shared.export();
    let descriptors = [("LONGSHORE_FD", export.memfd), ("LONGSHORE_DMABUF_FD", export.dma_buf)];
    become_program(&args.exec, export.len_bytes, &descriptors)
}

/// Returns the names of the files, without secrets of URLs.
fn names(opened: &Opened) -> Vec<String> {
    let files = opened.plan.files().iter();
    files.map(|file| file.source().path().display().to_string()).collect()
}

fn summary(
    args: &LoadArgs,
    report: &Report,
    files: &[load::LoadedFile],
    opened: &Opened,
    shared: &SharedBuffer,
    kept_files: Option<usize>,
) -> Result<String, fmt::Error> {
    let mut text = String::new();
    writeln!(
        text,
        "{} in {:.3} s: {}/s",
        Decimal(report.content_bytes as f64),
        report.elapsed.as_secs_f64(),
        Decimal(report.bytes_per_second()),
    )?;
    if let Some(names) = chosen(args, files) {
        writeln!(text, "  files       {names}")?;
    }
    writeln!(text, "  memory      {} in {} pages", shared.heap(), report.pages)?;
    let routes = report.by_route;
    let ways = [
        ("direct", routes.direct),
        ("direct, and copied into place", routes.staged),
        ("from the page cache", routes.page_cache),
        ("uncached", routes.uncached),
        ("buffered", routes.buffered),
        ("from servers", routes.remote),
    ];
    let ways: Vec<String> = ways
        .into_iter()
        .filter(|(_, bytes)| *bytes > 0)
        .map(|(way, bytes)| format!("{} {way}", Decimal(bytes as f64)))
        .collect();
    writeln!(text, "  read        {}", ways.join(", "))?;
    if let Engine::Threads { ring_refused: Some(reason) } = &report.engine {
        writeln!(text, "  note        io_uring is refused ({reason}); threads read instead")?;
    }
    let shmem_enabled = huge_pages::shmem_setting().ok();
    let stays = args.hold || !args.exec.is_empty();
    let second_copy = || notes::second_copy(report.content_bytes, notes::memory_left());
    let notes = [
        notes::unrecognised(opened, args.format),
        notes::mapping(&report.pages, shmem_enabled.as_deref()),
        notes::prefaulting(report),
        stays.then(second_copy).flatten(),
    ];
    for note in notes.into_iter().flatten() {
        writeln!(text, "  note        {note}")?;
    }
    match report.page_cache_growth_bytes {
        Some(growth) => {
            let verb = if growth < 0 { "shrank" } else { "grew" };
            let bytes = Decimal(growth.unsigned_abs() as f64);
            writeln!(text, "  page cache  {verb} by {bytes}")?;
        }
        None if routes.remote > 0 => {}
        None => {
            writeln!(
                text,
                "  page cache  not known (the kernel reports it only to a file's owner)"
            )?;
        }
    }
    if let (Some(count), Some(directory)) = (kept_files, &args.keep_copy) {
        let place = match directory.as_os_str() == "hub" {
            true => "the cache of the Hub".into(),
            false => directory.to_string_lossy(),
        };
        writeln!(text, "  copy        {count} file(s) in {}", printable(&place))?;
    }
    for file in files {
        for (kind, digest) in &file.digests {
            let path = file.path.to_string_lossy();
            writeln!(text, "  {kind:<11} {digest}  {}", printable(&path))?;
        }
    }
    if args.hold {
        if let Some(memfd) = shared.memfd() {
            writeln!(text, "  memfd       {}", proc_path(memfd))?;
        }
        if let Some(dma_buf) = shared.dma_buf() {
            writeln!(text, "  dma-buf     descriptor {}", dma_buf.as_fd().as_raw_fd())?;
        }
        writeln!(text, "held by process {}; Ctrl-C frees it", std::process::id())?;
    } else if args.exec.is_empty() {
        writeln!(text, "freed on exit; --hold keeps it, --exec hands it to a program")?;
    }
    Ok(text)
}

/// Returns the names of the files if sources stand for other files, at most the first three.
fn chosen(args: &LoadArgs, files: &[load::LoadedFile]) -> Option<String> {
    const SHOWN_MAX: usize = 3;
    if files.iter().map(|file| &file.path).eq(&args.files) {
        return None;
    }
    let shown = files.iter().take(SHOWN_MAX).map(|file| file.path.to_string_lossy());
    let mut names = shown.collect::<Vec<_>>().join(", ");
    if files.len() > SHOWN_MAX {
        names += &format!(", … ({} files)", files.len());
    }
    Some(printable(&names).into_owned())
}

fn proc_path(fd: BorrowedFd<'_>) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd())
}

fn as_json(
    report: &Report,
    files: &[load::LoadedFile],
    opened: &Opened,
    shared: &SharedBuffer,
    stays: bool,
) -> Value {
    let files: Vec<Value> = files
        .iter()
        .map(|file| {
            let digests: Map<String, Value> = file
                .digests
                .iter()
                .map(|(kind, digest)| (kind.to_string(), digest.as_str().into()))
                .collect();
            json!({
                "path": file.path.to_string_lossy(),
                "buffer_offset": file.buffer_offset,
                "bytes": file.len_bytes,
                "digests": digests,
            })
        })
        .collect();
    let (engine, ring_refused) = match &report.engine {
        Engine::Uring => ("io_uring", None),
        Engine::Threads { ring_refused } => ("threads", ring_refused.clone()),
        _ => ("unknown", None),
    };
    let pages = report.pages;
    // Descriptor numbers are useful only if this process or its program keeps them open.
    let memfd = shared.memfd().filter(|_| stays);
    let dma_buf = shared.dma_buf().filter(|_| stays);
    json!({
        "bytes": report.content_bytes,
        "bytes_read": report.by_route.total(),
        "seconds": report.elapsed.as_secs_f64(),
        "gb_per_second": report.bytes_per_second() / 1e9,
        "allocating_seconds": report.allocating.as_secs_f64(),
        "mapping_seconds": report.mapping.as_secs_f64(),
        "reading_seconds": report.reading.as_secs_f64(),
        "prefault_share": report.prefault_share,
        "memory_left_bytes": notes::memory_left(),
        "shmem_enabled": huge_pages::shmem_setting().ok(),
        "heap": shared.heap().to_string(),
        "page_size": report.pages.prevailing().map(longshore::mem::Granule::bytes),
        "page_bytes": {
            "hugetlb_2m": pages.hugetlb_2m_bytes,
            "huge_2m": pages.huge_2m_bytes,
            "mid_64k": pages.mid_64k_bytes,
            "base": pages.base_bytes,
            "unknown": pages.unknown_bytes,
        },
        "bytes_by_mode": {
            "direct": report.by_route.direct,
            "staged": report.by_route.staged,
            "page_cache": report.by_route.page_cache,
            "uncached": report.by_route.uncached,
            "buffered": report.by_route.buffered,
            "remote": report.by_route.remote,
        },
        "engine": engine,
        "ring_refused": ring_refused,
        "page_cache_growth_bytes": report.page_cache_growth_bytes,
        "buffer_bytes": shared.len(),
        "files": files,
        "tensors": opened.placed_tensors().count(),
        "pid": std::process::id(),
        "memfd": memfd.map(|fd| fd.as_raw_fd()),
        "memfd_path": memfd.map(proc_path),
        "dma_buf_fd": dma_buf.map(|fd| fd.as_fd().as_raw_fd()),
    })
}
