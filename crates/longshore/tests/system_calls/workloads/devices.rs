//! The crates `pagetable`, `access` and `domain`, also with the memory of another process.

use std::io::{Seek, SeekFrom, Write};
use std::sync::Arc;

use longshore::Heap;
use longshore::access::dirty::{DirtyLog, Log};
use longshore::access::{
    Logs, OnUnmap, ProcessMemory, ReadOnly, Region, RegionAccess, RemoteMemory, Space,
};
use longshore::domain::backend::Soft;
use longshore::domain::{Bounce, Direction, DmaPoolOptions, Domain};
use longshore::mem::{AddrRange, BusAddr, FileOffset, Granule, Iova, VolatileSliceMut};
use longshore::pagetable::cache_sync::Coherent;
use longshore::pagetable::format::{ArmStage1, ArmStage1Config};
use longshore::pagetable::table_memory::HostPages;
use longshore::pagetable::{Invalidate, PageTable, Prot, TlbGather};
use longshore_sys::memfd;

use crate::run::{Files, Phase, Run, Steps};

const LEN: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// A walker without a TLB.
struct NoTlb;

impl Invalidate for NoTlb {
    type Error = std::convert::Infallible;

    fn flush(&self, _: &TlbGather) -> Result<(), Self::Error> {
        Ok(())
    }
}

pub(crate) fn pagetable(run: &mut Run) -> ! {
    run.begin(Phase::Setup);
    let format = ArmStage1::new(ArmStage1Config::new(Granule::SIZE_4K)).unwrap();
    let table = PageTable::new(format, HostPages::new(), Coherent).unwrap();
    let (iova, bus) = (Iova::new(0x4000_0000), BusAddr::new(0x8000_0000));
    table.map(Iova::new(0x4040_0000), bus, PAGE, Prot::READ_WRITE).unwrap();

    run.begin(Phase::Steady);
    for _ in 0..3 {
        table.map(iova, bus, 16 * PAGE, Prot::READ_WRITE).unwrap();
        assert!(table.lookup(iova).unwrap().is_some());
        let mut gather = TlbGather::new();
        table.unmap(iova, 16 * PAGE, &mut gather).unwrap();
        table.finish(gather, &NoTlb).unwrap();
    }

    run.begin(Phase::Teardown);
    drop(table);
    run.end()
}

pub(crate) fn access(run: &mut Run) -> ! {
    let file = memfd::create("guest", memfd::Backing::Shmem).unwrap();
    memfd::set_len(&file, LEN).unwrap();

    run.begin(Phase::Setup);
    let region = Region::map_file(&file, FileOffset::new(0), LEN, RegionAccess::ReadWrite).unwrap();
    let region = Arc::new(region);
    let space = Space::new().unwrap();
    space.attach(&region).unwrap();
    space.map(Iova::new(0), &region, 0, LEN, Prot::READ_WRITE).unwrap();
    let all = AddrRange::new(Iova::new(0), LEN).unwrap();
    let log = Arc::new(DirtyLog::new(Granule::SIZE_4K, all).unwrap());
    let logs = Logs::default().with_iova(Log::Internal(Arc::clone(&log)));
    let session = space.session();
    let turn = || {
        log.start(|| space.set_logs(logs.clone())).unwrap();
        session.write(Iova::new(100), &[1; 8192]).unwrap();
        let mut bytes = [0; 16];
        session.read(Iova::new(8000), &mut bytes).unwrap();
        assert_eq!(bytes, [1; 16]);
        drop(session.lease(Iova::new(0), 4096, ReadOnly, OnUnmap::Wait).unwrap());
        let mut pages = 0;
        space.collect(&log, all, |range| pages += range.len() / PAGE).unwrap();
        assert_eq!(pages, 3);
        log.stop(|| space.set_logs(Logs::default())).unwrap();
        space.unmap(Iova::new(PAGE), PAGE).unwrap();
        assert!(session.read(Iova::new(PAGE), &mut bytes).is_err());
        space.map(Iova::new(PAGE), &region, PAGE, PAGE, Prot::READ_WRITE).unwrap();
        session.read(Iova::new(PAGE), &mut bytes).unwrap();
    };
    turn();

    run.begin(Phase::Steady);
    for _ in 0..3 {
        turn();
    }

    run.begin(Phase::Teardown);
    drop(session);
    space.unmap(Iova::new(0), LEN).unwrap();
    space.detach(&region).unwrap();
    drop((space, region));
    run.end()
}

pub(crate) fn process(run: &mut Run) -> ! {
    let mut peer = run.peer("a process with memory");
    peer.step();
    let address = std::fs::read_to_string(Files::new().run.join(ADDRESS)).unwrap();
    let address = address.parse().unwrap();

    run.begin(Phase::Setup);
    let memory = ProcessMemory::open(peer.id(), address).unwrap();
    let mut bytes = [0; 64];
    memory.read(0, VolatileSliceMut::from(&mut bytes[..])).unwrap();

    run.begin(Phase::Steady);
    bytes = [0; 64];
    memory.read(0, VolatileSliceMut::from(&mut bytes[..])).unwrap();
    assert_eq!(bytes, [7; 64]);

    run.begin(Phase::Teardown);
    drop(memory);
    run.end()
}

/// The file into which the other process writes the address of its memory.
const ADDRESS: &str = "address";

pub(crate) fn process_with_memory(mut steps: Steps) {
    let memory = vec![7_u8; 1 << 16];
    steps.step(|| {
        let mut file = std::fs::File::create(Files::new().run.join(ADDRESS)).unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        write!(file, "{}", memory.as_ptr().addr()).unwrap();
    });
    steps.step(|| ());
}

pub(crate) fn domain(run: &mut Run) -> ! {
    run.begin(Phase::Setup);
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    let domain = Domain::builder(soft).bounce(Bounce::Below(16384)).build();
    let local = domain.local();
    let options = DmaPoolOptions::new().boundary(PAGE).limit(1024).reserve(512);
    let pool = domain.dma_pool(2048, 64, options).unwrap();
    let ring = domain.alloc_coherent(PAGE).unwrap();
    let (mut small, mut large) = (vec![1_u8; 300], Heap::Memfd.allocate(64 << 10).unwrap());
    let mut turn = |large| {
        local
            .lend_mut(&mut small, Direction::Bidirectional, |iova| {
                device.write(iova, b"an answer").unwrap();
            })
            .unwrap();
        assert_eq!(&small[..9], b"an answer");
        let mapping = local.map(large, Direction::ToDevice).unwrap();
        let mut bytes = [0; 8];
        device.read(mapping.iova(), &mut bytes).unwrap();
        device.write(ring.iova(), b"done").unwrap();
        let element = pool.take().unwrap();
        device.write(element.iova(), b"a packet").unwrap();
        drop(element);
        mapping.unmap().unwrap_or_else(|_| panic!("a mapping is unmapped"))
    };
    for _ in 0..4 {
        large = turn(large);
    }

    run.begin(Phase::Steady);
    for _ in 0..8 {
        large = turn(large);
    }

    run.begin(Phase::Teardown);
    drop((ring, pool, local, device, large));
    drop((domain, small));
    run.end()
}
