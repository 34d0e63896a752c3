//! Index arithmetic: the slot and the table that translate an address.
//!
//! ```text
//!   4 KiB granule, 48 bits           level 3     level 2     level 1     level 0
//!                                  ┌─────────┬───────────┬───────────┬───────────┬────────┐
//!                                  │ 47 … 39 │  38 … 30  │  29 … 21  │  20 … 12  │ offset │
//!                                  └─────────┴───────────┴───────────┴───────────┴────────┘
//!   a slot translates                512 GiB     1 GiB       2 MiB       4 KiB
//! ```
//!
//! Levels are counted from the pages upwards, so a level has the same page size whatever the number
//! of levels; Arm's manual counts from the root downwards. A *va* is an address inside the
//! translated window without its sign extension: it is in `0..2^input_bits`.

use longshore_mem::Iova;

/// The maximum number of levels of a format: AMD's six.
pub const LEVELS_MAX: usize = 6;

/// The addresses that a table translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// `0..2^n`.
    Low,
    /// The top 2^n addresses (Arm's TTBR1).
    High,
    /// Both halves: all bits above bit n - 1 are copies of it (x86-64, RISC-V).
    Signed,
}

/// The shape of a format's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    granule_log2: u32,
    index_log2: u32,
    root_index_log2: u32,
    levels: u32,
    input_bits: u32,
    output_bits: u32,
    linear_log2: u32,
    window: Window,
    runs: [u32; LEVELS_MAX],
    /// The shift of the root level, which every walk starts with.
    root_shift: u32,
    root_index_mask: usize,
    index_mask: usize,
    has_four_levels_of_512: bool,
    /// The last va.
    last: u64,
    /// The number to add, wrapping, to an address so that the first address of the window becomes
    /// zero.
    to_window: u64,
    /// The bit that is the same in all addresses of a range: the half of a signed window.
    half: u64,
}

/// The parameters of a [`Geometry`].
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub(crate) granule_log2: u32,
    pub(crate) index_log2: u32,
    pub(crate) levels: u32,
    pub(crate) input_bits: u32,
    pub(crate) output_bits: u32,
    pub(crate) window: Window,
    pub(crate) runs: [u32; LEVELS_MAX],
    pub(crate) linear_log2: u32,
}

impl Shape {
    /// Returns a shape with pages of 2^`granule_log2` bytes and `levels` levels (root included),
    /// which translates addresses of `input_bits` bits (page offset included) to addresses of
    /// `output_bits` bits.
    ///
    /// Unless set otherwise, a table below the root fills a granule, the window begins at zero, and
    /// only pages of the granule are leaves.
    pub const fn new(granule_log2: u32, levels: u32, input_bits: u32, output_bits: u32) -> Self {
        Self {
            granule_log2,
            index_log2: granule_log2.saturating_sub(3),
            levels,
            input_bits,
            output_bits,
            window: Window::Low,
            runs: [1, 0, 0, 0, 0, 0],
            linear_log2: 64,
        }
    }

    /// Sets the number of entries of a table below the root, as a logarithm.
    #[must_use]
    pub const fn with_index_log2(mut self, index_log2: u32) -> Self {
        self.index_log2 = index_log2;
        self
    }

    /// Sets the addresses that are translated.
    #[must_use]
    pub const fn with_window(mut self, window: Window) -> Self {
        self.window = window;
        self
    }

    /// Sets for each level, from the pages upwards, how many adjacent entries may form one leaf:
    /// bit k stands for 2^k entries. The value is zero if the level has no leaves; otherwise bit 0
    /// is set.
    #[must_use]
    pub const fn with_runs(mut self, runs: [u32; LEVELS_MAX]) -> Self {
        self.runs = runs;
        self
    }

    /// Sets the size, as a logarithm, of the aligned windows of bus addresses within which the
    /// entries of adjacent leaves differ by a constant.
    #[must_use]
    pub const fn with_linear_log2(mut self, linear_log2: u32) -> Self {
        self.linear_log2 = linear_log2;
        self
    }
}

/// Adjacent slots for leaves of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LeafGroup {
    /// The number of slots of one leaf, as a logarithm.
    pub(crate) run_log2: u32,
    /// The number of slots of all leaves.
    pub(crate) slots: usize,
}

/// A range of vas that is not empty. It has its last byte instead of its end, so that it can be a
/// whole 64-bit space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// The first byte.
    pub(crate) first: u64,
    /// The last byte.
    pub(crate) last: u64,
}

/// A slot, and the part of a span that it translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The index of the slot in its table.
    pub(crate) index: usize,
    /// The part of the span.
    pub(crate) span: Span,
    /// `true` if that part is the whole range of the slot.
    pub(crate) whole: bool,
}

/// A level on the way down, with the shift and mask of its index, so that a walk needs no
/// multiplication.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) level: u32,
    pub(crate) shift: u32,
    index_mask: usize,
}

impl Step {
    /// Returns the index of the slot for `va`.
    #[inline]
    pub(crate) const fn index(self, va: u64) -> usize {
        (va >> self.shift) as usize & self.index_mask
    }
}

