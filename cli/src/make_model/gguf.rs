//! The tensors and the metadata of a synthetic GGUF file.

use longshore::formats::gguf::{Dtype, Header, MAGIC, ValueType};

use super::content::{self, ExponentByte, Exponents, HIDDEN_SIZES, Layout};

/// A synthetic GGUF file. Its types are mixed as in llama.cpp's `Q4_K_M`, norms are F32, and its
/// metadata has a vocabulary with a token for each row of the embedding.
pub(super) type Synthetic = content::Synthetic<Header>;

impl Synthetic {
    /// Lays out a file of `len_bytes` bytes, or up to one percent less, because rows are whole blocks.
    pub(super) fn new(len_bytes: u64) -> anyhow::Result<Self> {
        content::check_len(len_bytes)?;
        Ok(Self::of(Model::fill(len_bytes).lay_out()?))
    }
}

/// The length of a tensor's description, and of the padding of its data.
const DESCRIPTION_BYTES: u64 = 128;
/// An upper bound for the metadata without the vocabulary.
const METADATA_BYTES: u64 = 1550;
/// An upper bound for a token of the vocabulary: a length, text, score and type.
const WORD_BYTES: u64 = 8 + 12 + 4 + 4;
/// The tokens before the words: three special ones, and one for each byte. llama.cpp breaks a text that
/// consists of no words into bytes, and looks for the byte of the newline in each vocabulary.
const SPECIAL: [(&str, i32); 3] =
    [("<unk>", WORD_UNKNOWN), ("<s>", WORD_CONTROL), ("</s>", WORD_CONTROL)];
const BYTE_TOKENS: u64 = 256;
/// The fewest tokens of a vocabulary: those before the words, and some words.
const VOCABULARY_MIN: u64 = SPECIAL.len() as u64 + BYTE_TOKENS + 5;
/// llama.cpp's types of tokens.
const WORD_NORMAL: i32 = 1;
const WORD_UNKNOWN: i32 = 2;
const WORD_CONTROL: i32 = 3;
const WORD_BYTE: i32 = 6;
/// The version of the format that is written.
const VERSION: u32 = 3;
/// The alignment of tensors if the metadata declares none.
const ALIGNMENT: u64 = 32;
/// `MOSTLY_Q4_K_M` of the specification.
const FILE_TYPE: u32 = 15;

/// The dimensions of a decoder.
#[derive(Clone, Copy, Debug)]
struct Model {
    hidden: u64,
    layers: u64,
    vocabulary: u64,
}

impl Model {
    /// Chooses the widest model that fits with a usual depth, and fills the rest of the file with more
    /// layers and then with more tokens.
    fn fill(file_len_bytes: u64) -> Self {
        let least = |hidden: u64| Self {
            hidden,
            // Published models have 16 at 2048, 32 at 4096, 64 to 80 at 8192.
            layers: (hidden / 128).max(1),
            // Published models have 32,000 and more.
            vocabulary: (8 * hidden).clamp(VOCABULARY_MIN, 32_000),
        };
        // The first width is less than a block.
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
        // The estimates are a little high, so some room is left. More tokens can lengthen the padding
        // behind the header, the embedding and the head.
        let padding_max = 3 * (ALIGNMENT - 1);
        loop {
            let room = file_len_bytes.saturating_sub(model.opened().1 + padding_max);
            let words = room / (model.row_bytes() + WORD_BYTES);
            if words == 0 {
                return model;
            }
            model.vocabulary += words;
        }
    }

    /// Estimates the length of the file, a little too high, without building the header.
    fn len_estimate_bytes(&self) -> u64 {
        let described = (3 + self.layers * self.layer(0).len() as u64) * DESCRIPTION_BYTES;
        let words = self.vocabulary * (self.row_bytes() + WORD_BYTES);
        let layers: u64 = (0..self.layers).map(|layer| self.layer_bytes(self.is_fine(layer))).sum();
        METADATA_BYTES + described + words + layers + self.hidden * 4
    }

    /// Returns the bytes of a token in the embedding and in the head.
    fn row_bytes(&self) -> u64 {
        let row = |dtype| bytes(dtype, &[self.hidden]);
        row(self.coarse()) + row(self.fine())
    }

    fn layer_bytes(&self, fine: bool) -> u64 {
        self.tensors_of_layer(fine).iter().map(|(_, dtype, shape)| bytes(*dtype, shape)).sum()
    }

