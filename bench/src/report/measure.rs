//! Measuring before reporting: every bench, each in a process of its own.

use std::io::{BufReader, IsTerminal};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};

use super::BENCHES;
use super::read::{self, Run};
use crate::harness::Bench;
use crate::load::Load;

/// Runs every bench, `load` with more options. What one meets does not keep the others from running: it is the trouble of
/// its run.
///
/// # Errors
/// Where this program cannot be started anew.
pub(super) fn all(quick: bool, save: Option<&str>, of_load: &[&str]) -> Result<Vec<Run>> {
    let program = std::env::current_exe().context("finding this program")?;
    let mut runs = Vec::new();
    for (nth, (bench, _)) in BENCHES.iter().enumerate() {
        let bold = if std::io::stderr().is_terminal() { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        eprintln!("{}{} of {}: {bench}{}", bold.0, nth + 1, BENCHES.len(), bold.1);
        let mut command = Command::new(&program);
        command.args([bench, "--json"]);
        if quick {
            command.arg("--quick");
        }
        if *bench == Load::NAME {
            command.args(of_load);
        }
        if let Some(name) = save {
            command.args(["--save", name]);
        }
        runs.push(one(command, bench)?);
    }
    Ok(runs)
}

/// One bench. Its progress goes where this program's goes.
fn one(mut command: Command, bench: &str) -> Result<Run> {
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    let mut child = command.spawn().with_context(|| format!("starting the bench '{bench}'"))?;
    let stdout = child.stdout.take().context("standard output is piped")?;
    let read = read::lines(BufReader::new(stdout), bench, &format!("what '{bench}' printed"));
    let end = child.wait().with_context(|| format!("waiting for the bench '{bench}'"))?;
    let failed = (!end.success()).then(|| format!("the bench '{bench}' failed ({end})"));
    Ok(match read {
        Ok(run) => Run { trouble: failed, ..run },
        Err(error) => {
            let why = failed.map_or_else(String::new, |failed| format!("{failed}; "));
            let trouble = Some(format!("{why}{error:#}"));
            Run { name: bench.to_owned(), trouble, ..Run::default() }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        one(command, "iov").unwrap()
    }

    #[test]
    fn a_bench_that_fails_is_told_with_what_it_gave() {
        let lines = r#"echo '{"bench":"iov","environment":{}}'
            echo '{"bench":"iov","case":"c","candidate":"a","metric":"","unit":"","median":null,"min":null,"max":null,"mean":null,"runs":0,"baseline":null,"ratio":null,"ratio_min":null,"ratio_max":null,"not_run":"why"}'"#;
        let complete = shell(lines);
        assert_eq!((complete.rows.len(), complete.trouble), (1, None));
        let failed = shell(&format!("{lines}; exit 1"));
        assert_eq!(failed.rows.len(), 1);
        assert!(failed.trouble.unwrap().contains("exit status: 1"));
        let silent = shell("exit 7");
        assert!(silent.rows.is_empty());
        let trouble = silent.trouble.unwrap();
        assert!(trouble.contains("exit status: 7") && trouble.contains("no figure"), "{trouble}");
    }
}
