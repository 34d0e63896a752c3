//! Walks for the test `codegen`, which inspects their machine code: one for each kind, under names
//! that appear in the assembly.
#![expect(unsafe_code, reason = "names that the linker sees")]

use longshore_iov::kinds::{ForeignBuf, ForeignVec, OwnVec, PageVec, QueuedPages, SparsePages};
use longshore_iov::{Cursor, SegmentSource, Source};

macro_rules! walks {
    ($($name:ident($kind:ident)),* $(,)?) => {
        $(
            /// Combines the lengths, places and addresses of the segments.
            // SAFETY: no other symbol has this name.
            #[unsafe(no_mangle)]
            #[inline(never)]
            pub fn $name(cursor: &mut Cursor<'_, Source, $kind<'_, Source>>, len: usize) -> usize {
                let mut sum = 0;
                cursor.iterate(len, |segment, done| {
                    sum ^= segment.len() ^ done ^ segment.start().addr().get();
                    0
                });
                sum
            }
        )*
    };
}

walks!(
    probe_foreign_buf(ForeignBuf),
    probe_foreign_vec(ForeignVec),
    probe_own_vec(OwnVec),
    probe_page_vec(PageVec),
    probe_sparse_pages(SparsePages),
    probe_page_queue(QueuedPages),
);

/// Walks any kind, chosen outside of the loops.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
#[inline(never)]
pub fn probe_any_kind(cursor: &mut Cursor<'_, Source>, len: usize) -> usize {
    let mut sum = 0;
    cursor.iterate(len, |segment, done| {
        sum ^= segment.len() ^ done ^ segment.start().addr().get();
        0
    });
    sum
}

fn main() {
    let slices = [std::io::IoSlice::new(b"bytes")];
    let mut cursor = Cursor::<Source>::own_vec(&slices);
    println!("{}", probe_any_kind(&mut cursor, 5));
}
