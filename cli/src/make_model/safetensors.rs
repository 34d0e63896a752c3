//! Which tensors a synthetic model of a given size has.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use longshore::formats::safetensors::{Dtype, Header, Tensor};

use super::content::{self, HIDDEN_SIZES, Layout};

/// The width of the header's length at the beginning of the file.
const PREFIX_BYTES: usize = 8;

/// A synthetic safetensors file. Matrices are BF16, norms F32, and it is laid out as the format's
/// reference implementation does.
pub(super) type Synthetic = content::Synthetic<Header>;

impl Synthetic {
    /// Lays out a file of `len_bytes` bytes, rounded down to a multiple of 8.
    pub(super) fn new(len_bytes: u64) -> anyhow::Result<Self> {
        content::check_len(len_bytes)?;
        Ok(Self::of(Model::fill(len_bytes & !7)))
    }
}

const BF16_BYTES: u64 = 2;
/// At least what the header says of one layer, and of all that is outside the layers, takes.
const LAYER_TEXT_BYTES: u64 = 1200;
const REST_TEXT_BYTES: u64 = 700;

/// The measures of a decoder.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// The width, a multiple of 16, so that every tensor's length is a multiple of 8.
    hidden: u64,
    layers: u64,
    vocabulary: u64,
}

impl Model {
    /// Lays out a file of exactly `file_len_bytes`, a multiple of 8: the widest model that fits at
    /// a usual depth, made deeper and then given as many words as there is room for. What is left
    /// is less than a word takes, and is padded behind the header.
    fn fill(file_len_bytes: u64) -> Layout<Header> {
        let mut model = Self::fitting(file_len_bytes);
        let room = file_len_bytes.saturating_sub(model.unpadded_len_bytes());
        model.vocabulary += room / model.word_bytes();
        // The numbers in the header may have become longer.
        while model.unpadded_len_bytes() > file_len_bytes {
            model.vocabulary -= 1;
        }
        model.lay_out(file_len_bytes)
    }

    fn fitting(file_len_bytes: u64) -> Self {
        let least = |hidden: u64| Self {
            hidden,
            // Models in use have 16 at 2048, 32 at 4096, 64 to 80 at 8192.
            layers: (hidden / 128).max(1),
            // Models in use have 32,000 and more.
            vocabulary: (8 * hidden).min(32_000),
        };
        let mut model = least(HIDDEN_SIZES[0]);
        for wider in HIDDEN_SIZES.map(least) {
            if wider.len_estimate_bytes() <= file_len_bytes {
                model = wider;
            }
        }
        let room = file_len_bytes.saturating_sub(model.len_estimate_bytes());
        model.layers += room / (model.layer_bytes() + LAYER_TEXT_BYTES);
        model
    }

    /// A little more than [`Self::unpadded_len_bytes`], without making the header.
    fn len_estimate_bytes(&self) -> u64 {
        let outside = len_bytes(Dtype::F32, &[self.hidden]) + self.vocabulary * self.word_bytes();
        REST_TEXT_BYTES + outside + self.layers * (self.layer_bytes() + LAYER_TEXT_BYTES)
    }

    fn layer_bytes(&self) -> u64 {
        self.layer().iter().map(|(_, dtype, shape)| len_bytes(*dtype, shape)).sum()
    }

    /// What one more word takes: a row of the embedding and one of the head.
    fn word_bytes(&self) -> u64 {
        2 * self.hidden * BF16_BYTES
    }

