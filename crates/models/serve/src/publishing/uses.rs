//! The times when published models were used last.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use longshore_load::{ModelUse, PublishedModel};

/// The use of each model, by name.
#[derive(Debug, Default)]
pub(super) struct Uses(BTreeMap<String, Use>);

/// The use of a model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    /// The time of the last access that the file system reported.
    access: SystemTime,
    /// The time when the model was published.
    published: SystemTime,
    /// The time of the last use, on a clock that is never set.
    used: Instant,
    /// `true` if a program has used the model.
    pub(super) was_used: bool,
    /// `true` if a program has a file open, or if that is not known.
    pub(super) is_open: bool,
    /// `true` if it was reported that the use is not known.
    is_reported: bool,
}

impl Use {
    /// Returns the time since the last use.
    pub(super) fn idle(&self, now: Instant) -> Duration {
        if self.is_open { Duration::ZERO } else { now.saturating_duration_since(self.used) }
    }
}

impl Uses {
    /// Updates the use of a model. Calls `unknown` once for each model whose use the kernel does not
    /// report.
    pub(super) fn update(
        &mut self,
        model: &PublishedModel,
        now: Instant,
        unknown: impl FnOnce(std::io::Error),
    ) -> Use {
        let ModelUse { is_open, last_access, .. } = model.usage();
        let known = self.0.get(&model.name).filter(|it| it.published == model.published);
        let mut found = known.copied().unwrap_or_else(|| {
            // On a clock that is never set, times before the machine's start do not exist.
            let since = SystemTime::now().duration_since(last_access).unwrap_or_default();
            Use {
                access: last_access,
                published: model.published,
                used: now.checked_sub(since).unwrap_or(now),
                was_used: last_access > model.published,
                is_open: false,
                is_reported: false,
            }
        });
        if found.access != last_access {
            (found.access, found.used, found.was_used) = (last_access, now, true);
        }
        found.is_open = match is_open {
            Ok(is_open) => {
                found.was_used |= is_open;
                is_open
            }
            Err(error) => {
                if !found.is_reported {
                    found.is_reported = true;
                    unknown(error);
                }
                true
            }
        };
        if found.is_open {
            found.used = now;
        }
        self.0.insert(model.name.clone(), found);
        found
    }

    /// Forgets all models but these.
    pub(super) fn retain(&mut self, models: &[PublishedModel]) {
        self.0.retain(|name, _| models.iter().any(|model| model.name == *name));
    }
}