    /// Returns the type of most matrices.
    fn coarse(&self) -> Dtype {
        if self.hidden.is_multiple_of(256) { Dtype::Q4K } else { Dtype::Q4_0 }
    }

    /// Returns the type of the matrices whose precision matters more.
    fn fine(&self) -> Dtype {
        if self.hidden.is_multiple_of(256) { Dtype::Q6K } else { Dtype::Q8_0 }
    }

    /// Returns `true` for the layers whose precision matters more: every other one.
    fn is_fine(&self, layer: u64) -> bool {
        layer.is_multiple_of(2)
    }

    /// Returns the width between the feed-forward matrices, in whole blocks.
    fn inner(&self) -> u64 {
        let block = self.coarse().block_elements();
        self.hidden * 7 / 2 / block * block
    }

    /// Returns the number of heads: whole groups of four, which share keys and values.
    fn heads(&self) -> u64 {
        (self.hidden / 128).next_multiple_of(4).max(4)
    }

    fn layer(&self, layer: u64) -> [(&'static str, Dtype, Vec<u64>); 9] {
        self.tensors_of_layer(self.is_fine(layer))
    }

    /// Returns the tensors of one layer. Groups of four heads share keys and values.
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

    /// The tensors in the order of the file.
    fn tensors(&self) -> Vec<(String, Dtype, Vec<u64>)> {
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
    }

    /// Returns the bytes of the metadata entries, and their number.
    fn metadata(&self) -> (Vec<u8>, u64) {
        let heads = self.heads();
        let string = |text: &str| (ValueType::String, pushed_string(text));
        let number = |number: u64| (ValueType::U32, (number as u32).to_le_bytes().to_vec());
        let float = |number: f32| (ValueType::F32, number.to_le_bytes().to_vec());
        let (mut words, mut scores, mut types) = (Vec::new(), Vec::new(), Vec::new());
        for number in 0..self.vocabulary {
            let (text, kind) = token(number);
            push_string(&text, &mut words);
            // A tokenizer of SentencePiece prefers words with higher scores.
            let score = if kind == WORD_NORMAL { -(number as f32) } else { 0.0 };
            scores.extend(score.to_le_bytes());
            types.extend(kind.to_le_bytes());
        }
        let array = |element: ValueType, bytes: Vec<u8>| {
            let mut value = element.number().to_le_bytes().to_vec();
            value.extend(self.vocabulary.to_le_bytes());
            value.extend(bytes);
            (ValueType::Array, value)
        };
        let entries = [
            ("general.architecture", string("llama")),
            ("general.name", string("longshore synthetic")),
            ("general.file_type", number(FILE_TYPE.into())),
            ("general.quantization_version", number(2)),
            ("llama.context_length", number(8192)),
            ("llama.embedding_length", number(self.hidden)),
            ("llama.block_count", number(self.layers)),
            ("llama.feed_forward_length", number(self.inner())),
            ("llama.vocab_size", number(self.vocabulary)),
            ("llama.rope.dimension_count", number(self.hidden / heads)),
            ("llama.rope.freq_base", float(500_000.0)),
            ("llama.attention.head_count", number(heads)),
            ("llama.attention.head_count_kv", number(heads / 4)),
            ("llama.attention.layer_norm_rms_epsilon", float(1e-5)),
            ("tokenizer.ggml.model", string("llama")),
            ("tokenizer.ggml.bos_token_id", number(1)),
            ("tokenizer.ggml.eos_token_id", number(2)),
            ("tokenizer.ggml.unknown_token_id", number(0)),
            ("tokenizer.ggml.tokens", array(ValueType::String, words)),
            ("tokenizer.ggml.scores", array(ValueType::F32, scores)),
            ("tokenizer.ggml.token_type", array(ValueType::I32, types)),
        ];
        let count = entries.len() as u64;
        let mut bytes = Vec::new();
        for (key, (kind, value)) in entries {
            push_string(key, &mut bytes);
            bytes.extend(kind.number().to_le_bytes());
            bytes.extend(value);
        }
        (bytes, count)
    }

    /// Returns the bytes before the data, and the length of the file, whose last tensor is padded, too.
    fn opened(&self) -> (Vec<u8>, u64) {
        let (metadata, entries) = self.metadata();
        let tensors = self.tensors();
        let mut opening = MAGIC.to_vec();
        opening.extend(VERSION.to_le_bytes());
        opening.extend((tensors.len() as u64).to_le_bytes());
        opening.extend(entries.to_le_bytes());
        opening.extend(metadata);
        let mut offset = 0;
        for (name, dtype, shape) in tensors {
            push_string(&name, &mut opening);
            opening.extend((shape.len() as u32).to_le_bytes());
            // The innermost dimension comes first.
            opening.extend(shape.iter().rev().flat_map(|size| size.to_le_bytes()));
            opening.extend(dtype.number().to_le_bytes());
            opening.extend(u64::to_le_bytes(offset));
            offset = (offset + bytes(dtype, &shape)).next_multiple_of(ALIGNMENT);
        }
        opening.resize(opening.len().next_multiple_of(ALIGNMENT as usize), 0);
        let len_bytes = opening.len() as u64 + offset;
        (opening, len_bytes)
    }

    fn lay_out(&self) -> anyhow::Result<Layout<Header>> {
        let (opening, len_bytes) = self.opened();
        let header = Header::parse(&opening, len_bytes)?;
        let mut padding = Vec::new();
        let mut end = header.data_offset;
        for next in
            header.tensors.iter().map(|tensor| &tensor.data).chain([&(len_bytes..len_bytes)])
        {
            if end < next.start {
                padding.push(end..next.start);
            }
            end = next.end;
        }
        let exponents = header.tensors.iter().flat_map(|tensor| {
            let bytes = exponent_bytes(tensor.dtype);
            bytes.into_iter().map(|byte| Exponents { range: tensor.data.clone(), byte })
        });
        let exponents = exponents.collect();
        Ok(Layout { opening, header, padding, exponents, len_bytes })
    }
}

/// Returns the bytes with exponents in an element or block (`ggml-common.h` of llama.cpp).
fn exponent_bytes(dtype: Dtype) -> Vec<ExponentByte> {
    let scale = |at| ExponentByte::f16(dtype.block_bytes(), at);
    match dtype {
        Dtype::F32 => ExponentByte::F32.to_vec(),
        // A scale and a minimum, before the quantized numbers.
        Dtype::Q4K => vec![scale(0), scale(2)],
        // The scale is the last number of the block.
        Dtype::Q6K => vec![scale(dtype.block_bytes() - 2)],
        Dtype::Q4_0 | Dtype::Q8_0 => vec![scale(0)],
        _ => Vec::new(),
    }
}

/// Returns the text and the type of a token.
fn token(number: u64) -> (String, i32) {
    let special = SPECIAL.len() as u64;
    if let Some((text, kind)) = SPECIAL.get(number as usize) {
        ((*text).to_owned(), *kind)
    } else if number < special + BYTE_TOKENS {
        (format!("<0x{:02X}>", number - special), WORD_BYTE)
    } else {
        (format!("▁w{number}"), WORD_NORMAL)
    }
}

fn pushed_string(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    push_string(text, &mut bytes);
    bytes
}

/// Appends the length of a string and the string.
fn push_string(text: &str, into: &mut Vec<u8>) {
    into.extend((text.len() as u64).to_le_bytes());
    into.extend(text.as_bytes());
}

/// Returns the length of a tensor's data in bytes. Rows are whole blocks.
fn bytes(dtype: Dtype, shape: &[u64]) -> u64 {
    shape.iter().product::<u64>() / dtype.block_elements() * dtype.block_bytes()
}

#[cfg(test)]
mod tests {
    use longshore::formats::gguf::Value;

