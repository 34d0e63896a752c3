//! The parts of an entry by their names in the manuals, for tools that show entries to people.

/// A named part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// The name in the manual.
    pub name: &'static str,
    /// The highest bit.
    pub high: u32,
    /// The lowest bit.
    pub low: u32,
    /// The meanings of the values, from zero on; empty if the number is the meaning.
    pub meanings: &'static [&'static str],
}

impl Field {
    /// Returns the field of the bits `low..=high` with this name.
    pub const fn new(name: &'static str, high: u32, low: u32) -> Self {
        Self { name, high, low, meanings: &[] }
    }

    /// Sets the meanings of the field's values, from zero on.
    #[must_use]
    pub const fn with_meanings(mut self, meanings: &'static [&'static str]) -> Self {
        self.meanings = meanings;
        self
    }

    /// Returns the mask of the field's bits.
    pub const fn mask(&self) -> u64 {
        bits(self.high, self.low)
    }

    /// Returns the field's value in `entry`.
    pub const fn value(&self, entry: u64) -> u64 {
        (entry & self.mask()) >> self.low
    }

    /// Returns the meaning of the field's value in `entry`, or `None` if it has no meaning beyond
    /// its number.
    pub fn meaning(&self, entry: u64) -> Option<&'static str> {
        let at = usize::try_from(self.value(entry)).ok()?;
        self.meanings.get(at).copied().filter(|meaning| !meaning.is_empty())
    }
}

/// The fields of one kind of entry, in groups, so that kinds can share a group.
pub type Fields = &'static [&'static [Field]];

/// Returns a field of one bit.
pub(super) const fn bit(name: &'static str, bit: u32) -> Field {
    Field::new(name, bit, bit)
}

/// Returns a field of one bit, with its meanings when clear and when set.
pub(super) const fn flag(name: &'static str, bit: u32, meanings: &'static [&'static str]) -> Field {
    Field::new(name, bit, bit).with_meanings(meanings)
}

/// Returns a field of several bits.
pub(super) const fn range(name: &'static str, high: u32, low: u32) -> Field {
    Field::new(name, high, low)
}

/// Returns a field of several bits, with the meanings of its values.
pub(super) const fn choice(
    name: &'static str,
    high: u32,
    low: u32,
    meanings: &'static [&'static str],
) -> Field {
    Field::new(name, high, low).with_meanings(meanings)
}

/// Returns the mask of the bits `low..=high`.
pub(super) const fn bits(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}