    /// One layer. A quarter of the heads have keys and values of their own.
    fn layer(&self) -> [(&'static str, Dtype, Vec<u64>); 9] {
        let (hidden, grouped, inner) = (self.hidden, self.hidden / 4, self.hidden / 2 * 7);
        [
            ("input_layernorm", Dtype::F32, vec![hidden]),
            ("mlp.down_proj", Dtype::Bf16, vec![hidden, inner]),
            ("mlp.gate_proj", Dtype::Bf16, vec![inner, hidden]),
            ("mlp.up_proj", Dtype::Bf16, vec![inner, hidden]),
            ("post_attention_layernorm", Dtype::F32, vec![hidden]),
            ("self_attn.k_proj", Dtype::Bf16, vec![grouped, hidden]),
            ("self_attn.o_proj", Dtype::Bf16, vec![hidden, hidden]),
            ("self_attn.q_proj", Dtype::Bf16, vec![hidden, hidden]),
            ("self_attn.v_proj", Dtype::Bf16, vec![grouped, hidden]),
        ]
    }

    /// All tensors in the order of the file, their data relative to where it begins.
    fn tensors(&self) -> Vec<Tensor> {
        let words = vec![self.vocabulary, self.hidden];
        let mut described = vec![
            ("lm_head.weight".to_owned(), Dtype::Bf16, words.clone()),
            ("model.embed_tokens.weight".to_owned(), Dtype::Bf16, words),
            ("model.norm.weight".to_owned(), Dtype::F32, vec![self.hidden]),
        ];
        for layer in 0..self.layers {
            described.extend(self.layer().map(|(part, dtype, shape)| {
                (format!("model.layers.{layer}.{part}.weight"), dtype, shape)
            }));
        }
        // As the reference implementation: what needs the larger alignment first, then by name.
        described.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
        let mut start = 0;
        let placed = described.into_iter().map(|(name, dtype, shape)| {
            let data = start..start + len_bytes(dtype, &shape);
            start = data.end;
            Tensor::new(name, dtype, shape, data)
        });
        placed.collect()
    }

    /// The length of the file if the header were not padded.
    fn unpadded_len_bytes(&self) -> u64 {
        let tensors = self.tensors();
        (PREFIX_BYTES + text(&tensors).len()) as u64 + data_len_bytes(&tensors)
    }

    fn lay_out(self, file_len_bytes: u64) -> Layout<Header> {
        let mut tensors = self.tensors();
        let data_offset = file_len_bytes - data_len_bytes(&tensors);
        let text_len = data_offset as usize - PREFIX_BYTES;
        let mut opening = (text_len as u64).to_le_bytes().to_vec();
        opening.extend(text(&tensors).bytes());
        opening.resize(data_offset as usize, b' ');
        for tensor in &mut tensors {
            tensor.data.start += data_offset;
            tensor.data.end += data_offset;
        }
        let metadata = METADATA.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let metadata = BTreeMap::from(metadata);
        let header = Header::new(tensors, metadata, data_offset);
        Layout { opening, header, padding: Vec::new(), len_bytes: file_len_bytes }
    }
}

/// PyTorch's readers ask for the first.
const METADATA: [(&str, &str); 2] = [("format", "pt"), ("origin", "longshore synthetic")];

fn len_bytes(dtype: Dtype, shape: &[u64]) -> u64 {
    shape.iter().product::<u64>() * dtype.bits() / 8
}

fn data_len_bytes(tensors: &[Tensor]) -> u64 {
    tensors.last().map_or(0, |last| last.data.end)
}

/// The text of the header. No name has anything in it that JSON escapes.
fn text(tensors: &[Tensor]) -> String {
    let metadata = METADATA.map(|(key, value)| format!("\"{key}\":\"{value}\"")).join(",");
    let mut text = format!("{{\"__metadata__\":{{{metadata}}}");
    for Tensor { name, dtype, shape, data, .. } in tensors {
        let (start, end) = (data.start, data.end);
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        let shape = shape.join(",");
        // Writing to a string does not fail.
        let _ = write!(
            text,
            ",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}"
        );
    }
    text.push('}');
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::make_model::content::{SYNTHETIC_LEN_MAX_BYTES, SYNTHETIC_LEN_MIN_BYTES};

    #[test]
    fn every_length_is_met_and_the_header_reads_back() {
        let mut lengths = vec![SYNTHETIC_LEN_MIN_BYTES, SYNTHETIC_LEN_MAX_BYTES & !7];
        let mut len = SYNTHETIC_LEN_MIN_BYTES;
        while len < 1 << 40 {
            lengths.extend([len, len + 8, (len / 5 * 6) & !7]);
            len = (len / 16 * 23) & !7;
        }
        for len in lengths {
            let Layout { opening, header, .. } = Model::fill(len);
            let read = Header::parse(&opening, len).unwrap();
            assert_eq!(read, header);
            let word_bytes = 4 * header.tensor("model.norm.weight").unwrap().shape[0];
            let padding = opening.iter().rev().take_while(|byte| **byte == b' ').count() as u64;
            assert!(padding < 2 * word_bytes, "{padding} at {len}");
        }
    }

    #[test]
    fn measures_are_those_of_models_in_use() {
        for (gib, hidden, layers) in [(1, 1536, 12..24), (16, 4096, 24..48), (140, 8192, 64..96)] {
            let model = Model::fitting(gib << 30);
            assert_eq!(model.hidden, hidden, "{gib} GiB: {model:?}");
            assert!(layers.contains(&model.layers), "{gib} GiB: {model:?}");
        }
    }
}
