//! A guest machine: its parts, and its runs.

mod command_line;

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::{
    boot::{Launch, Limits, Turn},
    disk::Disk,
    error::{Error, Result},
    initramfs::{Content, GuestFile, Initramfs},
    kernel::{Flavor, Kernel},
    protocol::{Event, Plan, Task},
    qemu::Qemu,
    report::Report,
    static_binary,
};

/// After this time, the times of a machine that counts instructions agreed to the nanosecond.
const SETTLING_TIME: Duration = Duration::from_secs(5);

/// The IOMMU in front of a machine's PCI devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Iommu {
    /// VT-d.
    Intel,
    /// virtio-iommu.
    Virtio,
}

/// A guest machine. Two runs of it share nothing.
///
/// ```no_run
/// use longshore_vm_tests::{Disk, Machine, Task};
///
/// let report = Machine::new("example")
///     .memory_mib(2048)
///     .disk(Disk::null("null", 1 << 30))
///     .run(&[Task::suite("kernel")])?;
/// for test in report.tests {
///     println!("{} {:?}", test.name, test.outcome);
/// }
/// # Ok::<(), longshore_vm_tests::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Machine {
    name: String,
    qemu: Option<Qemu>,
    kernel: Flavor,
    memory_mib: u32,
    cpus: u32,
    iommu: Option<Iommu>,
    counts_instructions: bool,
    settle: Duration,
    restarts: u32,
    /// The arguments of the first QEMU, and those of its successor.
    handed_over: Option<[Vec<String>; 2]>,
    modules: Vec<String>,
    kernel_args: Vec<String>,
    devices: Vec<String>,
    qemu_args: Vec<String>,
    disks: Vec<Disk>,
    files: Vec<GuestFile>,
}

impl Machine {
    /// Creates a machine with 1 GiB of memory, two processors, and nothing else. Machines with the same
    /// name run one after the other, and each run overwrites the log of the previous one.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            qemu: None,
            kernel: Flavor::default(),
            memory_mib: 1024,
            cpus: 2,
            iommu: None,
            counts_instructions: false,
            settle: Duration::ZERO,
            restarts: 0,
            handed_over: None,
            modules: Vec::new(),
            kernel_args: Vec::new(),
            devices: Vec::new(),
            qemu_args: Vec::new(),
            disks: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Sets the QEMU that runs the machine; the host's own by default.
    #[must_use]
    pub fn qemu(self, qemu: Qemu) -> Self {
        Self { qemu: Some(qemu), ..self }
    }

    /// Sets the kernel to boot; Debian's by default. It is obtained when the machine runs.
    #[must_use]
    pub fn kernel(self, kernel: Flavor) -> Self {
        Self { kernel, ..self }
    }

    /// Sets the size of the memory.
    #[must_use]
    pub fn memory_mib(self, memory_mib: u32) -> Self {
        Self { memory_mib, ..self }
    }

    /// Sets the number of processors. All of them run on one thread of the host.
    #[must_use]
    pub fn cpus(self, cpus: u32) -> Self {
        Self { cpus, ..self }
    }

    /// Puts an IOMMU in front of the PCI devices and makes the kernel use it.
    #[must_use]
    pub fn iommu(self, iommu: Iommu) -> Self {
        Self { iommu: Some(iommu), ..self }
    }

    /// Makes the clock count instructions instead of time, for repeatable figures: two runs of the same
    /// code agree within 1%. The machine then has one processor, and it settles, which costs nothing,
    /// because time in which the processor idles is skipped.
    #[must_use]
    pub fn counting_instructions(self) -> Self {
        Self { counts_instructions: true, ..self }.settle(SETTLING_TIME)
    }

    /// Lets the machine idle before the first task, in whole seconds. For some seconds after the boot,
    /// the kernel has work of its own, which took half a processor from a measurement.
    #[must_use]
    pub fn settle(self, settle: Duration) -> Self {
        Self { settle, ..self }
    }

    /// Resets the machine after the last task, this many times: QEMU keeps running, the kernel boots
    /// again, and all tasks run again. The report has each task once for each run.
    #[must_use]
    pub fn restarts(self, restarts: u32) -> Self {
        Self { restarts, ..self }
    }

    /// Makes the guest continue in a second QEMU when the first one ends while the guest is up, as after
    /// a migration. The caller starts the migration when an event arrives ([`Machine::run_observed`]).
    /// Both QEMUs get these arguments in addition to those of all other methods.
    #[must_use]
    pub fn handed_over<S: Into<String>>(
        self,
        first: impl IntoIterator<Item = S>,
        second: impl IntoIterator<Item = S>,
    ) -> Self {
        let first = first.into_iter().map(Into::into).collect();
        let second = second.into_iter().map(Into::into).collect();
        Self { handed_over: Some([first, second]), ..self }
    }

    /// Adds a kernel module to load, with its dependencies.
    #[must_use]
    pub fn module(mut self, name: impl Into<String>) -> Self {
        self.modules.push(name.into());
        self
    }

    /// Adds a word to the kernel's command line.
    #[must_use]
    pub fn kernel_arg(mut self, arg: impl Into<String>) -> Self {
        self.kernel_args.push(arg.into());
        self
    }

    /// Adds a device, in the form of QEMU's `-device`.
    #[must_use]
    pub fn device(mut self, device: impl Into<String>) -> Self {
        self.devices.push(device.into());
        self
    }

