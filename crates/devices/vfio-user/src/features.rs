//! Optional features of a device: migration, and a log of the pages that it writes.

use longshore_mem::{AddrRange, Iova};

use crate::Errno;
use crate::device::Device;
use crate::dma::{DirtyLog, DmaTarget};
use crate::migration::MigrationState;
use crate::wire::{Builder, Feature, Fields, feature};

/// The state can be read while the device is stopped.
const MIGRATION_STOP_COPY: u64 = 1;
/// The state can be read while the device runs, too.
const MIGRATION_PRE_COPY: u64 = 1 << 2;

/// A limit that no client reaches: it never has so many maps.
const RANGES_MAX: u32 = 65_535;

/// The state that features change.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) migration: MigrationState,
    pub(crate) is_logging: bool,
}

pub(crate) struct Features<'a, D, M> {
    pub(crate) device: &'a mut D,
    pub(crate) dma: &'a mut M,
    pub(crate) state: &'a mut State,
}

impl<D: Device, M: DmaTarget> Features<'_, D, M> {
    /// Returns the payload of the reply.
    pub(crate) fn answer(
        mut self,
        asked: &Feature<'_>,
        bitmap_bytes_max: u32,
    ) -> Result<Vec<u8>, Errno> {
        let actions = asked.flags & Feature::ACTIONS;
        if asked.flags & !(Feature::ACTIONS | 0xffff) != 0 {
            return Err(Errno::EINVAL);
        }
        let there_is = self.actions_of(asked.number()).ok_or(Errno::ENOTTY)?;
        if actions & Feature::PROBE != 0 {
            let all = actions & !Feature::PROBE & !there_is == 0;
            return if all { Ok(asked.encode()) } else { Err(Errno::ENOTTY) };
        }
        if actions & !there_is != 0 || !(actions == Feature::GET || actions == Feature::SET) {
            return Err(Errno::EINVAL);
        }
        match asked.number() {
            feature::MIGRATION => {
                let pre_copy = if self.has_pre_copy() { MIGRATION_PRE_COPY } else { 0 };
                Fields::of(asked.data).end()?;
                let flags = MIGRATION_STOP_COPY | pre_copy;
                Ok(got(asked, &flags.to_ne_bytes()))
            }
            feature::MIGRATION_STATE if actions == Feature::GET => {
                let state = self.state.migration as u32;
                Ok(got(asked, &Builder::default().u32(state).u32(0).end()))
            }
            feature::MIGRATION_STATE => {
                let mut fields = Fields::of(asked.data);
                let (state, _) = (fields.u32()?, fields.u32()?);
                fields.end()?;
                self.go_to(MigrationState::from_number(state).ok_or(Errno::EINVAL)?)?;
                Ok(asked.encode())
            }
            feature::DMA_LOGGING_START => self.start_log(asked),
            feature::DMA_LOGGING_STOP => {
                Fields::of(asked.data).end()?;
                if !self.state.is_logging {
                    return Err(Errno::EINVAL);
                }
                self.log()?.stop()?;
                self.state.is_logging = false;
                Ok(asked.encode())
            }
            _ => self.report(asked, bitmap_bytes_max),
        }
    }

    /// Returns the actions that a feature supports, or `None` if the device does not have the feature.
    fn actions_of(&mut self, number: u32) -> Option<u32> {
        let (is_there, actions) = match number {
            feature::MIGRATION => (self.can_migrate(), Feature::GET),
            feature::MIGRATION_STATE => (self.can_migrate(), Feature::GET | Feature::SET),
            feature::DMA_LOGGING_START | feature::DMA_LOGGING_STOP => {
                (self.log().is_ok(), Feature::SET)
            }
            feature::DMA_LOGGING_REPORT => (self.log().is_ok(), Feature::GET),
            _ => (false, 0),
        };
        is_there.then_some(actions)
    }

    fn can_migrate(&mut self) -> bool {
        self.device.migration().is_some()
    }

    fn has_pre_copy(&mut self) -> bool {
        self.device.migration().is_some_and(|migration| migration.has_pre_copy())
    }

    fn log(&mut self) -> Result<&mut dyn DirtyLog, Errno> {
        self.dma.dirty_log().ok_or(Errno::ENOTTY)
    }

    fn go_to(&mut self, to: MigrationState) -> Result<(), Errno> {
        let path = self.state.migration.path(to, self.has_pre_copy())?;
        for next in path {
            let from = self.state.migration;
            let migration = self.device.migration().ok_or(Errno::ENOTTY)?;
            migration.set_state(from, next).map_err(|failed| {
                if failed.is_broken {
                    self.state.migration = MigrationState::Error;
                }
                failed.errno
            })?;
            self.state.migration = next;
        }
        Ok(())
    }

    fn start_log(&mut self, asked: &Feature<'_>) -> Result<Vec<u8>, Errno> {
        let mut fields = Fields::of(asked.data);
        let (page_bytes, count, reserved) = (fields.u64()?, fields.u32()?, fields.u32()?);
        let claims = fields.rest_of(u64::from(count) * 16)?;
        if self.state.is_logging || !page_bytes.is_power_of_two() || count > RANGES_MAX {
            return Err(Errno::EINVAL);
        }
        let range = |claim: &[u8]| {
            let mut fields = Fields::of(claim);
            range_of(fields.u64()?, fields.u64()?)
        };
        let ranges = claims.chunks_exact(16).map(range).collect::<Result<Vec<_>, _>>()?;
        let chosen_bytes = self.log()?.start(&ranges, page_bytes)?;
        self.state.is_logging = true;
        let data = Builder::default().u64(chosen_bytes).u32(count).u32(reserved).bytes(claims);
        Ok(Feature { data: &data.end(), ..*asked }.encode())
    }

    fn report(&mut self, asked: &Feature<'_>, bitmap_bytes_max: u32) -> Result<Vec<u8>, Errno> {
        let mut fields = Fields::of(asked.data);
        let (iova, len_bytes, page_bytes) = (fields.u64()?, fields.u64()?, fields.u64()?);
        fields.end()?;
        let range = range_of(iova, len_bytes)?;
        if !self.state.is_logging || !page_bytes.is_power_of_two() {
            return Err(Errno::EINVAL);
        }
        let words = len_bytes.div_ceil(page_bytes).div_ceil(64);
        if words > u64::from(bitmap_bytes_max / 8) {
            return Err(Errno::EMSGSIZE);
        }
        let answer_bytes = u64::from(Feature::PREFIX_LEN_BYTES) + 24 + words * 8;
        if u64::from(asked.argsz) < answer_bytes {
            // A report clears the log, so one that the client has no room for would lose pages.
            return Ok(Feature { argsz: answer_bytes as u32, data: &[], ..*asked }.encode());
        }
        let mut bitmap = vec![0; words as usize];
        self.log()?.report(range, page_bytes, &mut bitmap)?;
        let data = Builder::default().u64(iova).u64(len_bytes).u64(page_bytes);
        let data = bitmap.iter().fold(data, |data, word| data.u64(*word));
        Ok(got(asked, &data.end()))
    }
}

/// Returns the reply with the requested data, or only with its length if the client has too little room.
fn got(asked: &Feature<'_>, data: &[u8]) -> Vec<u8> {
    let argsz = Feature::PREFIX_LEN_BYTES + data.len() as u32;
    let data = if argsz <= asked.argsz { data } else { &[] };
    Feature { argsz, data, ..*asked }.encode()
}

fn range_of(iova: u64, len_bytes: u64) -> Result<AddrRange<Iova>, Errno> {
    let range = AddrRange::new(Iova::new(iova), len_bytes).map_err(|_| Errno::EINVAL)?;
    if range.is_empty() { Err(Errno::EINVAL) } else { Ok(range) }
}
