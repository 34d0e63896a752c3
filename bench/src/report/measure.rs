//! Measuring before reporting: every bench, each in its own process.

use std::io::{BufReader, IsTerminal};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::BENCHES;
use super::read::{self, Run};
use crate::harness::Bench;
use crate::{load, remote};

/// Runs every bench; `load` and `remote` get more options. A bench that fails does not stop the others: the error is
/// kept in its run.
pub(super) fn all(
    quick: bool,
    save: Option<&str>,
    (of_load, of_remote): (&[&str], &[&str]),
) -> Result<Vec<Run>> {
    let program = std::env::current_exe().context("finding this program")?;
    let (bold, plain) =
        if std::io::stderr().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let run = |(nth, Bench { name: bench, .. }): (usize, &Bench)| {
        eprintln!("{bold}{} of {}: {bench}{plain}", nth + 1, BENCHES.len());
        let mut command = Command::new(&program);
        command.args([bench, "--json"]).args(quick.then_some("--quick"));
        command.args(match *bench {
            name if name == load::BENCH.name => of_load,
            name if name == remote::BENCH.name => of_remote,
            _ => &[],
        });
        command.args(save.map(|name| ["--save", name]).into_iter().flatten());
        one(command, bench)
    };
    BENCHES.iter().enumerate().map(run).collect()
}

/// Runs one bench. Its progress goes to this program's standard error.
fn one(mut command: Command, bench: &str) -> Result<Run> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting the bench '{bench}'"))?;
    let stdout = child.stdout.take().context("standard output is piped")?;
    let read = read::lines(BufReader::new(stdout), bench, &format!("the output of '{bench}'"));
    let end = child.wait().with_context(|| format!("waiting for the bench '{bench}'"))?;
    let failed = (!end.success()).then(|| format!("the bench '{bench}' failed ({end})"));
    Ok(match read {
        Ok(run) => Run { trouble: failed, ..run },
        Err(error) => {
            let failed = failed.map_or_else(String::new, |failed| format!("{failed}; "));
            let trouble = Some(format!("{failed}{error:#}"));
            Run { name: bench.to_owned(), trouble, ..Run::default() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_bench_keeps_the_figures_that_it_printed() {
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            one(command, "iov").unwrap()
        };
        let lines = r#"echo '{"bench":"iov","environment":{}}'
            echo '{"bench":"iov","case":"c","candidate":"a","metric":"","unit":"","runs":0,"not_run":"why"}'"#;
        let complete = run(lines);
        assert_eq!((complete.rows.len(), complete.trouble), (1, None));
        let failed = run(&format!("{lines}; exit 1"));
        assert_eq!(failed.rows.len(), 1);
        assert!(failed.trouble.unwrap().contains("exit status: 1"));
        let trouble = run("exit 7").trouble.unwrap();
        assert!(trouble.contains("exit status: 7") && trouble.contains("no figure"), "{trouble}");
    }
}
