//! `longshore make-model`.

use anyhow::Context;
use longshore::CancelToken;
use longshore::mem::ByteSize;

use crate::args::MakeModelArgs;
use crate::exit::failure;
use crate::output::print;
use crate::progress::Display;
use crate::signals;
use crate::units::Decimal;
use content::Synthetic;

mod content;
mod gguf;
mod safetensors;
#[cfg(test)]
mod tests;

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
    let (done_bytes, total_bytes) = (written.context("making a model")?, model.len_bytes());
    if done_bytes < total_bytes {
        let code = signals::received().map_or(130, |signal| 128 + signal);
        let (done, total) = (ByteSize(done_bytes), ByteSize(total_bytes));
        let reason = format!("cancelled after {done} of {total}");
        return Err(failure(code, reason));
    }
    print(&format!("{}: {}, {tensors} tensors\n", args.file.display(), Decimal(total_bytes as f64)))
}
