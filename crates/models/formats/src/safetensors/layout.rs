//! The check that the tensors of a header fill the data of the file exactly.

use super::header::Tensor;
use crate::dtype::Dtype;
use crate::quoted::QuotedName;
use crate::reason::{Item, Reason, ShapeProblem};

/// Sorts tensors by the offset of their data. Checks that the names are unique, that the size of each
/// tensor is that of its shape, and that there is no overlap and no gap. Returns the length of the data
/// in bytes.
///
/// # Errors
/// The first problem found.
pub(super) fn check(tensors: &mut [Tensor]) -> Result<u64, Reason> {
    tensors.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(Reason::Duplicate { item: Item::Tensor(QuotedName::new(&pair[0].name)) });
    }
    // Tensors without data can have the same offset: sort those by name.
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

fn follows(tensor: &Tensor, previous: Option<&Tensor>) -> Result<(), Reason> {
    let (start, end) = (tensor.data.start, tensor.data.end);
    let expected = previous.map_or(0, |previous| previous.data.end);
    let name = || QuotedName::new(&tensor.name);
    if end < start {
        return Err(Reason::EndBeforeStart { tensor: name(), start, end });
    }
    if let Some(previous) = previous.filter(|_| start < expected) {
        return Err(Reason::Overlap {
            first: QuotedName::new(&previous.name),
            first_data: previous.data.clone(),
            second: name(),
            second_data: start..end,
        });
    }
    if start != expected {
        return Err(Reason::Gap { bytes: expected..start, before: name() });
    }
    Ok(())
}

fn has_its_size(tensor: &Tensor) -> Result<(), Reason> {
    let Tensor { name, dtype, shape, data } = tensor;
    // An overflow is an error even if a later dimension is zero, as in the reference implementation.
    let bits = shape
        .iter()
        .try_fold(1u64, |elements, dimension| elements.checked_mul(*dimension))
        .and_then(|elements| elements.checked_mul(dtype.bits()));
    let given_bytes = data.end - data.start;
    let problem = match bits {
        None => ShapeProblem::Overflow { offset: data.start },
        Some(bits) if !bits.is_multiple_of(8) => ShapeProblem::PartialByte { bits },
        Some(bits) if bits / 8 != given_bytes => {
            ShapeProblem::OtherLength { needed_bytes: bits / 8, given_bytes }
        }
        Some(_) => return Ok(()),
    };
    Err(Reason::Shape {
        tensor: QuotedName::new(name),
        shape: shape.as_slice().into(),
        dtype: Dtype::Safetensors(*dtype),
        problem,
    })
}
