//! Which tensors and metadata a synthetic model of a given size has.

use super::encode::push_string;
use super::{ALIGNMENT_DEFAULT, Array, Dtype, Header, Metadata, Tensor, Value, ValueType, parse};
use crate::format::synthetic::{self, HIDDEN_SIZES, Layout, SyntheticError};

/// A synthetic GGUF file. Its types are mixed as llama.cpp's `Q4_K_M` mixes them, norms are F32,
/// and its metadata have a vocabulary with a name for each row of the embedding.
pub type Synthetic = synthetic::Synthetic<Header>;

impl Synthetic {
    /// Lays out a file of `len_bytes` bytes or up to one percent less: rows are whole blocks.
    ///
    /// # Errors
    /// [`SyntheticError::Size`] where that is below [`synthetic::SYNTHETIC_LEN_MIN_BYTES`] or above
    /// [`synthetic::SYNTHETIC_LEN_MAX_BYTES`].
    pub fn new(len_bytes: u64) -> Result<Self, SyntheticError> {
        synthetic::check_len(len_bytes)?;
        Ok(Self::of(Model::fill(len_bytes).lay_out()))
    }
}

/// What a description of a tensor takes, with padding of its data.
const DESCRIPTION_BYTES: u64 = 128;
/// At least what the metadata outside the vocabulary take.
const METADATA_BYTES: u64 = 1500;
/// At least what the vocabulary takes for a word: a length, text, score and type.
const WORD_BYTES: u64 = 8 + 12 + 4 + 4;
/// What llama.cpp calls ordinary words and control words.
const WORD_NORMAL: i32 = 1;
const WORD_CONTROL: i32 = 3;
/// `MOSTLY_Q4_K_M` of the specification.
const FILE_TYPE: u32 = 15;

/// The measures of a decoder.
#[derive(Clone, Copy, Debug)]
struct Model {
    hidden: u64,
    layers: u64,
    vocabulary: u64,
}

impl Model {
    /// The widest model that fits at a usual depth, made deeper and then given as many words as
    /// there is room for.
    fn fill(file_len_bytes: u64) -> Self {
        let least = |hidden: u64| Self {
            hidden,
            // Models in use have 16 at 2048, 32 at 4096, 64 to 80 at 8192.
            layers: (hidden / 128).max(1),
            // Models in use have 32,000 and more.
            vocabulary: (8 * hidden).min(32_000),
        };
        // The first is no whole block.
        let mut model = least(HIDDEN_SIZES[1]);
        for wider in HIDDEN_SIZES[1..].iter().copied().map(least) {
            if wider.len_estimate_bytes() <= file_len_bytes {
                model = wider;
            }
        }
        let room = file_len_bytes.saturating_sub(model.len_estimate_bytes());
        let described = 2 * model.layer(0).len() as u64 * DESCRIPTION_BYTES;
        let two = model.layer_bytes(true) + model.layer_bytes(false) + described;
        model.layers += 2 * (room / two);
        // The estimates are a little high, so there is room again.
        loop {
            let room = file_len_bytes.saturating_sub(model.lay_out().len_bytes);
            let words = room / (model.row_bytes() + WORD_BYTES);
            if words == 0 {
                return model;
            }
            model.vocabulary += words;
        }
    }

    /// A little more than the length of the file, without making the header.
    fn len_estimate_bytes(&self) -> u64 {
        let described = (3 + self.layers * self.layer(0).len() as u64) * DESCRIPTION_BYTES;
        let words = self.vocabulary * (self.row_bytes() + WORD_BYTES);
        let layers: u64 = (0..self.layers).map(|layer| self.layer_bytes(self.is_fine(layer))).sum();
        METADATA_BYTES + described + words + layers + self.hidden * 4
    }

    /// What a word takes in the embedding and the head.
    fn row_bytes(&self) -> u64 {
        let row = |dtype| bytes(dtype, &[self.hidden]);
        row(self.coarse()) + row(self.fine())
    }

    fn layer_bytes(&self, fine: bool) -> u64 {
        self.tensors_of_layer(fine).iter().map(|(_, dtype, shape)| bytes(*dtype, shape)).sum()
    }

