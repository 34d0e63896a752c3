//! All benches as one page: each published table beside ours, peers, goals, machines.
//!
//! ```text
//!   kept runs, files ──► read ──┐
//!                               ├──► figures ──► tables, plots ──► page ──► one HTML file
//!   every bench ──────► measure ┘
//! ```
//!
//! The page is complete by itself: its style and its plots are inside, it loads nothing, and no
//! program runs in it. What comes from a run is text on it, never markup.

mod figures;
mod html;
mod measure;
mod model;
mod number;
mod out;
mod page;
mod plot;
mod published;
mod read;
mod tables;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Args;

use crate::access::Access;
use crate::bounce::Bounce;
use crate::harness::Bench;
use crate::iov::Iov;
use crate::load::Load;
use crate::pagetable::Pagetable;
use figures::Figures;
use out::Out;

/// The benches, in the order of the page.
const BENCHES: [&str; 5] = [Load::NAME, Iov::NAME, Pagetable::NAME, Access::NAME, Bounce::NAME];

/// The runs of `bench/results/` that the project shows; of a case in several the last counts.
const KEPT: [&str; 10] = [
    "load-quiet",
    "load-warm",
    "load-align",
    "load-python",
    "load-attach",
    "load-guest",
    "iov-quiet",
    "pagetable-quiet",
    "access-quiet",
    "bounce-quiet",
];

/// Makes one HTML page of every bench: published tables beside ours, peers, goals, machines.
///
/// By default of the runs that are kept in bench/results/; the page needs nothing else.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  longshore-bench report                              the kept runs, as report.html
  longshore-bench report --out docs/figures.html      elsewhere
  longshore-bench report --from quiet                 every run kept as BENCH-quiet
  longshore-bench report --from load-warm --from ./iov.jsonl
                                                      these; what others lack says 'not run'
  longshore-bench report --run                        measures first: about half an hour
  longshore-bench report --run --peers --guest        with all there is: two hours and more
  longshore-bench report --run --quick                every path once; the figures mean nothing")]
pub(crate) struct Report {
    /// Where the page goes; a file that is there is replaced when the page is complete
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Lines that a bench printed with --json: a run kept in bench/results/ (as load-quiet, or
    /// quiet for all of that name) or a file; of a case in several the last counts
    #[arg(long, value_name = "NAME", conflicts_with = "run")]
    from: Vec<String>,
    /// Measure first, every bench with its defaults
    #[arg(long)]
    run: bool,
    /// With --run: every path once on small inputs; the figures mean nothing
    #[arg(long, requires = "run")]
    quick: bool,
    /// With --run: 'load' also installs and runs the peers that bring torch; cold figures count
    /// only with them
    #[arg(long, requires = "run", conflicts_with = "quick")]
    peers: bool,
    /// With --run: 'load' also runs the published schemes in a guest
    #[arg(long, requires = "run", conflicts_with = "quick")]
    guest: bool,
    /// With --run: keep the lines under bench/results/ as BENCH-NAME.jsonl
    #[arg(long, value_name = "NAME", requires = "run")]
    save: Option<String>,
}

impl Report {
    /// Reads or measures, and writes the page.
    ///
    /// # Errors
    /// Where a line of a run is no figure, or the page cannot be written. A page that was there
    /// is still there then.
    pub(crate) fn write(&self) -> Result<ExitCode> {
        // Before an hour of measuring.
        let out = Out::begin(&self.out)?;
        let runs = if self.run {
            let mut of_load = Vec::new();
            of_load.extend(self.peers.then_some("--peers"));
            of_load.extend(self.guest.then_some("--guest"));
            measure::all(self.quick, self.save.as_deref(), &of_load)?
        } else if self.from.is_empty() {
            KEPT.iter().map(|name| read::kept(name)).collect::<Result<_>>()?
        } else {
            let mut runs = Vec::new();
            for name in &self.from {
                runs.extend(read::from(name)?);
            }
            runs
        };
        let troubles: Vec<String> = runs.iter().filter_map(|run| run.trouble.clone()).collect();
        let figures = Figures::new(runs);
        out.end(&page::document(&figures)?)?;
        let counted: usize = BENCHES.iter().map(|bench| figures.rows(bench).count()).sum();
        eprintln!("{}: {counted} figures of {} runs", self.out.display(), figures.runs.len());
        for trouble in &troubles {
            eprintln!("longshore-bench: {trouble}");
        }
        Ok(if troubles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
