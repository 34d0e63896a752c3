//! A machine without a running kernel: the host reads and writes its memory and registers by QEMU's
//! qtest protocol.
//!
//! The protocol is lines of text, with an answer for each command (QEMU's manual for developers, "QTest
//! Device Emulation Testing Framework"). Debian's QEMU 7.2 lacks the accelerator of that name, so the
//! processor is emulated and must be halted by its program. Time is counted in instructions and skips to
//! the next timer while the processor is halted, so an operation for which a device needs 100 ms is done
//! at once.

use std::{
    ffi::OsStr,
    fmt::{self, Write as _},
    fs::File,
    io::{BufRead, BufReader, Read, Seek, Write},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process::{Child, Stdio},
    time::Duration,
};

use crate::{
    error::{Error, Result},
    qemu::Qemu,
};

/// The timeout of an answer. An answer takes microseconds, but a start on a busy host takes seconds.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

const ARGS: &[&str] = &[
    "-accel",
    "tcg",
    "-icount",
    "shift=0,sleep=off",
    "-qtest",
    "stdio",
    "-qtest-log",
    "none",
    "-display",
    "none",
    "-nodefaults",
    "-no-reboot",
];

/// A QEMU whose memory and registers the host reads and writes.
#[derive(Debug)]
pub struct Qtest {
    child: Child,
    stream: BufReader<UnixStream>,
    stderr: File,
}

impl Qtest {
    /// Starts `qemu`; `args` choose the machine.
    ///
    /// # Errors
    ///
    /// Returns an error if QEMU cannot be started. An unknown machine is an error of the first command.
    pub fn start<S: AsRef<OsStr>>(qemu: &Qemu, args: impl IntoIterator<Item = S>) -> Result<Self> {
        let failed = |operation| Error::io(operation, "qemu");
        let (ours, its) = UnixStream::pair().map_err(failed("connecting to"))?;
        ours.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed("connecting to"))?;
        let its_other_end = its.try_clone().map_err(failed("connecting to"))?;
        let stderr = tempfile::tempfile().map_err(failed("a log for"))?;
        let log = stderr.try_clone().map_err(failed("a log for"))?;
        let child = qemu
            .command()?
            .args(ARGS)
            .args(args)
            .stdin(Stdio::from(OwnedFd::from(its)))
            .stdout(Stdio::from(OwnedFd::from(its_other_end)))
            .stderr(Stdio::from(log))
            .spawn()
            .map_err(failed("starting"))?;
        Ok(Self { child, stream: BufReader::new(ours), stderr })
    }

    /// Reads `len_bytes` of memory from `address`.
    ///
    /// # Errors
    ///
    /// Returns an error if QEMU has ended or refuses the command.
    pub fn read(&mut self, address: u64, len_bytes: usize) -> Result<Vec<u8>> {
        let command = format!("read {address:#x} {len_bytes:#x}");
        let answer = self.ask(&command)?;
        let digits = answer.strip_prefix("0x").unwrap_or_default().as_bytes();
        let digit = |byte: u8| char::from(byte).to_digit(16);
        let bytes: Option<Vec<u8>> = digits
            .chunks_exact(2)
            .map(|pair| Some((digit(pair[0])? << 4 | digit(pair[1])?) as u8))
            .collect();
        bytes.filter(|bytes| bytes.len() == len_bytes).ok_or(Error::Qtest { command, said: answer })
    }

    /// Writes `bytes` to memory from `address` on.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<()> {
        let mut command = format!("write {address:#x} {:#x} 0x", bytes.len());
        for byte in bytes {
            write!(command, "{byte:02x}").expect("a string takes all");
        }
        self.ask(&command).map(drop)
    }

    /// Fills `len_bytes` of memory from `address` on with `byte`.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn fill(&mut self, address: u64, len_bytes: usize, byte: u8) -> Result<()> {
        self.ask(&format!("memset {address:#x} {len_bytes:#x} {byte:#x}")).map(drop)
    }

    /// Reads the register or memory of 4 bytes at `address`.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn read_u32(&mut self, address: u64) -> Result<u32> {
        Ok(self.number(&format!("readl {address:#x}"))? as u32)
    }

    /// Reads the register or memory of 8 bytes at `address`.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn read_u64(&mut self, address: u64) -> Result<u64> {
        self.number(&format!("readq {address:#x}"))
    }

    /// Writes the register or memory of 4 bytes at `address`.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn write_u32(&mut self, address: u64, value: u32) -> Result<()> {
        self.ask(&format!("writel {address:#x} {value:#x}")).map(drop)
    }

    /// Writes the register or memory of 8 bytes at `address`.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn write_u64(&mut self, address: u64, value: u64) -> Result<()> {
        self.ask(&format!("writeq {address:#x} {value:#x}")).map(drop)
    }

    /// Writes 4 bytes to an I/O port of an x86 machine.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn write_port_u32(&mut self, port: u16, value: u32) -> Result<()> {
        self.ask(&format!("outl {port:#x} {value:#x}")).map(drop)
    }

    /// Reads 4 bytes from an I/O port of an x86 machine.
    ///
    /// # Errors
    ///
    /// Like [`read`](Self::read).
    pub fn read_port_u32(&mut self, port: u16) -> Result<u32> {
        Ok(self.number(&format!("inl {port:#x}"))? as u32)
    }

    fn number(&mut self, command: &str) -> Result<u64> {
        let said = self.ask(command)?;
        let number = said.strip_prefix("0x").and_then(|hex| u64::from_str_radix(hex, 16).ok());
        number.ok_or_else(|| Error::Qtest { command: command.to_owned(), said })
    }

    /// Sends a command, and returns the text after `OK` in the answer.
    fn ask(&mut self, command: &str) -> Result<String> {
        let mut line = String::new();
        let answered = self
            .stream
            .get_mut()
            .write_all(format!("{command}\n").as_bytes())
            .and_then(|()| self.stream.read_line(&mut line));
        match (answered, line.trim_end().split_once(' '), line.trim_end()) {
            (Ok(1..), Some(("OK", rest)), _) => Ok(rest.to_owned()),
            (Ok(1..), _, "OK") => Ok(String::new()),
            (Ok(0), ..) => Err(self.failure(command, &"QEMU has ended")),
            (Err(error), ..) => Err(self.failure(command, &error)),
            (Ok(_), _, line) => Err(self.failure(command, &line)),
        }
    }

    fn failure(&mut self, command: &str, why: &dyn fmt::Display) -> Error {
        let mut log = String::new();
        // A log that cannot be read is left out.
        let _ = self.stderr.rewind().and_then(|()| self.stderr.read_to_string(&mut log));
        // A command may have thousands of characters.
        let command = command.chars().take(60).collect();
        Error::Qtest { command, said: format!("{why}\n{}", log.trim_end()) }
    }
}

impl Drop for Qtest {
    fn drop(&mut self) {
        // It may have ended already, so errors are ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
