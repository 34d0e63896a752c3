//! Models in several files (splits), as llama.cpp's `gguf-split` writes them.
//!
//! Each split is a GGUF file with some of the tensors. Its name ends in `-00001-of-00003.gguf`, and its
//! metadata has the same numbers: `split.no`, counted from zero, and `split.count`, the number of
//! splits. `split.tensors.count` is the number of tensors in all splits. The first split has the
//! metadata of the model.

use super::header::Header;
use super::limits::FORMAT;
use crate::error::{Error, Result};
use crate::quoted::QuotedName;
use crate::reason::{Reason, SplitProblem};

const NUMBER_KEY: &str = "split.no";
const COUNT_KEY: &str = "split.count";
const TENSORS_KEY: &str = "split.tensors.count";

/// The parsed file name of a split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitName {
    /// The bytes before the numbers, which need not be UTF-8.
    prefix: Vec<u8>,
    number: u64,
    count: u64,
}

impl SplitName {
    /// Parses a file name that ends in `-NNNNN-of-NNNNN.gguf`. Returns `None` for any other name.
    pub fn from_file_name(file_name: &[u8]) -> Option<Self> {
        let (prefix, end) = file_name.split_at_checked(file_name.len().checked_sub(20)?)?;
        let end = std::str::from_utf8(end).ok()?;
        let (number, count) = end.strip_prefix('-')?.strip_suffix(".gguf")?.split_once("-of-")?;
        let parsed = |digits: &str| {
            let all = digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|_| all)
        };
        let (number, count) = (parsed(number)?, parsed(count)?);
        Some(Self { prefix: prefix.to_owned(), number, count })
    }

    /// Returns the number of the split, counted from 1.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the number of splits.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns `true` for the first of several splits.
    pub fn is_first_of_several(&self) -> bool {
        self.count > 1 && self.number == 1
    }

    /// Returns the name of the split with this number, counted from 1.
    pub fn with_number(&self, number: u64) -> Vec<u8> {
        let mut name = self.prefix.clone();
        name.extend(format!("-{number:05}-of-{:05}.gguf", self.count).bytes());
        name
    }
}

impl Header {
    /// Compares the name of a file with the split numbers in its metadata. Returns the parsed name if
    /// the file is the first of several splits; `None` if it is to be loaded alone.
    ///
    /// # Errors
    /// [`Error`] if the name and the metadata contradict each other.
    pub fn as_first_of_several(&self, file_name: &[u8]) -> Result<Option<SplitName>> {
        let number = self.number_of(NUMBER_KEY).unwrap_or(0);
        let count = self.number_of(COUNT_KEY).unwrap_or(1);
        match SplitName::from_file_name(file_name).filter(|name| name.count > 1) {
            Some(name) if name.number == 1 || number == 0 => {
                let claimed = (number.saturating_add(1), count);
                if claimed == (name.number, name.count) {
                    return Ok(Some(name));
                }
                Err(refused(SplitProblem::Misnamed {
                    number: name.number,
                    count: name.count,
                    found_number: claimed.0,
                    found_count: count,
                }))
            }
            None if number == 0 && count > 1 => Err(refused(SplitProblem::Unnamed { count })),
            _ => Ok(None),
        }
    }

    /// Checks that the metadata declares this file to be split `number`, counted from 1, of `count`.
    ///
    /// # Errors
    /// [`Error`] if it does not.
    pub fn check_split(&self, number: u64, count: u64) -> Result<()> {
        let claimed = (self.number_of(NUMBER_KEY), self.number_of(COUNT_KEY));
        if claimed == (number.checked_sub(1), Some(count)) {
            return Ok(());
        }
        Err(refused(SplitProblem::OtherSplit {
            number,
            count,
            found_number: claimed.0,
            found_count: claimed.1,
        }))
    }

    /// Returns an integer from the metadata.
    fn number_of(&self, key: &str) -> Option<u64> {
        self.metadata.get(key)?.as_u64()
    }
}

/// Checks that splits, given in order, belong together: no tensor is in two of them, and the number of
/// all tensors is the one that each split declares.
///
/// # Errors
/// [`Error`] if they do not.
pub fn check_splits<'a>(headers: impl IntoIterator<Item = &'a Header>) -> Result<()> {
    let headers: Vec<&Header> = headers.into_iter().collect();
    let mut names: Vec<(&str, u64)> = Vec::new();
    for (number, header) in (1..).zip(&headers) {
        names.extend(header.tensors.iter().map(|tensor| (tensor.name.as_str(), number)));
    }
    names.sort_unstable();
    if let Some(pair) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        let [(name, first), (_, second)] = [pair[0], pair[1]];
        let tensor = QuotedName::new(name);
        return Err(refused(SplitProblem::TensorTwice { tensor, first, second }));
    }
    let there = names.len() as u64;
    for (number, header) in (1..).zip(&headers) {
        let claimed = header.number_of(TENSORS_KEY).filter(|claimed| *claimed != there);
        if let Some(claimed) = claimed {
            return Err(refused(SplitProblem::TensorCount {
                number,
                count: claimed,
                found_count: there,
            }));
        }
    }
    Ok(())
}

fn refused(problem: SplitProblem) -> Error {
    Error::new(FORMAT, Reason::Splits(problem))
}
