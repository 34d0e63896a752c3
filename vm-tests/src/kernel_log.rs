//! Finds failures of the kernel in its log.

/// Messages of a broken kernel. Watchdog reports are not among them, because the watchdogs are off:
/// under emulation on a busy host they would report delays of the host.
const FAULTS: [&str; 6] = [
    "Kernel panic",
    "Oops:",
    "BUG:",
    "kernel BUG at",
    "general protection fault",
    "Unable to handle kernel",
];

const TAIL_LINES: usize = 40;

/// Returns the first line that reports a failure of the kernel.
pub(crate) fn fault(log: &str) -> Option<&str> {
    log.lines().map(without_time).find(|line| FAULTS.iter().any(|fault| says(line, fault)))
}

/// Returns `true` if `line` has `words`, but not as the end of a longer word ("DEBUG:" is not "BUG:").
fn says(line: &str, words: &str) -> bool {
    line.match_indices(words)
        .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_ascii_alphanumeric()))
}

/// Returns the kernel's warnings that are not failures (`WARN_ON` and the like).
pub(crate) fn warnings(log: &str) -> Vec<String> {
    log.lines()
        .map(without_time)
        .filter(|line| line.starts_with("WARNING: "))
        .map(str::to_owned)
        .collect()
}

/// Returns the end of the log; if the kernel failed, from shortly before that on.
pub(crate) fn tail(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let last = lines.len().saturating_sub(TAIL_LINES);
    let failed = lines.iter().position(|line| fault(line).is_some());
    let start = failed.map_or(last, |at| at.saturating_sub(5).min(last));
    lines[start..].iter().take(4 * TAIL_LINES).copied().collect::<Vec<_>>().join("\n")
}

/// Returns the line without the time that printk puts in front.
fn without_time(line: &str) -> &str {
    let line = line.trim_end();
    match line.strip_prefix('[').and_then(|rest| rest.split_once("] ")) {
        Some((time, rest)) if time.trim().parse::<f64>().is_ok() => rest,
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PANIC: &str = "[    1.0] Run /init as init process\r\n\
        [    1.5] Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100\r\n\
        [    1.6] CPU: 0 PID: 1 Comm: init Not tainted\r\n";

    #[test]
    fn a_panic_is_found() {
        assert_eq!(
            fault(PANIC),
            Some("Kernel panic - not syncing: Attempted to kill init! exitcode=0x00000100")
        );
    }

    #[test]
    fn an_oops_and_a_bug_are_found() {
        for line in [
            "[   12.345678] BUG: kernel NULL pointer dereference, address: 0000000000000010",
            "[   12.345678] Oops: 0000 [#1] PREEMPT SMP NOPTI",
            "[    0.1] Oops: general protection fault, probably for non-canonical address",
            "[    0.1] kernel BUG at mm/slub.c:448!",
        ] {
            assert!(fault(line).is_some(), "{line}");
        }
    }

    #[test]
    fn an_ordinary_boot_is_not_a_fault() {
        let log = "[    0.0] Linux version 6.12\n[    0.1] Kernel command line: oops=panic panic=-1\n\
                   [    0.2] DEBUG: x\n[    2.3] reboot: Power down\n";
        assert_eq!(fault(log), None);
    }

    #[test]
    fn warnings_are_not_faults() {
        let log = "[ 1.0] WARNING: CPU: 0 PID: 1 at mm/memory.c:1\n[ 1.1] a WARNING: inside\n";
        assert_eq!(warnings(log), ["WARNING: CPU: 0 PID: 1 at mm/memory.c:1"]);
        assert_eq!(fault(log), None);
    }

    #[test]
    fn the_tail_shows_a_fault_that_is_far_from_the_end() {
        let before = "[ 1.0] before\n".repeat(100);
        let after = "[ 2.0] after\n".repeat(100);
        let shown = tail(&format!("{before}{PANIC}{after}"));
        assert!(shown.contains("Kernel panic"));
        assert!(shown.lines().count() <= 4 * TAIL_LINES);
        assert_eq!(tail(&before).lines().count(), TAIL_LINES);
        assert_eq!(tail(""), "");
    }
}