    use super::*;
    use crate::make_model::content::{SYNTHETIC_LEN_MAX_BYTES, SYNTHETIC_LEN_MIN_BYTES};

    #[test]
    fn every_length_is_reached_and_the_header_can_be_parsed() {
        let mut lengths = vec![SYNTHETIC_LEN_MIN_BYTES, SYNTHETIC_LEN_MAX_BYTES];
        let mut len = SYNTHETIC_LEN_MIN_BYTES;
        while len < 1 << 40 {
            lengths.extend([len, len / 5 * 7 + 7]);
            len = len / 16 * 33;
        }
        for len in lengths {
            let model = Model::fill(len);
            let Layout { opening, header, len_bytes, .. } = model.lay_out().unwrap();
            assert!(len_bytes <= len && len - len_bytes <= len / 100, "{len_bytes} of {len}");
            assert_eq!(opening.len() as u64, header.data_offset);
            for (read, (name, dtype, shape)) in header.tensors.iter().zip(model.tensors()) {
                assert_eq!((&read.name, read.dtype, &read.shape), (&name, dtype, &shape));
            }
            assert_eq!(header.tensors.len(), model.tensors().len());
            assert_eq!(header.metadata.len() as u64, model.metadata().1);
        }
    }

    #[test]
    fn all_numbers_are_finite_from_every_offset() {
        for len in [64 << 10, 3 << 20] {
            let model = Synthetic::new(len).unwrap();
            let mut whole = vec![0; model.len_bytes() as usize];
            model.fill(0, &mut whole);
            let f32 = |at: usize| f32::from_le_bytes(whole[at..at + 4].try_into().unwrap());
            let exponent = |at: usize| u16::from_le_bytes([whole[at], whole[at + 1]]) >> 10 & 0x1f;
            for tensor in &model.header().tensors {
                let data = tensor.data.start as usize..tensor.data.end as usize;
                let blocks = data.step_by(tensor.dtype.block_bytes() as usize);
                for block in blocks {
                    match tensor.dtype {
                        Dtype::F32 => assert!((1.0..2.0).contains(&f32(block)), "{}", f32(block)),
                        Dtype::Q4K => assert_eq!([exponent(block), exponent(block + 2)], [2; 2]),
                        Dtype::Q6K => assert_eq!(exponent(block + 208), 2),
                        _ => assert_eq!(exponent(block), 2),
                    }
                }
            }
            for (offset, part) in [(1, 7), (4097, 5000), (whole.len() / 2 + 3, 9999)] {
                let mut bytes = vec![0; part];
                model.fill(offset as u64, &mut bytes);
                assert_eq!(bytes, whole[offset..offset + part], "{offset}");
            }
        }
    }

