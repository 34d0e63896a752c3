//! Whether the tensors of a header fill the data of the file exactly.

use super::header::Tensor;
use crate::json::quoted;

/// Sorts tensors by where their data lies and checks that each has a name of its own and the size
/// that its shape says, and that they neither overlap nor leave anything out. Returns the length
/// of the data in bytes.
///
/// # Errors
/// Why they are refused.
pub(super) fn check(tensors: &mut [Tensor]) -> Result<u64, String> {
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(format!("its header describes the tensor {} twice", quoted(&pair[0].name)));
    }
    // The names give tensors without data an order.
    let key = |tensor: &Tensor| (tensor.data.start, tensor.data.end);
    tensors.sort_unstable_by(|a, b| key(a).cmp(&key(b)).then_with(|| a.name.cmp(&b.name)));
    let mut previous: Option<&Tensor> = None;
    for tensor in &*tensors {
        follows(tensor, previous)?;
        has_its_size(tensor)?;
        previous = Some(tensor);
    }
    Ok(previous.map_or(0, |last| last.data.end))
}

fn follows(tensor: &Tensor, previous: Option<&Tensor>) -> Result<(), String> {
    let (start, end) = (tensor.data.start, tensor.data.end);
    let expected = previous.map_or(0, |previous| previous.data.end);
    let name = || quoted(&tensor.name);
    if end < start {
        return Err(format!(
            "tensor {} begins at byte {start} of the data but ends at {end}",
            name()
        ));
    }
    if let Some(previous) = previous.filter(|_| start < expected) {
        return Err(format!(
            "tensor {} (bytes {start} to {end} of the data) overlaps tensor {} (bytes {} to {})",
            name(),
            quoted(&previous.name),
            previous.data.start,
            previous.data.end
        ));
    }
    if start != expected {
        return Err(format!(
            "bytes {expected} to {start} of the data, before tensor {}, belong to no tensor",
            name()
        ));
    }
    Ok(())
}

fn has_its_size(tensor: &Tensor) -> Result<(), String> {
    let Tensor { name, dtype, shape, data } = tensor;
    // In this order and with this width even before a zero, as the reference implementation.
    let bits = shape
        .iter()
        .try_fold(1u64, |elements, dimension| elements.checked_mul(*dimension))
        .and_then(|elements| elements.checked_mul(dtype.bits()));
    let claim = || format!("tensor {} of shape {shape:?} and dtype {dtype}", quoted(name));
    let Some(bits) = bits else {
        return Err(format!("{} has more than 2^64 bits", claim()));
    };
    if !bits.is_multiple_of(8) {
        return Err(format!("{} has {bits} bits, which are no whole bytes", claim()));
    }
    let (needed, given) = (bits / 8, data.end - data.start);
    if needed != given {
        return Err(format!("{} has {needed} bytes, but its data_offsets span {given}", claim()));
    }
    Ok(())
}
