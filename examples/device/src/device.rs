//! The device's interface for its client: configuration space and registers.

use std::io;

use longshore::access::Space;
use longshore::vfio_user::pci::{Bar, CONFIG_REGION, ConfigSpace, MsixTable};
use longshore::vfio_user::{Device, DeviceDescription, Errno, Link};

use crate::engine::{Engine, Ring};
use crate::layout::{
    BAR_BYTES, DEVICE, IDENTITY, MSIX_PBA, MSIX_TABLE, VENDOR, control, register, status,
};
use crate::trace::Counts;

const WORDS: usize = 10;

/// A PCI device that copies and sums memory.
pub struct CopyEngine {
    config: ConfigSpace,
    /// The words that the driver has written to the registers.
    written: [u32; WORDS],
    engine: Engine,
    counts: Counts,
}

impl CopyEngine {
    /// Returns a device that reaches memory through `space`, and counts its events in `counts`.
    ///
    /// # Errors
    /// The error of the kernel if the engine's thread cannot be started.
    pub fn new(space: Space, counts: Counts) -> io::Result<Self> {
        let config = ConfigSpace::new(VENDOR, DEVICE)
            .class(0x08_80_00) // "other system peripheral"
            .bar(0, Bar::memory32(BAR_BYTES))
            .msix(MsixTable { vectors: 1, bar: 0, table_offset: MSIX_TABLE, pba_offset: MSIX_PBA });
        let engine = Engine::new(space, counts.clone())?;
        Ok(Self { config, written: [0; WORDS], engine, counts })
    }

    /// Returns the values that reads of the registers return.
    fn words(&self) -> [u32; WORDS] {
        let (status, tail, head) = self.engine.progress();
        let mut words = self.written;
        for (at, word) in [
            (register::IDENTITY, IDENTITY),
            (register::STATUS, status),
            (register::DOORBELL, tail),
            (register::DONE, head),
        ] {
            words[at as usize / 4] = word;
        }
        words
    }

    fn write_word(&mut self, at: u64, word: u32) {
        let Some(written) = self.written.get_mut(at as usize / 4) else { return };
        let old = std::mem::replace(written, word);
        match at {
            register::CONTROL => self.control(old, word),
            register::DOORBELL => self.engine.ring(word),
            _ => {}
        }
    }

    fn control(&mut self, old: u32, new: u32) {
        if new & control::ENABLE == 0 {
            self.engine.stop();
        } else if !self.config.is_bus_master() {
            self.written[register::CONTROL as usize / 4] = new & !control::ENABLE;
        } else if old & control::ENABLE == 0 {
            let word = |at: u64| self.written[at as usize / 4];
            let long = |at: u64| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
            self.engine.start(Ring {
                descriptors: long(register::DESCRIPTORS),
                completions: long(register::COMPLETIONS),
                entries: word(register::ENTRIES),
                interrupts: new & control::INTERRUPT != 0,
            });
        }
    }

    fn write_config(&mut self, offset: u64, from: &[u8]) -> Result<(), Errno> {
        self.config.write(offset, from)?;
        if !self.config.is_bus_master() && self.engine.progress().0 != status::OFF {
            self.written[register::CONTROL as usize / 4] &= !control::ENABLE;
            self.engine.stop();
        }
        Ok(())
    }

    fn power_on(&mut self) {
        self.engine.stop();
        self.config.reset();
        self.written = [0; WORDS];
    }
}

impl Device for CopyEngine {
    fn description(&self) -> DeviceDescription {
        self.config.description()
    }

    fn region_read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            return self.config.read(offset, into);
        }
        let words = self.words().map(u32::to_le_bytes);
        let bytes = words.as_flattened();
        for (at, byte) in (offset as usize..).zip(into) {
            *byte = bytes.get(at).copied().unwrap_or(0);
        }
        Ok(())
    }

    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            return self.write_config(offset, from);
        }
        let (words, rest) = from.as_chunks();
        if offset.is_multiple_of(4) && rest.is_empty() {
            for (at, word) in (offset..).step_by(4).zip(words) {
                self.write_word(at, u32::from_le_bytes(*word));
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        self.counts.reset();
        self.power_on();
    }

    fn connected(&mut self, link: &Link) {
        self.counts.client();
        self.engine.connect(Some(link.clone()));
    }

    /// Resets the device as if it had been unplugged, so that it is as new for the next client.
    fn disconnected(&mut self) {
        self.power_on();
        self.engine.connect(None);
    }
}
