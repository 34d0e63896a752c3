//! Options with named values, which help and completions list.

use std::error::Error;
use std::ffi::OsStr;
use std::marker::PhantomData;
use std::str::FromStr;

use clap::builder::{PossibleValue, TypedValueParser};
use longshore::load::{DigestKind, FormatChoice};
use longshore::{Heap, ReadMode};

/// A parser of values of type `T`. Help and completions list its names; `T` may accept other words,
/// such as `dma-heap:NAME`.
#[derive(Clone)]
pub(crate) struct Choices<T> {
    names: &'static [&'static str],
    of: PhantomData<fn() -> T>,
}

const fn choices<T>(names: &'static [&'static str]) -> Choices<T> {
    Choices { names, of: PhantomData }
}

pub(crate) const HEAPS: Choices<Heap> =
    choices(&["auto", "memfd", "memfd:4k", "hugetlb", "udmabuf", "dma-heap"]);
/// The heaps whose content can be sealed.
pub(crate) const HEAPS_OF_SERVER: Choices<Heap> = choices(&["memfd", "memfd:4k", "hugetlb"]);
pub(crate) const MODES: Choices<ReadMode> = choices(&["auto", "direct", "uncached", "buffered"]);
pub(crate) const FORMATS: Choices<FormatChoice> = choices(&["auto", "raw", "safetensors", "gguf"]);
pub(crate) const DIGESTS: Choices<DigestKind> = choices(&["crc32c", "xxh3", "sha256"]);
pub(crate) const VERIFY: Choices<Verify> = choices(&["crc32c", "xxh3", "sha256", "hub"]);

/// The checksums of a load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    /// Computes this kind.
    Digest(DigestKind),
    /// Compares the files with the checksums under which they are stored in the cache of the Hub.
    Hub,
}

impl FromStr for Verify {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        match word {
            "hub" => Ok(Self::Hub),
            word => word.parse().map(Self::Digest).map_err(|_| {
                format!("unknown checksum '{word}' (expected crc32c, xxh3, sha256 or hub)")
            }),
        }
    }
}

impl<T> TypedValueParser for Choices<T>
where
    T: FromStr + Clone + Send + Sync + 'static,
    T::Err: Into<Box<dyn Error + Send + Sync>>,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        // A function is a parser, too: this one formats the error as clap does for all options.
        let parser: fn(&str) -> Result<T, T::Err> = T::from_str;
        parser.parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.names.iter().map(PossibleValue::new)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<T: FromStr>(choices: &Choices<T>)
    where
        T::Err: ToString,
    {
        // The error of the type lists its names.
        let Err(error) = "no such name".parse::<T>() else { panic!("every word is accepted") };
        let error = error.to_string();
        let words = error.split([' ', ',', '(', ')']).filter(|word| word.parse::<T>().is_ok());
        let mut accepted: Vec<&str> = words.filter(|word| !word.starts_with("dma-heap:")).collect();
        let mut names = choices.names.to_vec();
        accepted.sort_unstable();
        names.sort_unstable();
        assert_eq!(names, accepted, "{error}");
    }

    #[test]
    fn every_name_of_a_type_is_listed() {
        check(&HEAPS);
        let sealable = |name: &&str| name.parse::<Heap>().unwrap().seals_content();
        let names: Vec<&str> = HEAPS.names.iter().copied().filter(sealable).collect();
        assert_eq!(names, HEAPS_OF_SERVER.names);
        check(&MODES);
        check(&FORMATS);
        check(&DIGESTS);
        check(&VERIFY);
    }
}