    /// Adds arguments for QEMU that no other method covers.
    #[must_use]
    pub fn qemu_args<S: Into<String>>(mut self, args: impl IntoIterator<Item = S>) -> Self {
        self.qemu_args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Adds a disk.
    #[must_use]
    pub fn disk(mut self, disk: Disk) -> Self {
        self.disks.push(disk);
        self
    }

    /// Adds a program: the file `host_path` as `guest_path`. It must be linked statically, like those
    /// that [`static_binary`](fn@crate::static_binary) builds, because the guest has no libraries.
    #[must_use]
    pub fn binary(mut self, host_path: impl Into<PathBuf>, guest_path: impl Into<String>) -> Self {
        let content = Content::HostFile(host_path.into());
        self.files.push(GuestFile { at: guest_path.into(), content, executable: true });
        self
    }

    /// Adds a file with this content.
    #[must_use]
    pub fn file(mut self, guest_path: impl Into<String>, content: impl Into<Vec<u8>>) -> Self {
        let content = Content::Bytes(content.into());
        self.files.push(GuestFile { at: guest_path.into(), content, executable: false });
        self
    }

    /// Boots the machine, runs the tasks in order, and powers it off.
    ///
    /// # Errors
    ///
    /// Returns an error if the machine cannot be built or booted, or fails during the run. A failed test
    /// or command is not an error; the report has the outcome of each.
    pub fn run(&self, tasks: &[Task]) -> Result<Report> {
        self.run_observed(tasks, &mut |_| {})
    }

    /// Like [`Machine::run`], and calls `on_event` with each event when it arrives.
    ///
    /// # Errors
    ///
    /// Like [`Machine::run`].
    pub fn run_observed(&self, tasks: &[Task], on_event: &mut dyn FnMut(&Event)) -> Result<Report> {
        let qemu = self.qemu.clone().map_or_else(Qemu::system, Ok)?;
        let kernel = Kernel::obtain(self.kernel)?;
        let init = static_binary::guest_init()?;
        let logs = static_binary::target_dir().join("vm-tests");
        fs::create_dir_all(&logs).map_err(Error::io("creating", &logs))?;
        // Held to the end, because another run of this name would write to the same log.
        let _turn = lock(&logs.join(format!("{}.lock", self.name)))?;
        let scratch = Scratch::new(logs.join(format!("{}.run", self.name)))?;

        let initramfs = scratch.path.join("initramfs");
        let modules = kernel.modules(&self.all_modules())?;
        let disks = self.disks.iter().map(Disk::plan).collect();
        let settle_seconds = self.settle.as_secs();
        let (tasks, restarts) = (tasks.to_vec(), self.restarts > 0);
        let plan = Plan { modules: Vec::new(), disks, settle_seconds, tasks, restarts };
        Initramfs { init: &init, modules: &modules, files: &self.files }.write(&initramfs, plan)?;

        let console_log = logs.join(format!("{}.console.log", self.name));
        let args = self.args(&kernel, &initramfs, &console_log, &scratch.path)?;
        let command = |turn| {
            let mut command = qemu.command()?;
            command.args(&args).args(self.args_of(turn)).current_dir(&scratch.path);
            Ok(command)
        };
        let mut limits = Limits::default();
        limits.idle += self.settle;
        let launch = Launch {
            command: &command,
            console_log: &console_log,
            limits,
            restarts: self.restarts,
            is_handed_over: self.handed_over.is_some(),
        };
        launch.run(on_event)
    }

    fn args_of(&self, turn: Turn) -> &[String] {
        match (&self.handed_over, turn) {
            (Some([first, _]), Turn::First) => first,
            (Some([_, second]), Turn::Second) => second,
            (None, _) => &[],
        }
    }

    fn all_modules(&self) -> Vec<String> {
        let iommu = matches!(self.iommu, Some(Iommu::Virtio)).then(|| "virtio-iommu".to_owned());
        let mut names: Vec<String> = iommu.into_iter().collect();
        for name in self.disks.iter().flat_map(Disk::modules).chain(self.modules.iter().cloned()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }
}

/// A folder for one run. Only the holder of the machine's lock uses it, so files that a killed run left
/// there can be removed.
struct Scratch {
    path: PathBuf,
}

impl Scratch {
    fn new(path: PathBuf) -> Result<Self> {
        if path.exists() {
            fs::remove_dir_all(&path).map_err(Error::io("removing", &path))?;
        }
        fs::create_dir(&path).map_err(Error::io("creating", &path))?;
        Ok(Self { path })
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // If that fails, the next run tries again, and stops with the error if it fails too.
        let _ = fs::remove_dir_all(&self.path);
    }
}

fn lock(path: &Path) -> Result<File> {
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(path)
        .map_err(Error::io("opening", path))?;
    file.lock().map_err(Error::io("locking", path))?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_starts_with_an_empty_folder_and_removes_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.run");
        fs::create_dir(&path).unwrap();
        fs::write(path.join("left by a run that was killed"), "").unwrap();
        let scratch = Scratch::new(path.clone()).unwrap();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn each_module_is_loaded_once_and_the_iommus_first() {
        let machine = Machine::new("m")
            .module("overlay")
            .module("xfs")
            .iommu(Iommu::Virtio)
            .disk(Disk::xfs_from_dir("a", "/a", 1))
            .disk(Disk::ext4_from_dir("b", "/b", 1));
        assert_eq!(machine.all_modules(), ["virtio-iommu", "virtio_blk", "xfs", "ext4", "overlay"]);
    }
}
