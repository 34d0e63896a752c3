//! `longshore completions` and `longshore man`.

use anyhow::Context;
use clap::CommandFactory;

use crate::args::{Cli, CompletionsArgs, ManArgs};
use crate::output::print;

pub(crate) fn completions(args: &CompletionsArgs) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "longshore", &mut script);
    print(&String::from_utf8_lossy(&script))
}

pub(crate) fn man(args: &ManArgs) -> anyhow::Result<()> {
    if let Some(directory) = &args.directory {
        std::fs::create_dir_all(directory)
            .with_context(|| format!("creating the directory {}", directory.display()))?;
        return clap_mangen::generate_to(Cli::command(), directory)
            .with_context(|| format!("writing manual pages to {}", directory.display()));
    }
    let mut page = Vec::new();
    clap_mangen::Man::new(Cli::command()).render(&mut page).context("rendering the manual")?;
    print(&String::from_utf8_lossy(&page))
}