    /// The type of most matrices.
    fn coarse(&self) -> Dtype {
        if self.hidden.is_multiple_of(256) { Dtype::Q4K } else { Dtype::Q4_0 }
    }

    /// The type of those where errors matter more.
    fn fine(&self) -> Dtype {
        if self.hidden.is_multiple_of(256) { Dtype::Q6K } else { Dtype::Q8_0 }
    }

    /// Whether a layer is one of those where errors matter more: every other one.
    fn is_fine(&self, layer: u64) -> bool {
        layer.is_multiple_of(2)
    }

    /// The width between the feed-forward matrices, whole blocks.
    fn inner(&self) -> u64 {
        let block = self.coarse().block_elements();
        self.hidden * 7 / 2 / block * block
    }

    fn heads(&self) -> u64 {
        (self.hidden / 128).max(4)
    }

    fn layer(&self, layer: u64) -> [(&'static str, Dtype, Vec<u64>); 9] {
        self.tensors_of_layer(self.is_fine(layer))
    }

    /// One layer. A quarter of the heads have keys and values of their own.
    fn tensors_of_layer(&self, is_fine: bool) -> [(&'static str, Dtype, Vec<u64>); 9] {
        let (hidden, grouped, inner) = (self.hidden, self.hidden / 4, self.inner());
        let coarse = self.coarse();
        let fine = if is_fine { self.fine() } else { coarse };
        [
            ("attn_norm", Dtype::F32, vec![hidden]),
            ("attn_q", coarse, vec![hidden, hidden]),
            ("attn_k", coarse, vec![grouped, hidden]),
            ("attn_v", fine, vec![grouped, hidden]),
            ("attn_output", coarse, vec![hidden, hidden]),
            ("ffn_norm", Dtype::F32, vec![hidden]),
            ("ffn_gate", coarse, vec![inner, hidden]),
            ("ffn_up", coarse, vec![inner, hidden]),
            ("ffn_down", fine, vec![hidden, inner]),
        ]
    }

    /// All tensors in the order of the file. Of their data only the lengths are known.
    fn tensors(&self) -> Vec<Tensor> {
        let words = vec![self.vocabulary, self.hidden];
        let mut described = vec![("token_embd.weight".to_owned(), self.coarse(), words.clone())];
        for layer in 0..self.layers {
            described.extend(
                self.layer(layer).map(|(part, dtype, shape)| {
                    (format!("blk.{layer}.{part}.weight"), dtype, shape)
                }),
            );
        }
        described.push(("output_norm.weight".to_owned(), Dtype::F32, vec![self.hidden]));
        described.push(("output.weight".to_owned(), self.fine(), words));
        described
            .into_iter()
            .map(|(name, dtype, shape)| Tensor {
                name,
                dtype,
                data: 0..bytes(dtype, &shape),
                shape,
            })
            .collect()
    }

    fn metadata(&self) -> Metadata {
        let mut metadata = Metadata::default();
        let heads = self.heads();
        let number = |number: u64| Value::U32(number as u32);
        for (key, value) in [
            ("general.architecture", Value::String(b"llama")),
            ("general.name", Value::String(b"longshore synthetic")),
            ("general.file_type", Value::U32(FILE_TYPE)),
            ("general.quantization_version", Value::U32(2)),
            ("llama.context_length", Value::U32(8192)),
            ("llama.embedding_length", number(self.hidden)),
            ("llama.block_count", number(self.layers)),
            ("llama.feed_forward_length", number(self.inner())),
            ("llama.vocab_size", number(self.vocabulary)),
            ("llama.rope.dimension_count", number(self.hidden / heads)),
            ("llama.rope.freq_base", Value::F32(500_000.0)),
            ("llama.attention.head_count", number(heads)),
            ("llama.attention.head_count_kv", number(heads / 4)),
            ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
            ("tokenizer.ggml.model", Value::String(b"llama")),
            ("tokenizer.ggml.bos_token_id", Value::U32(1)),
            ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ] {
            metadata.push(key, value);
        }
        let (mut words, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
        let control = ["<unk>", "<s>", "</s>"];
        for word in 0..self.vocabulary {
            let known = control.get(word as usize);
            let text = known.map_or_else(|| format!("▁w{word}"), |text| (*text).to_owned());
            push_string(text.as_bytes(), &mut words);
            scores.extend((-(word as f32)).to_le_bytes());
            let kind = if known.is_some() { WORD_CONTROL } else { WORD_NORMAL };
            types.extend(kind.to_le_bytes());
        }
        for (key, element, bytes) in [
            ("tokenizer.ggml.tokens", ValueType::String, words),
            ("tokenizer.ggml.scores", ValueType::F32, scores),
            ("tokenizer.ggml.token_type", ValueType::I32, types),
        ] {
            let array = Array { element, len: self.vocabulary, bytes: &bytes };
            metadata.push(key, Value::Array(array));
        }
        metadata
    }

    fn lay_out(&self) -> Layout<Header> {
        let header = Header::laid_out(self.metadata(), self.tensors());
        let mut opening = header.head();
        opening.resize(header.data_offset as usize, 0);
        let mut padding = Vec::new();
        let mut len_bytes = header.data_offset;
        for tensor in &header.tensors {
            if len_bytes < tensor.data.start {
                padding.push(len_bytes..tensor.data.start);
            }
            len_bytes = tensor.data.end;
        }
        let padded = ALIGNMENT_DEFAULT.checked_round_up(len_bytes).unwrap_or(len_bytes);
        if len_bytes < padded {
            padding.push(len_bytes..padded);
        }
        Layout { opening, header, padding, len_bytes: padded }
    }
}

/// The length of a tensor of a synthetic model, which does not overflow.
fn bytes(dtype: Dtype, shape: &[u64]) -> u64 {
    parse::len_bytes(shape, dtype).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::format::synthetic::{SYNTHETIC_LEN_MAX_BYTES, SYNTHETIC_LEN_MIN_BYTES};

    #[test]
    fn every_length_is_met_and_the_header_reads_back() {
        let mut lengths = vec![SYNTHETIC_LEN_MIN_BYTES, SYNTHETIC_LEN_MAX_BYTES];
        let mut len = SYNTHETIC_LEN_MIN_BYTES;
        while len < 1 << 40 {
            lengths.extend([len, len / 5 * 7 + 7]);
            len = len / 16 * 33;
        }
        for len in lengths {
            let Layout { opening, header, len_bytes, .. } = Model::fill(len).lay_out();
            assert!(len_bytes <= len && len - len_bytes <= len / 100, "{len_bytes} of {len}");
            let read = Header::parse(Path::new("model"), &opening, len_bytes).unwrap();
            assert_eq!(read, header);
            assert_eq!(opening.len() as u64, header.data_offset);
        }
    }

    #[test]
    fn measures_are_those_of_models_in_use() {
        for (gib, hidden, layers) in [(1, 2048, 16..32), (5, 4096, 32..44), (40, 8192, 64..96)] {
            let model = Model::fill(gib << 30);
            assert_eq!(model.hidden, hidden, "{gib} GiB: {model:?}");
            assert!(layers.contains(&model.layers), "{gib} GiB: {model:?}");
        }
    }

    #[test]
    fn the_types_are_mixed_and_every_row_has_a_word() {
        let model = Synthetic::new(64 << 20).unwrap();
        let header = model.header();
        let count = |dtype| header.tensors.iter().filter(|tensor| tensor.dtype == dtype).count();
        assert!([Dtype::F32, Dtype::Q4K, Dtype::Q6K].iter().all(|dtype| count(*dtype) >= 3));
        let Some(Value::Array(words)) = header.metadata.get("tokenizer.ggml.tokens") else {
            panic!("no words");
        };
        assert_eq!(words.len(), header.tensor("token_embd.weight").unwrap().shape[0]);
        assert_eq!(words.values().nth(1).unwrap().as_str(), Some("<s>"));
        assert_eq!(words.values().nth(7).unwrap().as_str(), Some("▁w7"));
    }
}