impl Geometry {
    /// Returns the geometry of a shape, without the runs that do not fit its tables.
    ///
    /// # Panics
    /// If the levels cannot translate the input bits: a bug in a format, not in its use.
    pub const fn new(shape: Shape) -> Self {
        let below_root = shape.granule_log2 + shape.index_log2 * (shape.levels - 1);
        assert!(shape.levels >= 1 && shape.levels as usize <= LEVELS_MAX);
        assert!(below_root < shape.input_bits && shape.input_bits <= 64);
        let mut made = Self {
            granule_log2: shape.granule_log2,
            index_log2: shape.index_log2,
            root_index_log2: shape.input_bits - below_root,
            levels: shape.levels,
            input_bits: shape.input_bits,
            output_bits: shape.output_bits,
            linear_log2: shape.linear_log2,
            window: shape.window,
            runs: [0; LEVELS_MAX],
            root_shift: below_root,
            root_index_mask: (1 << (shape.input_bits - below_root)) - 1,
            index_mask: (1 << shape.index_log2) - 1,
            has_four_levels_of_512: shape.granule_log2 == 12
                && shape.index_log2 == 9
                && shape.levels == 4
                && shape.input_bits - below_root <= 9,
            last: u64::MAX >> (64 - shape.input_bits),
            to_window: match shape.window {
                Window::Low => 0,
                Window::High => (u64::MAX >> (64 - shape.input_bits)).wrapping_add(1),
                Window::Signed => 1 << (shape.input_bits - 1),
            },
            half: match shape.window {
                Window::Low | Window::High => 0,
                Window::Signed => 1 << (shape.input_bits - 1),
            },
        };
        let mut level = 0;
        while level < shape.levels {
            let bits = made.slots_log2(level);
            // A leaf that is larger than all output addresses would never be chosen.
            let room = shape.output_bits.saturating_sub(made.shift(level));
            let most = if bits < room { bits } else { room };
            let fits = if room == 0 { 0 } else { (2u32 << most) - 1 };
            made.runs[level as usize] = shape.runs[level as usize] & fits;
            level += 1;
        }
        made
    }

    /// Returns the size of the smallest page, as a logarithm.
    #[inline]
    pub const fn granule_log2(&self) -> u32 {
        self.granule_log2
    }

    /// Returns the number of levels, root included.
    #[inline]
    pub const fn levels(&self) -> u32 {
        self.levels
    }

    /// Returns the level of the root.
    #[inline]
    pub const fn root_level(&self) -> u32 {
        self.levels - 1
    }

    /// Returns the number of address bits that are translated, page offset included.
    #[inline]
    pub const fn input_bits(&self) -> u32 {
        self.input_bits
    }

    /// Returns the number of bits of a translated address.
    #[inline]
    pub const fn output_bits(&self) -> u32 {
        self.output_bits
    }

    /// Returns the addresses that are translated.
    #[inline]
    pub const fn window(&self) -> Window {
        self.window
    }

    /// Returns how many bytes a slot of `level` translates, as a logarithm.
    #[inline]
    pub const fn shift(&self, level: u32) -> u32 {
        self.granule_log2 + self.index_log2 * level
    }

    /// Returns the number of entries of a table of `level`, as a logarithm.
    #[inline]
    pub const fn slots_log2(&self, level: u32) -> u32 {
        if level + 1 == self.levels { self.root_index_log2 } else { self.index_log2 }
    }

    /// Returns the number of entries of a table of `level`.
    #[inline]
    pub const fn slots(&self, level: u32) -> usize {
        1 << self.slots_log2(level)
    }

    /// Returns the size of a table of `level` in bytes, as a logarithm. A root with few entries
    /// takes a granule, too.
    #[inline]
    pub const fn table_log2(&self, level: u32) -> u32 {
        let log2 = self.slots_log2(level) + 3;
        if log2 < self.granule_log2 { self.granule_log2 } else { log2 }
    }

    /// Returns the index of the slot for `va` in a table of `level`.
    #[inline]
    pub const fn index(&self, level: u32, va: u64) -> usize {
        (va >> self.shift(level)) as usize & (self.slots(level) - 1)
    }

    /// Returns `true` for the usual shape: four levels, pages of 4 KiB, and tables of 512 entries,
    /// of which the root may have fewer.
    #[inline]
    pub(crate) const fn has_four_levels_of_512(&self) -> bool {
        self.has_four_levels_of_512
    }

    /// Returns `true` if `span` is in the range of one table of pages, but is not all of it.
    #[inline]
    pub(crate) const fn is_in_pages_table(&self, span: Span) -> bool {
        let shift = self.shift(1);
        span.first >> shift == span.last >> shift && span.last - span.first != (1 << shift) - 1
    }

    /// Returns the step of the root's level.
    #[inline]
    pub(crate) const fn root_step(&self) -> Step {
        let level = self.root_level();
        Step { level, shift: self.root_shift, index_mask: self.root_index_mask }
    }

    /// Returns the step of the level below one that is not the lowest.
    #[inline]
    pub(crate) const fn below(&self, step: Step) -> Step {
        Step {
            level: step.level - 1,
            shift: step.shift - self.index_log2,
            index_mask: self.index_mask,
        }
    }

