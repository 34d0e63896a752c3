//! Adding a level on top.

use longshore_pagetable::format::Format;
use longshore_pagetable::table_memory::SimulatedDram;
use longshore_pagetable::{Error, PageTable, TlbGather, Walker};

use crate::read_write;
use crate::setup::*;

/// Mappings stay, also for walkers of the old root, and addresses beyond the old range can be
/// mapped.
pub(crate) fn growing<F: Format>(format: F) {
    let prot = read_write(&format);
    let memory = SimulatedDram::new(1 << 20);
    let mut table = PageTable::new(format, &memory, &memory).unwrap();
    let page = 1u64 << format.geometry().granule_log2();
    let last = format.geometry().last_va();
    table.map(at(&format, 0), bus(3 * page), 2 * page, prot).unwrap();
    table.map(at(&format, last - (page - 1)), bus(7 * page), page, prot).unwrap();
    let (before, root, used) = (mappings(&table), table.root(), memory.used());
    let mut gather = TlbGather::new();
    table.unmap(at(&format, page), page, &mut gather).unwrap();
    let Some(grown) = format.with_level_on_top() else {
        assert_eq!(table.grow(), Err(Error::CannotGrow));
        assert_eq!((table.root(), memory.used()), (root, used));
        let Ok(()) = table.finish(gather, &NoTlb);
        return;
    };
    assert_eq!(grown.geometry().levels(), format.geometry().levels() + 1);
    memory.set_budget(0);
    assert_eq!(table.grow(), Err(Error::OutOfMemory));
    assert_eq!((table.root(), memory.used()), (root, used));
    memory.set_budget(u64::MAX);
    assert!(table.lookup(at(&grown, last + 1)).is_err());

    let new_root = table.grow().unwrap();
    assert_eq!((table.root(), memory.used()), (new_root, used + 1));
    assert_ne!(new_root, root);
    // A gather from before can still be used with this page table.
    let Ok(()) = table.finish(gather, &NoTlb);
    let stays: Vec<_> =
        before.into_iter().filter(|mapping| mapping.iova != at(&format, page)).collect();
    assert_eq!(mappings(&table), stays);
    memory.with_view(|view| {
        for mapping in &stays {
            let old = Walker::new(&format, view, root).lookup(mapping.iova);
            let new = Walker::new(&grown, view, new_root).lookup(mapping.iova);
            assert_eq!((old, new), (Ok(Some(*mapping)), Ok(Some(*mapping))));
        }
    });
    table.map(at(&grown, last + 1), bus(11 * page), page, prot).unwrap();
    // Across the end of the old root's range.
    assert_eq!(
        unmap(&table, at(&grown, last - (page - 1)), 2 * page).map(|()| mappings(&table).len()),
        Ok(stays.len() - 1)
    );
    memory.with_view(|view| {
        let beyond = Walker::new(&grown, view, new_root).lookup(at(&grown, last + 1));
        assert_eq!(beyond, Ok(None));
    });
    while table.grow().is_ok() {}
    assert_eq!(table.grow(), Err(Error::CannotGrow));
    unmap(&table, at(&format, 0), page).unwrap();
    drop(table);
    assert_eq!(memory.used(), 0);
}
