//! The header of a safetensors file that looks like a model.

use std::fmt::Write as _;

const ELEMENT_BYTES: u64 = 2;
const COLUMNS: u64 = 4096;

/// The tensors of one layer of a decoder with 8 billion parameters: name and bytes.
const LAYER: [(&str, u64); 9] = [
    ("input_layernorm", 8 << 10),
    ("self_attn.q_proj", 32 << 20),
    ("self_attn.k_proj", 8 << 20),
    ("self_attn.v_proj", 8 << 20),
    ("self_attn.o_proj", 32 << 20),
    ("post_attention_layernorm", 8 << 10),
    ("mlp.gate_proj", 112 << 20),
    ("mlp.up_proj", 112 << 20),
    ("mlp.down_proj", 112 << 20),
];

/// Returns the header, after its length, of a file of `len_bytes`, an even number. Its tensors are
/// layers of half-precision tensors; the last one is cut to fit.
pub(super) fn header(len_bytes: u64) -> Vec<u8> {
    // The length of the header and the list of tensors depend on each other, hence the loop.
    let mut guess_bytes = 0;
    loop {
        let header = header_for(len_bytes.saturating_sub(guess_bytes));
        if header.len() as u64 == guess_bytes {
            return header;
        }
        guess_bytes = header.len() as u64;
    }
}

fn header_for(data_bytes: u64) -> Vec<u8> {
    let mut json = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    let mut at = 0;
    let layers = (0u32..).flat_map(|layer| LAYER.map(|(name, bytes)| (layer, name, bytes)));
    for (layer, name, bytes) in layers {
        if at == data_bytes {
            break;
        }
        let end = data_bytes.min(at + bytes);
        let elements = (end - at) / ELEMENT_BYTES;
        let shape = if elements.is_multiple_of(COLUMNS) && elements > COLUMNS {
            format!("{},{COLUMNS}", elements / COLUMNS)
        } else {
            elements.to_string()
        };
        // Writing to a string cannot fail.
        let _ = write!(
            json,
            ",\"model.layers.{layer}.{name}.weight\":{{\"dtype\":\"F16\",\"shape\":[{shape}],\
             \"data_offsets\":[{at},{end}]}}"
        );
        at = end;
    }
    json.push('}');
    // Padding to a multiple of 256 lets the guess above converge, because the length rarely changes.
    while (json.len() + 8) % 256 != 8 {
        json.push(' ');
    }
    let mut header = (json.len() as u64).to_le_bytes().to_vec();
    header.extend_from_slice(json.as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tensors_fill_the_file_without_a_gap() {
        for len_bytes in [64 << 10, 1 << 20, 512 << 20, 3_400_000_000] {
            let header = header(len_bytes);
            let json_bytes = u64::from_le_bytes(header[..8].try_into().unwrap());
            assert_eq!(json_bytes as usize, header.len() - 8);
            assert!(header.len().is_multiple_of(8));
            let tensors: serde_json::Map<String, serde_json::Value> =
                serde_json::from_slice(&header[8..]).unwrap();
            let mut ranges: Vec<(u64, u64)> = Vec::new();
            for (name, tensor) in tensors.iter().filter(|(name, _)| *name != "__metadata__") {
                let offset = |at: usize| tensor["data_offsets"][at].as_u64().unwrap();
                let shape = tensor["shape"].as_array().unwrap();
                let elements: u64 = shape.iter().map(|n| n.as_u64().unwrap()).product();
                assert_eq!(elements * 2, offset(1) - offset(0), "{name}");
                ranges.push((offset(0), offset(1)));
            }
            ranges.sort_unstable();
            assert_eq!(ranges[0].0, 0);
            assert!(ranges.windows(2).all(|pair| pair[0].1 == pair[1].0));
            assert_eq!(ranges.last().unwrap().1 + header.len() as u64, len_bytes);
        }
    }
}
