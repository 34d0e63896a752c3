//! A machine with an IOMMU and one device whose DMA the test controls.
//!
//! The device is `edu` (QEMU's manual, "EDU device"). It has a buffer of 4 KiB, and registers for the
//! source, target and length of a transfer between the buffer and memory. The buffer is accessible only
//! by such transfers.
//!
//! ```text
//!   0x4400_0000   the IOMMU's structures: stream table, queues, …
//!   0x4800_0000   tables
//!   0x5000_0000   scratch, for data that the device has read
//!   0x6000_0000   targets of mappings
//!   0x8000_0000   the end
//! ```

use std::cell::{Cell, RefCell};
use std::ops::Range;

use longshore_vm_tests::{Qemu, Qtest, Result};
use tempfile::TempDir;

/// The address of the IOMMU's own structures.
pub(crate) const STRUCTURES: u64 = 0x4400_0000;
/// The address of the page tables.
pub(crate) const TABLES: u64 = 0x4800_0000;
/// The number of bytes of page tables: enough for a hundred paths of 64 KiB tables.
pub(crate) const TABLES_BYTES: usize = 16 << 20;
/// The memory that mappings lead to.
pub(crate) const TARGETS: Range<u64> = 0x6000_0000..0x8000_0000;
/// The device on its bus: slot 2, function 0.
pub(crate) const DEVICE: u16 = 2 << 3;

const SCRATCH: u64 = 0x5000_0000;

// PCI Local Bus Specification 3.0, section 6.1.
const PCI_COMMAND: u32 = 0x04;
const PCI_BAR_0: u32 = 0x10;
const MEMORY_AND_MASTER: u32 = 0b110;

const EDU_SOURCE: u64 = 0x80;
const EDU_TARGET: u64 = 0x88;
const EDU_COUNT: u64 = 0x90;
const EDU_COMMAND: u64 = 0x98;
const EDU_BUFFER: u64 = 0x4_0000;
const EDU_START: u64 = 1 << 0;
const EDU_TO_MEMORY: u64 = 1 << 1;

/// The number of words that the device writes, in the first half of its buffer. The second half holds
/// data that it reads.
const WORDS: u64 = 256;
const READ_AT: u64 = WORDS * 8;

/// The machine. A failed command fails the test, because QEMU is gone then.
#[derive(Debug)]
pub(crate) struct Machine {
    qtest: RefCell<Qtest>,
    /// The device's registers.
    edu: u64,
    /// The index of the next word that the device writes.
    next_word: Cell<u64>,
    /// The firmware, which the processor starts with.
    _firmware: Option<TempDir>,
}

impl Machine {
    /// Returns Arm's `virt` with an SMMUv3. `stage` is QEMU's property, which exists from version 9 on.
    pub(crate) fn arm(qemu: &Qemu, stage: Option<&str>) -> Result<Self> {
        // The address map of QEMU's hw/arm/virt.c: ECAM above 256 GiB, the window for BARs, memory.
        const ECAM: u64 = 0x40_1000_0000;
        const WINDOW: u64 = 0x1000_0000;
        // `wfi; b .-4`, next to the device tree.
        let halt = "loader,addr=0x40400000,data=0x17ffffffd503207f,data-len=8";
        let start = "loader,addr=0x40400000,cpu-num=0";
        let mut args = vec!["-M", "virt,iommu=smmuv3", "-cpu", "cortex-a57", "-m", "2048"];
        args.extend(["-device", halt, "-device", start, "-device", Self::EDU]);
        let stage = stage.map(|stage| format!("arm-smmuv3.stage={stage}"));
        args.extend(stage.iter().flat_map(|stage| ["-global", stage]));
        let mut qtest = Qtest::start(qemu, args)?;
        let config = ECAM + (u64::from(DEVICE) << 12);
        qtest.write_u32(config + u64::from(PCI_BAR_0), WINDOW as u32)?;
        qtest.write_u32(config + u64::from(PCI_COMMAND), MEMORY_AND_MASTER)?;
        Self::new(qtest, WINDOW, None)
    }

