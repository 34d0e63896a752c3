//! Model weights for [candle](https://github.com/huggingface/candle), from memory that Longshore loads or
//! shares.
//!
//! ```no_run
//! use candle_core::{DType, Device};
//! use longshore_candle::Weights;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let weights = Weights::load(&["model.safetensors.index.json"])?;
//! let builder = weights.var_builder(DType::F32, &Device::Cpu);
//! let weight = builder.get((384, 384), "encoder.layer.0.attention.self.query.weight")?;
//! # Ok(())
//! # }
//! ```
//!
//! With a server, all processes of a machine read one copy:
//!
//! ```no_run
//! # use candle_core::{DType, Device};
//! # use longshore_candle::Weights;
//! use longshore::CancelToken;
//! use longshore::load::FormatChoice;
//! use longshore::serve::{Client, Wanted};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::connect(None, &CancelToken::new())?;
//! let wanted = Wanted::Path("/models/model.safetensors".into());
//! let attachment = client.attach(&wanted, FormatChoice::Auto, &mut |_| ())?;
//! let builder = Weights::from_attachment(attachment)?.var_builder(DType::F32, &Device::Cpu);
//! # Ok(())
//! # }
//! ```
//!
//! candle's tensors on the CPU own their elements, so each tensor is copied once when the model asks for
//! it. [`Weights`] is dropped with the [`VarBuilder`], and only the model's own copy stays. On a GPU, the
//! copy to the device is the only one.
//!
//! If one process reads one model, and the page cache may grow,
//! [`VarBuilder::from_mmaped_safetensors`] is as good. [`Weights::load`] reads a cold file at the disk's
//! speed and leaves the page cache as it is. [`Weights::from_attachment`] uses the one copy that
//! `longshore serve` holds for all processes of a machine.

mod error;
mod types;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Shape, Tensor};
use candle_nn::VarBuilder;
use candle_nn::var_builder::SimpleBackend;
use longshore::formats::{Dtype, Header, safetensors};
use longshore::load::{self, FormatChoice, Loaded, Loader, Opened};
use longshore::serve::Attachment;
use longshore::{Sealing, SharedBuffer};

pub use error::{Error, Result};

/// The weights of a model, in memory that cannot change.
///
/// It is a backend of a [`VarBuilder`]: [`Self::var_builder`].
#[derive(Debug)]
pub struct Weights {
    memory: Memory,
    tensors: BTreeMap<String, Place>,
}

#[derive(Debug)]
enum Memory {
    Loaded(SharedBuffer),
    Attached(Attachment),
}

/// A tensor's type, shape, and range in the memory.
#[derive(Debug)]
struct Place {
    dtype: Dtype,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Weights {
    /// Loads safetensors or GGUF files; an index stands for its shards, and a first split for all
    /// splits.
    ///
    /// # Errors
    /// [`Error::Load`], [`Error::Duplicate`].
    pub fn load(paths: &[impl AsRef<Path>]) -> Result<Self> {
        let opened = load::open(paths, FormatChoice::Auto)?;
        let loaded = Loader::new().load(&opened.plan)?;
        Self::from_loaded(&opened, loaded)
    }

    /// Takes what a [`Loader`] with options of your own has loaded. The heap must be one whose content
    /// can be sealed, as the default one can.
    ///
    /// # Errors
    /// [`Error::Load`] if the memory cannot be sealed, [`Error::Duplicate`].
    pub fn from_loaded(opened: &Opened, loaded: Loaded) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        for of_file in &opened.tensors {
            let file = &opened.plan.files()[of_file.file_index];
            insert(&mut tensors, file.source().path(), &of_file.header, file.buffer_offset())?;
        }
        let shared = loaded.buffer.share(Sealing::Content).map_err(load::Error::from)?;
        Ok(Self { memory: Memory::Loaded(shared), tensors })
    }

