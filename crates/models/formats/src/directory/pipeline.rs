//! The index of a diffusers model.

use serde::de::MapAccess;
use serde_json::Value;

use crate::error::{Error, Result};
use crate::format::Format;
use crate::json::{At, Expect, Refusal, Text};
use crate::reason::{Quantity, Reason};

/// The length limit of a `model_index.json`, in bytes. Those of published models have less than 2 KB.
pub const PIPELINE_LEN_MAX_BYTES: u64 = 1 << 20;

/// Returns the names of the components in a `model_index.json`, each of which has a folder of that name.
/// The schedulers and tokenizers among them have no weights. An entry is a component if its value is a
/// pair of a library and a class (`"vae": ["diffusers", "AutoencoderKL"]`), and the library is not null.
///
/// # Errors
/// [`Error`] if this is not a JSON object, or longer than [`PIPELINE_LEN_MAX_BYTES`].
pub fn components(model_index: &[u8]) -> Result<Vec<String>> {
    let refused = |reason: Box<Reason>| Error::new(Format::Pipeline, reason);
    check_pipeline_len(model_index.len() as u64)?;
    let text = std::str::from_utf8(model_index).map_err(|error| {
        refused(Box::new(Reason::NotUtf8 { item: None, offset: error.valid_up_to() as u64 }))
    })?;
    Refusal::default().read(text, Components).map_err(refused)
}

/// Checks the length of a `model_index.json` before it is read.
///
/// # Errors
/// [`Error`] if `len_bytes` is above [`PIPELINE_LEN_MAX_BYTES`].
pub fn check_pipeline_len(len_bytes: u64) -> Result<()> {
    if len_bytes <= PIPELINE_LEN_MAX_BYTES {
        return Ok(());
    }
    let (quantity, max) = (Quantity::FileBytes, PIPELINE_LEN_MAX_BYTES);
    let reason = Reason::TooLarge { item: None, quantity, found: Some(len_bytes), max };
    Err(Error::new(Format::Pipeline, reason))
}

struct Components;

impl<'de> Expect<'de> for Components {
    type Value = Vec<String>;
    const WHAT: &'static str = "an object with the components of a model";

    fn object<A: MapAccess<'de>>(
        self,
        mut object: A,
    ) -> std::result::Result<Vec<String>, A::Error> {
        let mut names = Vec::new();
        while let Some(name) = object.next_key_seed(At(Text))? {
            let value: Value = object.next_value()?;
            if value.get(0).is_some_and(Value::is_string) && !name.starts_with('_') {
                names.push(name);
            }
        }
        names.sort_unstable();
        names.dedup();
        Ok(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn components_are_entries_with_a_library() {
        let text = br#"{"_class_name": "StableDiffusionXLPipeline", "_x": ["diffusers", "X"],
            "vae": ["diffusers", "AutoencoderKL"], "unet": ["diffusers", "UNet2DConditionModel"],
            "image_encoder": [null, null], "force_zeros_for_empty_prompt": true, "sizes": [1, 2],
            "scheduler": ["diffusers", "EulerDiscreteScheduler"], "extra": {"a": []}}"#;
        assert_eq!(components(text).unwrap(), ["scheduler", "unet", "vae"]);
        assert_eq!(components(b"{}").unwrap(), [""; 0]);
    }

    #[test]
    fn other_content_is_an_error_of_the_diffusers_index() {
        let long = vec![b' '; PIPELINE_LEN_MAX_BYTES as usize + 1];
        let nested = format!("{{\"a\": {}", "[".repeat(100_000));
        for (content, part) in [
            (b"[]".as_slice(), "expected an object with the components of a model, found a list"),
            (b"{", "EOF while parsing"),
            (b"\xff", "UTF-8"),
            (&long, "limit"),
            (nested.as_bytes(), "recursion limit"),
        ] {
            let error = components(content).unwrap_err();
            assert_eq!(error.format(), Format::Pipeline);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