    /// Returns how many adjacent entries may form one leaf at `level`: bit k stands for 2^k
    /// entries.
    #[inline]
    pub const fn runs(&self, level: u32) -> u32 {
        self.runs[level as usize]
    }

    /// Returns all page sizes: bit k stands for pages of 2^k bytes.
    pub const fn page_sizes(&self) -> u64 {
        let mut sizes = 0;
        let mut level = 0;
        while level < self.levels {
            sizes |= (self.runs(level) as u64) << self.shift(level);
            level += 1;
        }
        sizes
    }

    /// Returns the whole input range.
    #[inline]
    pub(crate) const fn all(&self) -> Span {
        Span { first: 0, last: self.last }
    }

    /// Returns the va of `iova`, or `None` if it is outside the window.
    #[inline]
    pub const fn va(&self, iova: Iova) -> Option<u64> {
        let raw = iova.raw();
        if raw.wrapping_add(self.to_window) <= self.last { Some(raw & self.last) } else { None }
    }

    /// Returns the address whose va is `va`.
    #[inline]
    pub const fn iova(&self, va: u64) -> Iova {
        let unused = 64 - self.input_bits;
        Iova::new(match self.window {
            Window::Low => va,
            Window::High => va | !self.last,
            Window::Signed => ((va << unused) as i64 >> unused) as u64,
        })
    }

    /// Returns the last va.
    #[inline]
    pub const fn last_va(&self) -> u64 {
        self.last
    }

    /// Returns `true` if `len_bytes` bytes from `iova` are a range that is not empty and lies
    /// inside the window. The two halves of a signed window are not adjacent.
    #[inline]
    pub fn contains(&self, iova: Iova, len_bytes: u64) -> bool {
        self.span(iova, len_bytes).is_some()
    }

    /// Returns the span of `len_bytes` from `iova`, or `None` if it is empty or not inside the
    /// window. The two halves of a signed window are not adjacent.
    #[inline]
    pub(crate) fn span(&self, iova: Iova, len_bytes: u64) -> Option<Span> {
        let first = self.va(iova)?;
        let last = first.checked_add(len_bytes.checked_sub(1)?)?;
        (last <= self.last && (first ^ last) & self.half == 0).then_some(Span { first, last })
    }

    /// Returns the slots of a table of `level` that translate a part of `span`, in ascending order.
    /// `span` must be inside the range of that table.
    #[inline]
    pub(crate) fn parts(
        &self,
        level: u32,
        span: Span,
    ) -> impl DoubleEndedIterator<Item = Part> + use<> {
        let (shift, first) = (self.shift(level), self.index(level, span.first));
        let offset_mask = (1 << shift) - 1;
        let table = span.first & !offset_mask;
        (first..=self.index(level, span.last)).map(move |index| {
            let slot = table.wrapping_add(((index - first) as u64) << shift);
            let part =
                Span { first: span.first.max(slot), last: span.last.min(slot | offset_mask) };
            Part { index, span: part, whole: part.last - part.first == offset_mask }
        })
    }

    /// Returns the first group of the largest possible leaves that map `slots` slots of `level` to
    /// `bus`. The first slot begins at `va`, and no leaf is larger than `page_log2_max`. Returns
    /// `None` if the level has no leaf that fits the alignment.
    #[inline]
    pub(crate) fn leaf_group(
        &self,
        level: u32,
        va: u64,
        bus: u64,
        slots: usize,
        page_log2_max: u32,
    ) -> Option<LeafGroup> {
        let shift = self.shift(level);
        let possible = self.runs(level) & Self::runs_up_to(page_log2_max.checked_sub(shift)?);
        let aligned = (va | bus).trailing_zeros().checked_sub(shift)?;
        let room = slots.checked_ilog2()?;
        let fitting = possible & Self::runs_up_to(aligned.min(room));
        let run_log2 = fitting.checked_ilog2()?;
        // Ends where a larger leaf can begin, if there is room for it.
        let larger = possible & !Self::runs_up_to(run_log2);
        let mut end = slots;
        if larger != 0 {
            let size_log2 = larger.trailing_zeros();
            let mask = (1u64 << (shift + size_log2)) - 1;
            let before = ((va.wrapping_neg() & mask) >> shift) as usize;
            if (va ^ bus) & mask == 0 && before != 0 && before + (1 << size_log2) <= slots {
                end = before;
            }
        }
        // Ends where entries no longer differ by a constant.
        if self.linear_log2 < self.output_bits && shift < self.linear_log2 {
            let window = 1u64 << self.linear_log2;
            let left = (window - (bus & (window - 1))) >> shift;
            end = end.min(usize::try_from(left).unwrap_or(usize::MAX));
        }
        Some(LeafGroup { run_log2, slots: (end >> run_log2).max(1) << run_log2 })
    }

    /// Returns the mask of runs of up to 2^`log2` entries.
    #[inline]
    const fn runs_up_to(log2: u32) -> u32 {
        if log2 >= 31 { u32::MAX } else { (2u32 << log2) - 1 }
    }
}

#[cfg(test)]
mod tests;
