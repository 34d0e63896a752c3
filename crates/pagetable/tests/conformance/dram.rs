//! A walker that sees only what was cleaned: at every moment each page is mapped as before or as
//! after the operation that is going on.

use std::sync::{Arc, Mutex};

use longshore_pagetable::table_memory::SimulatedDram;
use longshore_pagetable::{Format, PageTable, TlbGather, Walker};

use crate::model::Random;
use crate::read_write;
use crate::setup::*;

/// Which page leads where, before and after what is going on.
type Expected = Arc<Mutex<Vec<(u64, [Option<u64>; 2])>>>;

pub(crate) fn never_half_written<F: Format + 'static>(format: F) {
    let prot = read_write(&format);
    let geometry = *format.geometry();
    let granule = 1u64 << geometry.granule_log2();
    let memory = SimulatedDram::new(4 << 20);
    let table = PageTable::new(format, &memory, &memory).unwrap();
    let root = table.root();
    // Pages around a boundary of two tables.
    let middle = (1u64 << geometry.shift(1).min(geometry.input_bits() - 2)).max(64 * granule);
    let base = middle - 32 * granule;
    let pages: Vec<u64> = (0..64).map(|page| base + page * granule).collect();
    let expected: Expected =
        Arc::new(Mutex::new(pages.iter().map(|page| (*page, [None, None])).collect()));
    let seen = Arc::clone(&expected);
    memory.observe(move |view| {
        let walker = Walker::new(&format, view, root);
        for (va, allowed) in seen.lock().unwrap().iter() {
            let iova = at(&format, *va);
            let found = walker.lookup(iova).unwrap();
            let found = found.map(|mapping| mapping.translate(iova).unwrap().raw());
            assert!(allowed.contains(&found), "{}: {va:#x} leads to {found:x?}", F::NAME);
        }
    });
    let mut random = Random(0xfeed_beef_0bad_cafe);
    for round in 0..40 {
        let first = random.below(60) as usize;
        let count = 1 + random.below(64 - first as u64) as usize;
        let range = first..first + count;
        let target = |page: usize| (round + 1) * 256 * granule + page as u64 * granule;
        let (iova, len) = (at(&format, pages[first]), count as u64 * granule);
        let before: Vec<Option<u64>> = {
            let mut expected = expected.lock().unwrap();
            expected[range.clone()]
                .iter_mut()
                .map(|(_, allowed)| {
                    allowed[0] = allowed[1];
                    allowed[0]
                })
                .collect()
        };
        let set = |after: &dyn Fn(usize) -> [Option<u64>; 2]| {
            let mut expected = expected.lock().unwrap();
            for page in range.clone() {
                expected[page].1 = after(page);
            }
        };
        if before.iter().all(Option::is_none) {
            set(&|page| [None, Some(target(page))]);
            table.map(iova, bus(target(first)), len, prot).unwrap();
            set(&|page| [Some(target(page)); 2]);
        } else {
            // Everything that is mapped goes, piece by piece.
            let mut gather = TlbGather::new();
            let all = std::mem::take(&mut *expected.lock().unwrap());
            let mut page = 0;
            let mut now = all.clone();
            while page < 64 {
                let Some(mapping) = table.lookup(at(&format, pages[page])).unwrap() else {
                    page += 1;
                    continue;
                };
                let va = geometry.va(mapping.iova).unwrap();
                let size = 1u64 << mapping.page_log2;
                for (page, allowed) in &mut now {
                    if *page >= va && *page - va < size {
                        *allowed = [allowed[1], None];
                    }
                }
                *expected.lock().unwrap() = now.clone();
                table.unmap(mapping.iova, size, &mut gather).unwrap();
                for (page, allowed) in &mut now {
                    if *page >= va && *page - va < size {
                        *allowed = [None; 2];
                    }
                }
                page += 1;
            }
            *expected.lock().unwrap() = now;
            let Ok(()) = table.finish(gather, &NoTlb);
        }
    }
    // The walker has all of it now.
    memory.observe_no_more();
    memory.with_view(|view| {
        let walker = Walker::new(&format, view, root);
        for page in &pages {
            let iova = at(&format, *page);
            assert_eq!(walker.lookup(iova), table.lookup(iova));
        }
    });
}
