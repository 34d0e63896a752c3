//! Tensors at multiples of an alignment, placed there while they are read.

use longshore_mem::Granule;

use super::{FileTensors, Opened};
use crate::error::{Error, Result};
use crate::plan::{Image, Plan};

impl Opened {
    /// Plans anew, so that each tensor begins at a multiple of `alignment` in the buffer.
    ///
    /// A file some of whose tensors do not lie so becomes an image in the buffer: a whole file of
    /// its format with the same tensors and metadata, in an order that may be another. What
    /// [`Opened::tensors`] says is of the image then. Files of which no tensors are known begin at
    /// a multiple of the alignment.
    ///
    /// # Errors
    /// [`Error::Format`] where the format has no room for such a file,
    /// [`Error::NotEnoughMemory`] where the sum of the lengths passes 2^63.
    pub fn align(self, alignment: Granule) -> Result<Self> {
        let mut plan = Plan::new();
        let mut headers = self.tensors.into_iter().peekable();
        let mut tensors = Vec::new();
        for (file_index, source) in self.plan.into_sources().enumerate() {
            let of_file = headers.next_if(|of_file| of_file.file_index == file_index);
            let mut image = Image::of_whole(source.len_bytes(), alignment);
            if let Some(FileTensors { mut header, .. }) = of_file {
                if !header.is_aligned(alignment) {
                    let laid_out = header.aligned(alignment);
                    (image, header) = laid_out.map_err(|reason| Error::Format {
                        path: source.path().to_owned(),
                        format: header.format(),
                        reason: format!(
                            "it has none with tensors at multiples of {alignment}: {reason}"
                        ),
                    })?;
                }
                tensors.push(FileTensors { file_index, header });
            }
            plan.push_image(source, image)?;
        }
        Ok(Self { plan, tensors })
    }
}
