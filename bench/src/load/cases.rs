//! The cases of the bench, in the order in which they run.

mod align;
mod attach;
mod cold;
mod first_use;
mod overlap;
mod page_size;
mod process;
mod python;
mod schemes;
mod tuning;
mod warm;

use anyhow::Result;

use crate::harness::Session;
use crate::load::data::DataFile;
use crate::load::{Context, guest};

pub(super) use schemes::{CASE as SCHEMES, OURS as SCHEMES_OURS, print_from as print_schemes};

/// The cases that other programs take part in.
pub(super) const WITH_PEERS: [&str; 5] =
    [cold::CASE, python::CASE, python::IMPORT_CASE, warm::CASE, first_use::CASE];

/// A small file of the same kind, which every job does once before the clock runs.
const REHEARSAL_BYTES: u64 = 1 << 20;

/// The files that most cases load.
struct Model {
    file: DataFile,
    rehearsal: DataFile,
}

/// Runs every case that is wanted.
pub(super) fn run(context: &Context, session: &mut Session) -> Result<()> {
    let options = &context.options.common;
    let with_model =
        [cold::CASE, warm::CASE, overlap::CASE, page_size::CASE, align::CASE, python::CASE];
    if with_model.iter().any(|case| options.wants(case)) || options.wants_by_name(tuning::CASE) {
        let model = Model {
            file: context.folder.safetensors_file(context.options.size_bytes())?,
            rehearsal: context.folder.safetensors_file(REHEARSAL_BYTES)?,
        };
        if options.wants(cold::CASE) {
            cold::run(context, &model, session)?;
        }
        if options.wants(python::CASE) {
            python::run(context, &model, session)?;
        }
        if options.wants(overlap::CASE) {
            overlap::run(context, &model, session)?;
        }
        if options.wants(page_size::CASE) {
            page_size::run(context, &model, session)?;
        }
        if options.wants(align::CASE) {
            align::run(context, &model, session)?;
        }
        if options.wants_by_name(tuning::CASE) {
            tuning::run(context, &model, session)?;
        }
        if options.wants(warm::CASE) {
            warm::run(context, &model, session)?;
        }
        // The schemes' files need the room.
        context.folder.discard(&model.file.path);
    }
    if options.wants(first_use::CASE) {
        first_use::run(context, session)?;
    }
    if options.wants(python::IMPORT_CASE) {
        python::run_imports(context, session)?;
    }
    if options.wants(attach::CASE) {
        attach::run(context, session)?;
    }
    schemes::run(context, session)?;
    if context.options.guest {
        guest::run(context, session)?;
    }
    Ok(())
}
