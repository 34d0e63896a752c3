//! Loads with aligned tensors, from disks with and without suitable direct I/O.

use std::{fs, path::Path, path::PathBuf};

use longshore_heap::{Heap, Sealing};
use longshore_load::FormatChoice;
use longshore_load::{Loader, ReadMode, Report};
use longshore_mem::Granule;
use longshore_vm_tests::pattern;

use crate::{
    leftovers::Holdings,
    outcome::{Passed, TestResult, ensure},
};

/// The sizes of the tensors; two of them are large enough for direct reads.
const SIZES: [usize; 5] = [100, (3 << 20) + 12, 4096, 6 << 20, 513];
const SEED: u64 = 7;

pub(super) fn nvme_reads_into_place() -> TestResult {
    let file = Model::write("/disk/xfs")?;
    let direct = longshore_sys::file::status(fs::File::open(&file.path)?)?.direct;
    let memory = direct.ok_or("there is no direct I/O")?.memory;
    ensure!(
        memory.bytes() <= 4,
        "this disk needs memory aligned to {memory}, so it is not suitable for this test"
    );
    for heap in [Heap::Memfd, Heap::Udmabuf] {
        let report = file.load(&heap, 64)?;
        let routes = report.by_route;
        // All bytes of the two large tensors except the blocks at either end.
        let most = (9 << 20) - 4 * 4096;
        ensure!(routes.direct >= most, "{heap}: the bytes came {routes:?}");
        ensure!(routes.direct + routes.staged == file.len_bytes(), "{heap}: {routes:?}");
    }
    Ok(Passed::Yes)
}

pub(super) fn any_disk_into_any_memory() -> TestResult {
    for folder in ["/disk/ext4", "/tmp"] {
        let file = Model::write(folder)?;
        for heap in [Heap::Memfd, Heap::Udmabuf, Heap::DmaHeap("system".to_owned())] {
            for alignment in [64, 2 << 20] {
                let report = file.load(&heap, alignment)?;
                let routes = report.by_route;
                if folder == "/disk/ext4" {
                    ensure!(routes.staged == file.len_bytes(), "{heap}: the bytes came {routes:?}");
                }
            }
        }
    }
    Ok(Passed::Yes)
}

/// A safetensors file on a disk, removed when it is dropped.
struct Model {
    path: PathBuf,
}

impl Model {
    fn write(folder: &str) -> Result<Self, Box<dyn std::error::Error>> {
        let (mut descriptions, mut end) = (Vec::new(), 0);
        for (index, size) in SIZES.iter().enumerate() {
            let start = end;
            end += size;
            descriptions.push(format!(
                r#""t{index}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{start},{end}]}}"#
            ));
        }
        let mut text = format!("{{{}}}", descriptions.join(","));
        // A multiple of 8, as the format requires, but not of a block.
        while text.len() % 512 != 32 {
            text.push(' ');
        }
        let mut data = vec![0; end];
        pattern::fill(SEED, 0, &mut data);
        let path = Path::new(folder).join("aligned.safetensors");
        fs::write(&path, [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat())?;
        Ok(Self { path })
    }

    fn len_bytes(&self) -> u64 {
        SIZES.iter().sum::<usize>() as u64
    }

    /// Loads the cold file, checks each tensor, and checks that nothing is left.
    fn load(
        &self,
        heap: &Heap,
        alignment_bytes: u64,
    ) -> Result<Report, Box<dyn std::error::Error>> {
        let before = Holdings::now()?;
        let alignment = Granule::new(alignment_bytes)?;
        let as_it_is = longshore_load::open(&[&self.path], FormatChoice::Auto)?;
        longshore_sys::page_cache::evict(fs::File::open(&self.path)?)?;
        let opened = as_it_is.align(alignment)?;
        let loader = Loader::new().heap(heap.clone()).mode(ReadMode::Auto);
        let loaded = loader.load(&opened.plan)?;
        {
            let bytes = loaded.buffer.read()?;
            let mut seen = 0;
            for placed in opened.placed_tensors() {
                let name = placed.tensor.name;
                let index: usize = name.strip_prefix('t').ok_or("an unexpected name")?.parse()?;
                let offset: usize = SIZES[..index].iter().sum();
                let range = placed.buffer_range;
                ensure!(alignment.is_aligned(range.start), "{heap}: {name} is at {}", range.start);
                let part = &bytes[usize::try_from(range.start)?..usize::try_from(range.end)?];
                let difference = pattern::first_difference(SEED, offset as u64, part);
                ensure!(difference.is_none(), "{heap}: byte {difference:?} of {name} is wrong");
                seen += 1;
            }
            ensure!(seen == SIZES.len(), "{seen} tensors");
        }
        drop(opened);
        drop(loaded.buffer.share(Sealing::Size)?);
        before.ensure_unchanged()?;
        Ok(loaded.report)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // The test already has its outcome, and the file is harmless.
        let _ = fs::remove_file(&self.path);
    }
}
