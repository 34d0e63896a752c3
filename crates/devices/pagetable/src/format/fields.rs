//! The parts of an entry by the names that the manuals give them, for tools that show entries to
//! people.

/// A named part of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Field {
    /// Its name in the manual.
    pub name: &'static str,
    /// Its highest bit.
    pub high: u32,
    /// Its lowest bit.
    pub low: u32,
    /// What its values mean, from zero on; empty where the number says it.
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

    /// The bits of an entry that the field consists of.
    pub const fn mask(&self) -> u64 {
        bits(self.high, self.low)
    }

    /// The field's value in `entry`.
    pub const fn value(&self, entry: u64) -> u64 {
        (entry & self.mask()) >> self.low
    }

    /// What the field's value in `entry` means, where the value alone does not say it.
    pub fn meaning(&self, entry: u64) -> Option<&'static str> {
        let at = usize::try_from(self.value(entry)).ok()?;
        self.meanings.get(at).copied().filter(|meaning| !meaning.is_empty())
    }
}

/// The fields of one kind of entry, in groups: what several kinds share is written once.
pub type Fields = &'static [&'static [Field]];

/// A field of one bit.
pub(super) const fn bit(name: &'static str, bit: u32) -> Field {
    Field::new(name, bit, bit)
}

/// A field of one bit, with what it means clear and set.
pub(super) const fn flag(name: &'static str, bit: u32, meanings: &'static [&'static str]) -> Field {
    Field::new(name, bit, bit).with_meanings(meanings)
}

/// A field of several bits.
pub(super) const fn range(name: &'static str, high: u32, low: u32) -> Field {
    Field::new(name, high, low)
}

/// A field of several bits, with what its values mean.
pub(super) const fn choice(
    name: &'static str,
    high: u32,
    low: u32,
    meanings: &'static [&'static str],
) -> Field {
    Field::new(name, high, low).with_meanings(meanings)
}

/// The bits `low..=high`.
pub(super) const fn bits(high: u32, low: u32) -> u64 {
    (u64::MAX >> (63 - high)) & (u64::MAX << low)
}
