//! `longshore make-model`.

use anyhow::Context;
use longshore::CancelToken;
use longshore::load::format::synthetic::{Synthetic, SyntheticError};
use longshore::load::format::{gguf, safetensors};

use crate::args::MakeModelArgs;
use crate::exit::failure;
use crate::output::print;
use crate::progress::Display;
use crate::signals;
use crate::units::Decimal;

pub(crate) fn run(args: &MakeModelArgs) -> anyhow::Result<()> {
    let cancel = signals::cancel_token()?;
    if !args.force && args.file.exists() {
        let name = args.file.display();
        return Err(failure(1, format!("{name} exists; --force overwrites it")));
    }
    let size = args.size.0;
    if args.file.extension().is_some_and(|end| end == "gguf") {
        let model = gguf::Synthetic::new(size)?;
        write(args, &cancel, &model, model.header().tensors.len())
    } else {
        let model = safetensors::Synthetic::new(size)?;
        write(args, &cancel, &model, model.header().tensors.len())
    }
}

fn write<H>(
    args: &MakeModelArgs,
    cancel: &CancelToken,
    model: &Synthetic<H>,
    tensors: usize,
) -> anyhow::Result<()> {
    let mut display = Display::new(false);
    let written = model.write(&args.file, cancel, |progress| display.show(progress));
    drop(display);
    match written {
        Ok(()) => print(&format!(
            "{}: {}, {tensors} tensors\n",
            args.file.display(),
            Decimal(model.len_bytes() as f64)
        )),
        Err(error @ SyntheticError::Cancelled { .. }) => {
            let code = signals::received().map_or(130, |signal| 128 + signal);
            Err(failure(code, error.to_string()))
        }
        Err(error) => Err(error).context("making a model"),
    }
}
