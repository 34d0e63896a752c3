//! The types of candle for the types of files.

use candle_core::DType;
use longshore::formats::{Dtype, gguf, safetensors};

/// Returns candle's type, or `None` if candle has none with the same bytes. `BOOL` becomes `U8`.
pub(crate) fn of_candle(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::Safetensors(dtype) => of_safetensors(dtype),
        Dtype::Ggml(dtype) => of_ggml(dtype),
        _ => None,
    }
}

fn of_safetensors(dtype: safetensors::Dtype) -> Option<DType> {
    use safetensors::Dtype as From;
    Some(match dtype {
        From::Bool | From::U8 => DType::U8,
        From::U32 => DType::U32,
        From::I16 => DType::I16,
        From::I32 => DType::I32,
        From::I64 => DType::I64,
        From::Bf16 => DType::BF16,
        From::F16 => DType::F16,
        From::F32 => DType::F32,
        From::F64 => DType::F64,
        From::F8E4m3 => DType::F8E4M3,
        From::F6E2m3 => DType::F6E2M3,
        From::F6E3m2 => DType::F6E3M2,
        From::F4 => DType::F4,
        From::F8E8m0 => DType::F8E8M0,
        _ => return None,
    })
}

/// The types of ggml without blocks. candle reads the others by its own `quantized` modules.
fn of_ggml(dtype: gguf::Dtype) -> Option<DType> {
    use gguf::Dtype as From;
    Some(match dtype {
        From::I16 => DType::I16,
        From::I32 => DType::I32,
        From::I64 => DType::I64,
        From::Bf16 => DType::BF16,
        From::F16 => DType::F16,
        From::F32 => DType::F32,
        From::F64 => DType::F64,
        _ => return None,
    })
}
