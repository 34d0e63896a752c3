//! `longshore make-model`.

use anyhow::Context;
use longshore::load::format::safetensors::{Synthetic, SyntheticError};

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
    let model = Synthetic::new(args.size.0)?;
    let mut display = Display::new(false);
    let written = model.write(&args.file, &cancel, |progress| display.show(progress));
    drop(display);
    match written {
        Ok(()) => print(&format!(
            "{}: {}, {} tensors\n",
            args.file.display(),
            Decimal(model.len_bytes() as f64),
            model.header().tensors.len()
        )),
        Err(error @ SyntheticError::Cancelled { .. }) => {
            let code = signals::received().map_or(130, |signal| 128 + signal);
            Err(failure(code, error.to_string()))
        }
        Err(error) => Err(error).context("making a model"),
    }
}