    /// Returns Intel's `q35` with an IOMMU, given as in QEMU's `-device`.
    pub(crate) fn x86(qemu: &Qemu, iommu: &str) -> Result<Self> {
        const WINDOW: u64 = 0xc000_0000;
        // `hlt` everywhere, including the reset vector.
        let dir = tempfile::tempdir().expect("a folder for the firmware");
        let firmware = dir.path().join("halt");
        std::fs::write(&firmware, [0xf4; 64 << 10]).expect("a file for the firmware");
        let args = ["-M", "q35", "-m", "2048", "-device", iommu, "-device", Self::EDU, "-bios"];
        let args = args.map(AsRef::as_ref).into_iter().chain([firmware.as_os_str()]);
        let mut qtest = Qtest::start(qemu, args)?;
        for (register, value) in [(PCI_BAR_0, WINDOW as u32), (PCI_COMMAND, MEMORY_AND_MASTER)] {
            qtest.write_port_u32(0xcf8, 1 << 31 | u32::from(DEVICE) << 8 | register)?;
            qtest.write_port_u32(0xcfc, value)?;
        }
        Self::new(qtest, WINDOW, Some(dir))
    }

    const EDU: &str = "edu,addr=02.0,dma_mask=0xffffffffffffffff";

    fn new(qtest: Qtest, edu: u64, firmware: Option<TempDir>) -> Result<Self> {
        let machine =
            Self { qtest: RefCell::new(qtest), edu, next_word: Cell::new(0), _firmware: firmware };
        // Fails if the machine could not be created.
        let identification = machine.qtest.borrow_mut().read_u32(edu)?;
        assert_eq!(identification, 0x0100_00ed, "the device has no registers");
        let words: Vec<u8> = (0..WORDS).flat_map(|index| word(index).to_le_bytes()).collect();
        machine.write(SCRATCH, &words);
        // The IOMMU is still off.
        machine.transfer(SCRATCH, EDU_BUFFER, READ_AT, EDU_START);
        Ok(machine)
    }

    pub(crate) fn read(&self, address: u64, len_bytes: usize) -> Vec<u8> {
        self.qtest.borrow_mut().read(address, len_bytes).expect("memory is read")
    }

    pub(crate) fn write(&self, address: u64, bytes: &[u8]) {
        self.qtest.borrow_mut().write(address, bytes).expect("memory is written");
    }

    pub(crate) fn fill(&self, address: u64, len_bytes: usize, byte: u8) {
        self.qtest.borrow_mut().fill(address, len_bytes, byte).expect("memory is filled");
    }

    pub(crate) fn read_u32(&self, address: u64) -> u32 {
        self.qtest.borrow_mut().read_u32(address).expect("a register is read")
    }

    pub(crate) fn read_u64(&self, address: u64) -> u64 {
        self.qtest.borrow_mut().read_u64(address).expect("a register is read")
    }

    pub(crate) fn write_u32(&self, address: u64, value: u32) {
        self.qtest.borrow_mut().write_u32(address, value).expect("a register is written");
    }

    pub(crate) fn write_u64(&self, address: u64, value: u64) {
        self.qtest.borrow_mut().write_u64(address, value).expect("a register is written");
    }

    /// Writes words of 8 bytes.
    pub(crate) fn write_words(&self, address: u64, words: &[u64]) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.write(address, &bytes);
    }

    /// Makes the device write a word to `address`, and returns the word.
    pub(crate) fn device_writes(&self, address: u64) -> u64 {
        let index = self.next_word.get();
        self.next_word.set((index + 1) % WORDS);
        self.transfer(EDU_BUFFER + index * 8, address, 8, EDU_START | EDU_TO_MEMORY);
        word(index)
    }

    /// Makes the device read a word at `address` into its buffer.
    pub(crate) fn device_reads(&self, address: u64) {
        self.transfer(address, EDU_BUFFER + READ_AT, 8, EDU_START);
    }

    /// Returns the last word that the device read. The IOMMU must be off.
    pub(crate) fn last_word_read(&self) -> u64 {
        self.transfer(EDU_BUFFER + READ_AT, SCRATCH, 8, EDU_START | EDU_TO_MEMORY);
        self.read_u64(SCRATCH)
    }

    fn transfer(&self, source: u64, target: u64, count_bytes: u64, command: u64) {
        self.write_u64(self.edu + EDU_SOURCE, source);
        self.write_u64(self.edu + EDU_TARGET, target);
        self.write_u64(self.edu + EDU_COUNT, count_bytes);
        self.write_u64(self.edu + EDU_COMMAND, command);
        // A transfer takes 100 ms of machine time, which passes at once.
        for _ in 0..1_000_000 {
            if self.read_u64(self.edu + EDU_COMMAND) & EDU_START == 0 {
                return;
            }
        }
        panic!("the device did not finish its transfer");
    }
}

/// Returns a word for each index, with no word equal to another.
fn word(index: u64) -> u64 {
    (index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