    #[test]
    fn dimensions_are_those_of_published_models() {
        for (gib, hidden, layers) in [(1, 2048, 16..32), (5, 4096, 32..44), (40, 8192, 64..96)] {
            let model = Model::fill(gib << 30);
            assert_eq!(model.hidden, hidden, "{gib} GiB: {model:?}");
            assert!(layers.contains(&model.layers), "{gib} GiB: {model:?}");
        }
    }

    /// llama.cpp computes the width of keys and values from the numbers of heads in the metadata.
    #[test]
    fn the_heads_of_every_width_are_those_that_llama_cpp_expects() {
        for hidden in &HIDDEN_SIZES[1..] {
            let model = Model { hidden: *hidden, layers: 1, vocabulary: VOCABULARY_MIN };
            let Layout { header, .. } = model.lay_out().unwrap();
            let number = |key: &str| {
                let value = header.metadata.get(&format!("llama.{key}")).unwrap();
                value.as_u64().unwrap()
            };
            let heads = number("attention.head_count");
            let grouped = number("attention.head_count_kv");
            let head = number("rope.dimension_count");
            let shape = |part: &str| {
                let tensor = header.tensor(&format!("blk.0.attn_{part}.weight"));
                tensor.unwrap().shape.clone()
            };
            assert_eq!((heads * head, heads % grouped, head % 2), (*hidden, 0, 0), "{model:?}");
            assert_eq!(shape("q"), [*hidden, *hidden], "{model:?}");
            assert_eq!(shape("k"), [grouped * head, *hidden], "{model:?}");
            assert_eq!(shape("v"), shape("k"), "{model:?}");
        }
    }

    #[test]
    fn the_types_are_mixed_and_every_row_has_a_token() {
        let model = Synthetic::new(64 << 20).unwrap();
        let header = model.header();
        let count = |dtype| header.tensors.iter().filter(|tensor| tensor.dtype == dtype).count();
        assert!([Dtype::F32, Dtype::Q4K, Dtype::Q6K].iter().all(|dtype| count(*dtype) >= 3));
        let Some(Value::Array(words)) = header.metadata.get("tokenizer.ggml.tokens") else {
            panic!("no words");
        };
        assert_eq!(words.len(), header.tensor("token_embd.weight").unwrap().shape[0]);
        assert_eq!(words.values().nth(1).unwrap().as_str(), Some("<s>"));
        assert_eq!(words.values().nth(3 + 10).unwrap().as_str(), Some("<0x0A>"));
        assert_eq!(words.values().nth(3 + 255).unwrap().as_str(), Some("<0xFF>"));
        assert_eq!(words.values().nth(3 + 256).unwrap().as_str(), Some("▁w259"));
    }
}
