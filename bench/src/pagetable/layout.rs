//! The ranges that are mapped and unmapped.

pub(super) const KIB: u64 = 1 << 10;
pub(super) const MIB: u64 = 1 << 20;
pub(super) const GIB: u64 = 1 << 30;

/// The start of the ranges of all cases: in the middle of the input range of four levels.
pub(super) const BASE: u64 = 1 << 42;

/// A range that one call maps to adjacent memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) iova: u64,
    /// Aligned so that no larger pages fit than the wanted ones.
    pub(super) bus: u64,
    pub(super) len_bytes: u64,
    /// The binary logarithm of the page size.
    pub(super) page_log2: u32,
}

/// A range that one call unmaps or scans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) iova: u64,
    pub(super) len_bytes: u64,
}

/// Pieces, and the stretches that unmap them.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    pub(super) pieces: Vec<Piece>,
    pub(super) stretches: Vec<Stretch>,
}

impl Piece {
    /// Creates a piece that fits pages of 2^`page_log2` bytes and no larger ones, except 1 GiB pages.
    fn new(iova: u64, len_bytes: u64, page_log2: u32) -> Self {
        Self { iova, bus: iova - BASE + GIB + (1 << page_log2), len_bytes, page_log2 }
    }

    pub(super) fn stretch(&self) -> Stretch {
        Stretch { iova: self.iova, len_bytes: self.len_bytes }
    }
}

impl Layout {
    /// Returns `count` ranges, at intervals of `stride_bytes`.
    pub(super) fn ranges(len_bytes: u64, page_log2: u32, stride_bytes: u64, count: u64) -> Self {
        let piece = |at| Piece::new(BASE + at * stride_bytes, len_bytes, page_log2);
        let pieces: Vec<Piece> = (0..count).map(piece).collect();
        let stretches = pieces.iter().map(Piece::stretch).collect();
        Self { pieces, stretches }
    }

    /// Returns `count` times a block of 2 MiB, 1 MiB of pages and 1 MiB of pages, unmapped as 4 MiB.
    pub(super) fn mixed(count: u64) -> Self {
        let mut pieces = Vec::new();
        let mut stretches = Vec::new();
        for at in 0..count {
            let iova = BASE + at * 4 * MIB;
            pieces.push(Piece::new(iova, 2 * MIB, 21));
            pieces.push(Piece::new(iova + 2 * MIB, MIB, 12));
            pieces.push(Piece::new(iova + 3 * MIB, MIB, 12));
            stretches.push(Stretch { iova, len_bytes: 4 * MIB });
        }
        Self { pieces, stretches }
    }

    /// Returns eight ranges of `len_bytes`, each with tables of its own.
    pub(super) fn apart(len_bytes: u64, page_log2: u32) -> Self {
        Self::ranges(len_bytes, page_log2, len_bytes.max(2 * MIB), 8)
    }

    /// Returns an address in each page, in ascending order.
    pub(super) fn pages(&self) -> Vec<u64> {
        let of = |piece: &Piece| {
            let iova = piece.iova;
            (0..piece.len_bytes >> piece.page_log2).map(move |page| iova + (page << 12) + 8)
        };
        self.pieces.iter().flat_map(of).collect()
    }
}

/// Returns `count` random elements of `of`, the same in each run.
pub(super) fn shuffled(of: &[u64], count: usize) -> Vec<u64> {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        of[(random % of.len() as u64) as usize]
    };
    (0..count).map(|_| next()).collect()
}
