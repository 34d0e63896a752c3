//! The tensors of a synthetic safetensors file.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write as _;

use longshore::formats::safetensors::{Dtype, Header, Tensor};

use super::content::{self, HIDDEN_SIZES, Layout};

/// The size of the field at the beginning of the file that has the header's length.
const PREFIX_BYTES: usize = 8;

/// A synthetic safetensors file. Matrices are BF16, norms are F32, and the layout is that of the
/// format's reference implementation.
pub(super) type Synthetic = content::Synthetic<Header>;

impl Synthetic {
    /// Lays out a file of `len_bytes` bytes, rounded down to a multiple of 8.
    pub(super) fn new(len_bytes: u64) -> anyhow::Result<Self> {
        content::check_len(len_bytes)?;
        Ok(Self::of(Model::fill(len_bytes & !7)))
    }
}

const BF16_BYTES: u64 = 2;
/// Upper bounds for the header's text about one layer, and about everything outside the layers.
const LAYER_TEXT_BYTES: u64 = 1200;
const REST_TEXT_BYTES: u64 = 700;

/// The dimensions of a decoder.
#[derive(Clone, Copy, Debug)]
struct Model {
    /// The width, a multiple of 16, so that every tensor's length is a multiple of 8.
    hidden: u64,
    layers: u64,
    vocabulary: u64,
}

impl Model {
    /// Lays out a file of exactly `file_len_bytes`, a multiple of 8: chooses the widest model that fits
    /// with a usual depth, and fills the rest of the file with more layers and then with more tokens.
    /// The remaining bytes, fewer than a token needs, are padding after the header.
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
            // Published models have 16 at 2048, 32 at 4096, 64 to 80 at 8192.
            layers: (hidden / 128).max(1),
            // Published models have 32,000 and more.
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

    /// Estimates [`Self::unpadded_len_bytes`], a little too high, without building the header.
    fn len_estimate_bytes(&self) -> u64 {
        let outside = len_bytes(Dtype::F32, &[self.hidden]) + self.vocabulary * self.word_bytes();
        REST_TEXT_BYTES + outside + self.layers * (self.layer_bytes() + LAYER_TEXT_BYTES)
    }

    fn layer_bytes(&self) -> u64 {
        self.layer().iter().map(|(_, dtype, shape)| len_bytes(*dtype, shape)).sum()
    }

    /// Returns the bytes of one more token: a row of the embedding and one of the head.
    fn word_bytes(&self) -> u64 {
        2 * self.hidden * BF16_BYTES
    }

    /// Returns the tensors of one layer. Groups of four heads share keys and values.
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

    /// Returns all tensors in the order of the file, with data ranges relative to the first.
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
        // As in the reference implementation: first by descending alignment, then by name.
        described.sort_by(|a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
        let mut start = 0;
        let placed = described.into_iter().map(|(name, dtype, shape)| {
            let data = start..start + len_bytes(dtype, &shape);
            start = data.end;
            Tensor::new(name, dtype, shape, data)
        });
        placed.collect()
    }

    /// Returns the length of the file without the padding of the header.
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
        Layout {
            opening,
            header,
            padding: Vec::new(),
            exponents: Vec::new(),
            len_bytes: file_len_bytes,
        }
    }
}

/// The metadata; PyTorch's readers require the first entry.
const METADATA: [(&str, &str); 2] = [("format", "pt"), ("origin", "longshore synthetic")];

fn len_bytes(dtype: Dtype, shape: &[u64]) -> u64 {
    shape.iter().product::<u64>() * dtype.bits() / 8
}

fn data_len_bytes(tensors: &[Tensor]) -> u64 {
    tensors.last().map_or(0, |last| last.data.end)
}

/// Returns the text of the header. No name has a character that JSON escapes.
fn text(tensors: &[Tensor]) -> String {
    let metadata = METADATA.map(|(key, value)| format!("\"{key}\":\"{value}\"")).join(",");
    let mut text = format!("{{\"__metadata__\":{{{metadata}}}");
    for Tensor { name, dtype, shape, data, .. } in tensors {
        let (start, end) = (data.start, data.end);
        let shape: Vec<String> = shape.iter().map(u64::to_string).collect();
        let shape = shape.join(",");
        // Writing to a string never fails.
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
    fn every_length_is_reached_and_the_header_can_be_parsed() {
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
    fn dimensions_are_those_of_published_models() {
        for (gib, hidden, layers) in [(1, 1536, 12..24), (16, 4096, 24..48), (140, 8192, 64..96)] {
            let model = Model::fitting(gib << 30);
            assert_eq!(model.hidden, hidden, "{gib} GiB: {model:?}");
            assert!(layers.contains(&model.layers), "{gib} GiB: {model:?}");
        }
    }
}
