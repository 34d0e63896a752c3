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

mod comparisons;
mod contents;
mod figures;
mod html;
mod measure;
mod number;
mod page;
mod picture;
mod plot;
mod read;
mod table;

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, ensure};
use clap::Args;

use crate::harness::Bench;
use crate::{access, bounce, iov, load, pagetable, programs};
use contents::Contents;
use figures::Figures;

/// The benches in the order of the page.
const BENCHES: [Bench; 6] =
    [load::BENCH, programs::BENCH, iov::BENCH, pagetable::BENCH, access::BENCH, bounce::BENCH];

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
    /// Draw the picture of README.md from the kept runs instead, as an SVG file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "run", "out"])]
    picture: Option<PathBuf>,
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
    /// If a line of a run is no figure, or the page cannot be written. An older page is still
    /// there then.
    pub(crate) fn write(&self) -> Result<ExitCode> {
        // Before an hour of measuring.
        let contents = Contents::read()?;
        if let Some(file) = &self.picture {
            let picture = picture::draw(&contents, &Figures::new(runs_kept(&contents)?))?;
            let shown = file.display();
            fs::write(file, picture).with_context(|| format!("writing '{shown}'"))?;
            return Ok(ExitCode::SUCCESS);
        }
        let mut page = self.begin()?;
        let runs = if self.run {
            let mut of_load = Vec::new();
            of_load.extend(self.peers.then_some("--peers"));
            of_load.extend(self.guest.then_some("--guest"));
            measure::all(self.quick, self.save.as_deref(), &of_load)?
        } else if self.from.is_empty() {
            runs_kept(&contents)?
        } else {
            let mut runs = Vec::new();
            for name in &self.from {
                runs.extend(read::from(name)?);
            }
            runs
        };
        let troubles: Vec<String> = runs.iter().filter_map(|run| run.trouble.clone()).collect();
        let figures = Figures::new(runs);
        let shown = self.out.display();
        page.write_all(page::document(&contents, &figures)?.as_bytes())
            .and_then(|()| page.as_file().sync_all())
            .and_then(|()| page.persist(&self.out).map_err(|failed| failed.error))
            .with_context(|| format!("writing '{shown}'"))?;
        let counted: usize = BENCHES.iter().map(|bench| figures.rows(bench.name).count()).sum();
        eprintln!("{shown}: {counted} figures of {} runs", figures.runs.len());
        for trouble in &troubles {
            eprintln!("longshore-bench: {trouble}");
        }
        Ok(if troubles.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Opens a file beside the page, which replaces it when it is complete and goes otherwise.
    fn begin(&self) -> Result<tempfile::NamedTempFile> {
        let shown = self.out.display();
        ensure!(!self.out.is_dir(), "'{shown}' is a folder: name a file in it");
        let folder = self.out.parent().with_context(|| format!("'{shown}' names no file"))?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let mut file = tempfile::Builder::new();
        file.permissions(Permissions::from_mode(0o666));
        file.tempfile_in(folder).with_context(|| format!("making a file beside '{shown}'"))
    }
}

fn runs_kept(contents: &Contents) -> Result<Vec<read::Run>> {
    contents.kept.iter().map(|name| read::kept(name)).collect()
}

/// The figures of the kept runs.
#[cfg(test)]
fn kept() -> Figures {
    Figures::new(runs_kept(&Contents::read().unwrap()).unwrap())
}
