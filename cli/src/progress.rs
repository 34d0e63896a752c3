//! Shows the progress of a load: a bar on a terminal, plain lines elsewhere.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use longshore::Progress;

use crate::units::Decimal;

/// Loads shorter than this show nothing.
const PATIENCE: Duration = Duration::from_millis(300);
/// The time between two plain lines.
const LINE_EVERY: Duration = Duration::from_secs(5);

/// Shows progress on standard error.
pub(crate) enum Display {
    /// Nothing.
    Silent,
    /// A progress bar.
    Bar(ProgressBar),
    /// Plain lines, with the time of the next one.
    Lines(Duration),
}

impl Display {
    /// Chooses the display for standard error, or none if `quiet`.
    pub(crate) fn new(quiet: bool) -> Self {
        if quiet {
            Self::Silent
        } else if std::io::stderr().is_terminal() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            let template = "{bar:32} {percent:>3}%  {decimal_bytes} of {decimal_total_bytes}  \
                            {decimal_bytes_per_sec}  {eta} left";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            Self::Bar(bar)
        } else {
            Self::Lines(LINE_EVERY)
        }
    }

    /// Shows the progress.
    pub(crate) fn show(&mut self, progress: Progress) {
        let Progress { done_bytes, total_bytes, elapsed, .. } = progress;
        match self {
            Self::Silent => {}
            Self::Bar(bar) if elapsed >= PATIENCE => {
                bar.set_length(total_bytes);
                bar.set_position(done_bytes);
            }
            Self::Lines(due) if elapsed >= *due && done_bytes < total_bytes => {
                *due += LINE_EVERY;
                let speed = done_bytes as f64 / elapsed.as_secs_f64();
                let left = (total_bytes - done_bytes) as f64 / speed;
                let left =
                    if left.is_finite() { format!("  {left:.0} s left") } else { String::new() };
                eprintln!(
                    "{:3.0}%  {} of {}  {}/s{left}",
                    done_bytes as f64 * 100.0 / total_bytes as f64,
                    Decimal(done_bytes as f64),
                    Decimal(total_bytes as f64),
                    Decimal(speed),
                );
            }
            Self::Bar(_) | Self::Lines(_) => {}
        }
    }
}

/// Clears the bar, whether the load succeeded or not.
impl Drop for Display {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}
