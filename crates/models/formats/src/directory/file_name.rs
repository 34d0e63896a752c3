//! The information in the name of a file with weights.

use crate::gguf::SplitName;

/// The kind of a file with weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// An index of safetensors files.
    Index,
    Safetensors,
    Gguf,
}

/// The parsed name of a file with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileName<'a> {
    pub(super) kind: Kind,
    /// The name without its extension, its variant and its place in a set.
    pub(super) base: &'a str,
    /// The variant, such as `fp16`. A GGUF file has none, because its name has no fixed place for it.
    pub(super) variant: Option<&'a str>,
    /// The number of this file, counted from 1, and the number of files, if it is one of several.
    pub(super) of_set: Option<(u64, u64)>,
}

impl<'a> FileName<'a> {
    /// Parses the last component of a path. Returns `None` for other files.
    pub(super) fn parse(name: &'a str) -> Option<Self> {
        if let Some((base, rest)) = name.split_once(".safetensors.index.") {
            // transformers and diffusers put the variant before the last extension:
            // model.safetensors.index.fp16.json.
            let variant = rest.strip_suffix(".json").or((rest == "json").then_some(""))?;
            let variant = Some(variant).filter(|variant| !variant.is_empty());
            return Some(Self { kind: Kind::Index, base, variant, of_set: None });
        }
        if let Some(stem) = name.strip_suffix(".safetensors") {
            let (stem, variant) = split_variant(stem);
            let (base, of_set) = split_number(stem);
            // Older versions wrote model.fp16-00001-of-00002.safetensors.
            let (base, variant) = match variant {
                None if of_set.is_some() => split_variant(base),
                variant => (base, variant),
            };
            return Some(Self { kind: Kind::Safetensors, base, variant, of_set });
        }
        let base = name.strip_suffix(".gguf")?;
        let split = SplitName::from_file_name(name.as_bytes()).filter(|split| split.count() > 1);
        let of_set = split.map(|split| (split.number(), split.count()));
        let base = if of_set.is_some() { split_number(base).0 } else { base };
        Some(Self { kind: Kind::Gguf, base, variant: None, of_set })
    }

    /// Returns `true` if the file is of this variant, in any case. In the name of a GGUF file the variant is a
    /// word: `Q4_K_M` is in `llama-q4_k_m.gguf`, and `Q4_K` is not.
    pub(super) fn is_of_variant(&self, variant: &str) -> bool {
        match self.kind {
            Kind::Gguf => has_word(&self.base.to_lowercase(), &variant.to_lowercase()),
            Kind::Index | Kind::Safetensors => {
                self.variant.is_some_and(|it| it.eq_ignore_ascii_case(variant))
            }
        }
    }

    /// Returns `true` if the file belongs to a model and is not one: an adapter, the projector of a
    /// multimodal model, or an importance matrix.
    pub(super) fn is_companion(&self) -> bool {
        let base = self.base.to_lowercase();
        match self.kind {
            Kind::Gguf => has_word(&base, "mmproj") || base.contains("imatrix"),
            Kind::Index | Kind::Safetensors => base.starts_with("adapter_"),
        }
    }
}

/// Splits the variant from a name without an extension: `model.fp16` is of variant `fp16`. A version
/// number (`llama-3.1`) is not a variant.
fn split_variant(stem: &str) -> (&str, Option<&str>) {
    let is_variant = |word: &str| {
        word.starts_with(|first: char| first.is_ascii_alphabetic())
            && word.chars().all(|char| char.is_ascii_alphanumeric() || char == '_')
    };
    match stem.rsplit_once('.') {
        Some((base, variant)) if !base.is_empty() && is_variant(variant) => (base, Some(variant)),
        _ => (stem, None),
    }
}

/// Splits `-00001-of-00003` from a name without an extension.
fn split_number(stem: &str) -> (&str, Option<(u64, u64)>) {
    let parsed = || {
        let (base, count) = stem.rsplit_once("-of-")?;
        let (base, number) = base.rsplit_once('-')?;
        let digits = |text: &str| {
            let are_digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|_| are_digits)
        };
        let (number, count): (u64, u64) = (digits(number)?, digits(count)?);
        (1..=count).contains(&number).then_some((base, Some((number, count))))
    };
    parsed().unwrap_or((stem, None))
}

/// Returns `true` if `word` occurs in `text` and no letter, digit or `_` is beside it.
fn has_word(text: &str, word: &str) -> bool {
    let is_part = |char: char| char.is_alphanumeric() || char == '_';
    !word.is_empty()
        && text.match_indices(word).any(|(at, _)| {
            !text[..at].ends_with(is_part) && !text[at + word.len()..].starts_with(is_part)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_a_kind_a_variant_and_a_number() {
        use Kind::{Gguf, Index, Safetensors};
        for (name, kind, base, variant, of_set) in [
            ("model.safetensors", Safetensors, "model", None, None),
            ("model.fp16.safetensors", Safetensors, "model", Some("fp16"), None),
            ("model.safetensors.index.json", Index, "model", None, None),
            ("model.safetensors.index.fp16.json", Index, "model", Some("fp16"), None),
            ("m-00002-of-00003.safetensors", Safetensors, "m", None, Some((2, 3))),
            ("m-00002-of-00003.bf16.safetensors", Safetensors, "m", Some("bf16"), Some((2, 3))),
            ("m.bf16-00002-of-00003.safetensors", Safetensors, "m", Some("bf16"), Some((2, 3))),
            ("m-00004-of-00003.safetensors", Safetensors, "m-00004-of-00003", None, None),
            ("llama-3.1.safetensors", Safetensors, "llama-3.1", None, None),
            (".fp16.safetensors", Safetensors, ".fp16", None, None),
            ("llama-3.1-Q4_K_M.gguf", Gguf, "llama-3.1-Q4_K_M", None, None),
            ("l-Q8_0-00001-of-00002.gguf", Gguf, "l-Q8_0", None, Some((1, 2))),
            ("l-00001-of-00001.gguf", Gguf, "l-00001-of-00001", None, None),
        ] {
            let expected = FileName { kind, base, variant, of_set };
            assert_eq!(FileName::parse(name), Some(expected), "{name}");
        }
        for other in
            ["model.bin", "config.json", "safetensors", "x.safetensors.index.", "a.gguf.md"]
        {
            assert_eq!(FileName::parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_variant_is_a_whole_word_of_a_gguf_name() {
        let is = |name, variant| FileName::parse(name).unwrap().is_of_variant(variant);
        assert!(is("llama-q4_k_m.gguf", "Q4_K_M"));
        assert!(is("llama.Q4_K_M-00001-of-00002.gguf", "q4_k_m"));
        assert!(!is("llama-Q4_K_M.gguf", "Q4_K"));
        assert!(!is("llama-IQ4_XS.gguf", "Q4_XS"));
        assert!(!is("llama.gguf", ""));
        assert!(is("model.fp16.safetensors", "fp16"));
        assert!(!is("model.safetensors", "fp16"));
    }
}
