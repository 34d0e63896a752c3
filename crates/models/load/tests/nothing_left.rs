//! A load that fails leaves no descriptor and no memory behind. This test has a process of its own,
//! because it counts descriptors and mappings.

use std::io::Write;
use std::path::Path;

use longshore_heap::Heap;
use longshore_load::{CancelToken, Error, Loader, Manifest, Plan};

/// Returns the number of open descriptors and the number of mapped memfds of this process.
fn held() -> (usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    (descriptors, maps.lines().filter(|line| line.contains("/memfd:")).count())
}

fn expect_nothing_left(what: &str, fail: impl Fn() -> Error) {
    let before = held();
    for _ in 0..3 {
        let error = fail();
        assert!(!error.to_string().is_empty());
        assert_eq!(held(), before, "after {what}: {error}");
    }
}

#[test]
fn failures_leave_neither_descriptors_nor_memory() {
    let mut file = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
    file.write_all(&vec![7; 24 << 20]).unwrap();
    let path = file.path();
    let load = |loader: Loader<'_>| {
        loader.heap(Heap::Memfd).load(&Plan::from_path(path).unwrap()).map(drop)
    };

    expect_nothing_left("a file that is not there", || Plan::from_path("/no/such").unwrap_err());
    expect_nothing_left("a directory", || Plan::from_path("/").unwrap_err());
    expect_nothing_left("a limit", || load(Loader::new().memory_max(1 << 20)).unwrap_err());
    expect_nothing_left("a cancellation before the start", || {
        let token = CancelToken::new();
        token.cancel();
        load(Loader::new().cancel(&token)).unwrap_err()
    });
    expect_nothing_left("a wrong checksum", || {
        let dir = tempfile::tempdir().unwrap();
        let manifest = dir.path().join("sums");
        let name = path.file_name().and_then(|name| Path::new(name).to_str()).unwrap();
        std::fs::write(&manifest, format!("00000000  {name}\n")).unwrap();
        let manifest = Manifest::open(manifest).unwrap();
        load(Loader::new().manifest(&manifest)).unwrap_err()
    });
    expect_nothing_left("a heap that is not there", || {
        let heap = Heap::DmaHeap("no-such-heap".to_owned());
        Loader::new().heap(heap).load(&Plan::from_path(path).unwrap()).unwrap_err()
    });
}
