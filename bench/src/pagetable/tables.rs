//! What a case asks of page tables, so that ours and the peers' run the same loops.

use super::layout::{Piece, Stretch};

/// Page tables of one library.
pub(super) trait Tables {
    /// Maps a piece, all of it, in pages of the piece's size.
    fn map(&mut self, piece: &Piece);

    /// Unmaps a stretch, all of which is mapped. Tables may be freed later, by [`Tables::settle`].
    fn unmap(&mut self, stretch: &Stretch);

    /// Does what unmapping left for later: one invalidation, freeing of tables.
    fn settle(&mut self) {}

    /// Leaves nothing of `pieces`, which may be mapped, and no table that was made for them.
    fn reset(&mut self, pieces: &[Piece]);

    /// Where `iova` leads, and 0 for nowhere.
    fn lookup(&self, iova: u64) -> u64;

    /// Pages that were written, of one stretch; only for tables that track them.
    fn count_dirty(&mut self, _stretch: &Stretch) -> usize {
        panic!("these tables do not track written pages")
    }
}
