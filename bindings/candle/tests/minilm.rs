//! Sentence embeddings of a real model, all-MiniLM-L6-v2, by our weights and by candle's own reader.
//! `LONGSHORE_MINILM` names the model's directory; `test.sh` fetches it.

use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::bert::{BertModel, Config};
use longshore_candle::Weights;

/// The tokens of "a ship at the shore" and of "the stock market", with `[CLS]`, `[SEP]` and `[PAD]`.
const TOKENS: [[u32; 7]; 2] =
    [[101, 1037, 2911, 2012, 1996, 5370, 102], [101, 1996, 4518, 3006, 102, 0, 0]];

fn embeddings(folder: &Path, weights: VarBuilder<'_>) -> Vec<Vec<f32>> {
    let config = std::fs::read(folder.join("config.json")).unwrap();
    let config: Config = serde_json::from_slice(&config).unwrap();
    let model = BertModel::load(weights, &config).unwrap();
    let tokens = Tensor::new(&TOKENS, &Device::Cpu).unwrap();
    let mask = tokens.ne(0_u32).unwrap();
    let output = model.forward(&tokens, &tokens.zeros_like().unwrap(), Some(&mask)).unwrap();
    let mask = mask.to_dtype(DType::F32).unwrap().unsqueeze(2).unwrap();
    let sum = output.broadcast_mul(&mask).unwrap().sum(1).unwrap();
    let mean = sum.broadcast_div(&mask.sum(1).unwrap()).unwrap();
    mean.to_vec2().unwrap()
}

#[test]
fn embeddings_equal_those_of_candles_own_reader_bit_for_bit() {
    let Some(folder) = std::env::var_os("LONGSHORE_MINILM").map(PathBuf::from) else {
        println!("SKIPPED: LONGSHORE_MINILM does not name the directory of all-MiniLM-L6-v2");
        return;
    };
    let path = folder.join("model.safetensors");
    let weights = Weights::load(&[&path]).unwrap();
    let ours = embeddings(&folder, weights.var_builder(DType::F32, &Device::Cpu));
    let bytes = std::fs::read(&path).unwrap();
    let theirs = VarBuilder::from_slice_safetensors(&bytes, DType::F32, &Device::Cpu).unwrap();
    let theirs = embeddings(&folder, theirs);
    assert_eq!((ours.len(), ours[0].len()), (2, 384));
    let bits = |rows: &[Vec<f32>]| rows.iter().flatten().map(|it| it.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&ours), bits(&theirs));
    assert!(ours[0].iter().all(|it| it.is_finite()) && ours[0] != ours[1]);
}
