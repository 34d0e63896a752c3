//! The lookup in the exception table.
#![expect(unsafe_code, reason = "reads the table that assembly and the linker made")]

#[repr(C)]
struct Entry {
    start: i32,
    end: i32,
    resume: i32,
}

// The linker defines these symbols from the name of the section. They are hidden, so that they do
// not resolve to the table of a second copy of this library in the process.
core::arch::global_asm!(".hidden __start_longshore_faults", ".hidden __stop_longshore_faults",);

unsafe extern "C" {
    #[link_name = "__start_longshore_faults"]
    static TABLE_START: Entry;
    #[link_name = "__stop_longshore_faults"]
    static TABLE_END: Entry;
}

/// Returns the address at which an instruction that faulted resumes, if it is in the table.
pub(super) fn resume_of(instruction: usize) -> Option<usize> {
    let start = &raw const TABLE_START;
    let end = &raw const TABLE_END;
    let count = (end.addr() - start.addr()) / size_of::<Entry>();
    // SAFETY: the linker put `count` entries, written by `fault_range!`, between the two symbols;
    // they are never written to.
    let table = unsafe { core::slice::from_raw_parts(start, count) };
    table.iter().find_map(|entry| {
        let at =
            |distance: &i32| (&raw const *distance).addr().wrapping_add_signed(*distance as isize);
        (at(&entry.start)..at(&entry.end)).contains(&instruction).then(|| at(&entry.resume))
    })
}
