//! The trait that every candidate implements, so that all of them run the same loops.

use super::layout::{Piece, Stretch};

/// Page tables of one library.
pub(super) trait Tables {
    /// Maps a whole piece, in pages of the piece's size.
    fn map(&mut self, piece: &Piece);

    /// Unmaps a stretch, all of which is mapped. Tables may be freed later, by [`Tables::settle`].
    fn unmap(&mut self, stretch: &Stretch);

    /// Completes earlier unmaps: one invalidation, and the freeing of tables.
    fn settle(&mut self) {}

    /// Unmaps `pieces`, which may be mapped, and frees all tables that were allocated for them.
    fn reset(&mut self, pieces: &[Piece]);

    /// Returns the address that `iova` is mapped to, or 0 if it is not mapped.
    fn lookup(&self, iova: u64) -> u64;

    /// Returns the number of dirty pages of a stretch; only for tables that track them.
    fn count_dirty(&mut self, _stretch: &Stretch) -> usize {
        panic!("these tables do not track dirty pages")
    }
}
