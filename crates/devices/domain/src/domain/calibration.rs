//! The measured costs of mapping and of copying.

use std::fmt;
use std::time::Duration;

use crate::policy::Bounce;

/// The measured costs of a domain's transfers, and the policy that follows from them.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Calibration {
    /// The costs for each length, the shortest first.
    pub steps: Vec<CalibrationStep>,
    /// The fastest policy by these costs, for [`Domain::set_bounce`](crate::Domain::set_bounce).
    pub bounce: Bounce,
}

/// The time that one thread needs to map and unmap a transfer of one length to the device.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct CalibrationStep {
    /// The length in bytes.
    pub len_bytes: u64,
    /// The time for a transfer through a bounce buffer.
    pub bounced: Duration,
    /// The time for a transfer that is mapped itself.
    pub mapped: Duration,
}

impl Calibration {
    /// Chooses the longest length up to which bouncing was faster by a quarter at all lengths. With a
    /// smaller difference a copy gains little, and the choice would depend on noise.
    pub(crate) fn new(steps: Vec<CalibrationStep>) -> Self {
        let is_faster = |step: &&CalibrationStep| step.bounced * 5 <= step.mapped * 4;
        let bounce = match steps.iter().take_while(is_faster).last() {
            Some(step) => Bounce::Below(step.len_bytes + 1),
            None => Bounce::Never,
        };
        Self { steps, bounce }
    }
}

impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:>10}  {:>12}  {:>12}", "bytes", "bounced, ns", "mapped, ns")?;
        for CalibrationStep { len_bytes, bounced, mapped } in &self.steps {
            writeln!(f, "{len_bytes:>10}  {:>12}  {:>12}", bounced.as_nanos(), mapped.as_nanos())?;
        }
        match self.bounce {
            Bounce::Below(bytes) => write!(f, "best bounced: up to {} bytes", bytes - 1),
            Bounce::Never => f.write_str("best bounced: none that can be mapped"),
            Bounce::Always => f.write_str("best bounced: all that fit"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(len_bytes: u64, bounced_ns: u64, mapped_ns: u64) -> CalibrationStep {
        let (bounced, mapped) = (Duration::from_nanos(bounced_ns), Duration::from_nanos(mapped_ns));
        CalibrationStep { len_bytes, bounced, mapped }
    }

    #[test]
    fn transfers_are_bounced_up_to_the_first_length_that_is_not_faster() {
        let best = |steps: &[CalibrationStep]| Calibration::new(steps.to_vec()).bounce;
        assert_eq!(best(&[step(4096, 50, 40), step(8192, 50, 60)]), Bounce::Never);
        assert_eq!(best(&[step(4096, 50, 60)]), Bounce::Never);
        let steps = [step(4096, 50, 900), step(8192, 90, 900), step(16_384, 990, 900)];
        assert_eq!(best(&steps), Bounce::Below(8193));
        assert_eq!(best(&steps[..2]), Bounce::Below(8193));
        let text = Calibration::new(steps.to_vec()).to_string();
        assert!(text.contains("16384") && text.ends_with("up to 8192 bytes"), "{text}");
    }
}