    /// Takes a model that a server holds. The attachment lasts as long as the weights.
    ///
    /// # Errors
    /// [`Error::Load`] if a file is not valid in its format, [`Error::Duplicate`].
    pub fn from_attachment(attachment: Attachment) -> Result<Self> {
        let mut tensors = BTreeMap::new();
        for file in attachment.files() {
            let bytes = attachment.file_bytes(file).unwrap_or_default();
            if let Some(header) = load::parse_header(&file.path, bytes, FormatChoice::Auto)? {
                insert(&mut tensors, &file.path, &header, file.buffer_offset)?;
            }
        }
        Ok(Self { memory: Memory::Attached(attachment), tensors })
    }

    /// Returns the names of all tensors, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Returns the bytes of all files, one behind the other. candle's reader of quantised GGUF files
    /// takes those of one file: `quantized_var_builder::VarBuilder::from_gguf_buffer`.
    pub fn as_slice(&self) -> &[u8] {
        match &self.memory {
            Memory::Loaded(buffer) => buffer.as_slice().unwrap_or_default(),
            Memory::Attached(attachment) => attachment.as_slice(),
        }
    }

    /// Copies a tensor to a device, in the type that it has in its file. `BOOL` becomes `U8`, and `U16`
    /// becomes `U32`.
    ///
    /// # Errors
    /// [`candle_core::Error::CannotFindTensor`]; a message with tensor and type if candle has no such
    /// type; the errors of the device.
    pub fn tensor(&self, name: &str, device: &Device) -> candle_core::Result<Tensor> {
        let Some(place) = self.tensors.get(name) else {
            let path = name.to_owned();
            return Err(candle_core::Error::CannotFindTensor { path }.bt());
        };
        let Some(bytes) = self.as_slice().get(place.range.clone()) else {
            candle_core::bail!("tensor {name} lies outside the memory");
        };
        if place.dtype == Dtype::Safetensors(safetensors::Dtype::U16) {
            // candle has no U16, and its own readers make U32 of it.
            let elements =
                bytes.as_chunks().0.iter().map(|&bytes| u16::from_le_bytes(bytes).into());
            return Tensor::from_vec(elements.collect::<Vec<u32>>(), &*place.shape, device);
        }
        let Some(dtype) = types::of_candle(place.dtype) else {
            candle_core::bail!("tensor {name} has the type {}, which candle lacks", place.dtype);
        };
        Tensor::from_raw_buffer(bytes, dtype, &place.shape, device)
    }

    /// Makes a builder whose tensors are on `device`, and are converted to `dtype` if they have another
    /// type.
    pub fn var_builder(self, dtype: DType, device: &Device) -> VarBuilder<'static> {
        VarBuilder::from_backend(Box::new(self), dtype, device.clone())
    }
}

impl SimpleBackend for Weights {
    fn get(
        &self,
        shape: Shape,
        name: &str,
        _: candle_nn::Init,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        // Looked at first, so that a tensor of another shape is not copied in vain.
        if let Some(place) = self.tensors.get(name)
            && place.shape != shape.dims()
        {
            let (msg, got) = (format!("shape mismatch for {name}"), place.shape.clone().into());
            return Err(candle_core::Error::UnexpectedShape { msg, expected: shape, got }.bt());
        }
        self.get_unchecked(name, dtype, device)
    }

    fn get_unchecked(
        &self,
        name: &str,
        dtype: DType,
        device: &Device,
    ) -> candle_core::Result<Tensor> {
        self.tensor(name, device)?.to_dtype(dtype)
    }

    fn contains_tensor(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }
}

/// Adds the tensors of a file that begins at `offset` in the memory.
fn insert(
    tensors: &mut BTreeMap<String, Place>,
    path: &Path,
    header: &Header,
    offset: u64,
) -> Result<()> {
    for tensor in header.tensors().filter(|tensor| !tensor.is_padding()) {
        // Offsets and dimensions of a file in memory fit an address.
        let place = Place {
            dtype: tensor.dtype,
            shape: tensor.shape.iter().map(|&dimension| dimension as usize).collect(),
            range: (offset + tensor.data.start) as usize..(offset + tensor.data.end) as usize,
        };
        if tensors.insert(tensor.name.to_owned(), place).is_some() {
            let (name, path) = (tensor.name.to_owned(), PathBuf::from(path));
            return Err(Error::Duplicate { name, path });
        }
    }
    Ok(())
}
