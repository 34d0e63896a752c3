//! Large pages are mapped as such: if there is room, their IOVAs are multiples of their size.

use longshore_domain::backend::Soft;
use longshore_domain::{Bounce, Direction, Domain, Mapping};
use longshore_heap::{Buffer, Heap};
use longshore_mem::{DmaMemory, Iova};

const LARGE: u64 = 2 << 20;

fn buffer(len_bytes: u64) -> Buffer {
    Heap::Memfd.allocate(len_bytes).unwrap()
}

fn at<'d>(domain: &'d Domain, iova: u64) -> Mapping<'d, Buffer> {
    domain.map_at(Iova::new(iova), buffer(4096), Direction::ToDevice).unwrap()
}

#[test]
fn large_buffers_and_chunks_begin_where_a_large_page_does() {
    let domain = Domain::builder(Soft::new().unwrap()).free_after(None).build();
    let local = domain.local();
    let mut kept = Vec::new();
    for len in [4096, LARGE, 12_288, 3 * LARGE + 4096, 4096, 2 * LARGE] {
        let memory = buffer(len);
        let is_large = len >= LARGE && (memory.host().addr().get() as u64).is_multiple_of(LARGE);
        let mapping = local.map(memory, Direction::ToDevice).unwrap();
        assert_eq!(mapping.iova().raw().is_multiple_of(LARGE), is_large, "{mapping:?}");
        kept.push(mapping);
    }
    assert!(kept.iter().any(|mapping| mapping.iova().raw() % LARGE == 0));
    domain.set_bounce(Bounce::Always);
    // The first slot is where its chunk begins.
    let slot = domain.map(buffer(100), Direction::FromDevice).unwrap();
    assert_eq!(slot.iova().raw() % LARGE, 0);
}

#[test]
fn without_room_a_large_page_gets_an_unaligned_iova() {
    let domain = Domain::builder(Soft::new().unwrap()).address_bits(23).build();
    let taken = [3 << 20, 5 << 20, 7 << 20].map(|iova| at(&domain, iova));
    let mapping = domain.map(buffer(LARGE), Direction::ToDevice).unwrap();
    assert_ne!(mapping.iova().raw() % LARGE, 0);
    drop(mapping);
    drop(taken);
    let mapping = domain.map(buffer(LARGE), Direction::ToDevice).unwrap();
    assert_eq!(mapping.iova().raw() % LARGE, 0);
}
