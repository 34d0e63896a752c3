//! All benches on one page: each published table beside our figures, peers, goals and machines.
//!
//! ```text
//!   kept runs, files ──► read ──┐
//!                               ├──► figures ──► tables, plots ──► page ──► one HTML file
//!   every bench ──────► measure ┘
//! ```
//!
//! The page is a single file with its style and its plots; it loads nothing and runs no scripts. All
//! text from a run is escaped.

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
use crate::{access, bounce, iov, load, node, pagetable, programs, remote};
use contents::Contents;
use figures::Figures;

/// The benches in the order of the page.
const BENCHES: [Bench; 8] = [
    load::BENCH,
    programs::BENCH,
    node::BENCH,
    remote::BENCH,
    iov::BENCH,
    pagetable::BENCH,
    access::BENCH,
    bounce::BENCH,
];

/// Makes one HTML page of every bench: published tables beside ours, peers, goals, machines.
///
/// By default it shows the runs that are kept in bench/results/; the page needs no other file.
#[derive(Args, Clone, Debug)]
#[command(after_help = "Examples:
  longshore-bench report                              the kept runs, as report.html
  longshore-bench report --out docs/figures.html      elsewhere
  longshore-bench report --from quiet                 every run kept as BENCH-quiet
  longshore-bench report --from load-warm --from ./iov.jsonl
                                                      only these; missing figures are 'not run'
  longshore-bench report --run                        measures first: about half an hour
  longshore-bench report --run --peers --guest        with peers and a guest: two hours or more
  longshore-bench report --run --quick                every path once; the figures mean nothing")]
pub(crate) struct Report {
    /// The file to write; an existing file is replaced when the page is complete
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    out: PathBuf,
    /// Draw the picture for README.md from the kept runs, as an SVG file, instead of the page
    #[arg(long, value_name = "FILE", conflicts_with_all = ["from", "run", "out"])]
    picture: Option<PathBuf>,
    /// Read lines that a bench printed with --json: a run kept in bench/results/ (load-quiet, or quiet
    /// for every bench's run of that name) or a file. If several runs have a case, the last one is used
    #[arg(long, value_name = "NAME", conflicts_with = "run")]
    from: Vec<String>,
    /// Measure first: every bench with its defaults
    #[arg(long)]
    run: bool,
    /// With --run: every path once on small inputs; the figures mean nothing
    #[arg(long, requires = "run")]
    quick: bool,
    /// With --run: 'load' also installs and runs the peers that need torch, without which its cold
    /// figures are marked as not measured; 'remote' also installs and runs the clients of S3 and the Hub
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
    /// Returns an error if a line of a run is invalid, or the page cannot be written. An older page is
    /// then unchanged.
    pub(crate) fn write(&self) -> Result<ExitCode> {
        // Before an hour of measuring, find errors in the description of the page.
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
            let of_remote = of_load.clone();
            of_load.extend(self.guest.then_some("--guest"));
            measure::all(self.quick, self.save.as_deref(), (&of_load, &of_remote))?
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

    /// Opens a temporary file beside the page. It replaces the page when it is complete, and is removed
    /// otherwise.
    fn begin(&self) -> Result<tempfile::NamedTempFile> {
        let shown = self.out.display();
        ensure!(!self.out.is_dir(), "'{shown}' is a folder: name a file in it");
        let folder = self.out.parent().with_context(|| format!("'{shown}' names no file"))?;
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let mut file = tempfile::Builder::new();
        file.permissions(Permissions::from_mode(0o666));
        file.tempfile_in(folder).with_context(|| format!("creating a file beside '{shown}'"))
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
