//! QEMU's command line for a machine. Each unusual flag prevents a failure, which its comment names.

use std::path::Path;

use super::{Iommu, Machine};
use crate::{
    error::{Error, Result},
    kernel::Kernel,
};

impl Machine {
    /// Returns the arguments. Images are made in `scratch`.
    pub(super) fn args(
        &self,
        kernel: &Kernel,
        initramfs: &Path,
        console_log: &Path,
        scratch: &Path,
    ) -> Result<Vec<String>> {
        let mut args = Args::default();
        // No KVM: the hosts that run this often lack a KVM that can run a stock kernel.
        // thread=single: with a thread per processor, code that the kernel patches at run time is
        // sometimes executed half-patched: a stray int3, and an oops in 1 boot of 20.
        args.put("-accel", "tcg,thread=single");
        // cx16=off: emulated cmpxchg16b breaks the slab allocator: an oops in half the boots.
        // erms, fsrm=off: emulated "rep movsb" moves a byte at a time, and the kernel would prefer
        // it for every copy: 20 MB/s.
        args.put("-cpu", "max,cx16=off,erms=off,fsrm=off");
        args.put(
            "-machine",
            match self.iommu {
                // Interrupt remapping needs an interrupt controller outside of the kernel.
                Some(Iommu::Intel) => "q35,kernel-irqchip=split",
                Some(Iommu::Virtio) | None => "q35",
            },
        );
        if self.counts_instructions {
            // sleep=off: time in which the processor idles is skipped. One processor: two would
            // alternate by the host's clock.
            args.put("-icount", "shift=0,sleep=off");
            args.put("-smp", "1");
        } else {
            args.put("-smp", &self.cpus.to_string());
        }
        args.put("-m", &self.memory_mib.to_string());
        // No default devices: no network card, no graphics, no floppy drive.
        args.flag("-nodefaults");
        args.put("-display", "none");
        args.put("-monitor", "none");
        // With panic=-1 below, a panic ends QEMU at once instead of at the time limit.
        if self.restarts == 0 {
            args.flag("-no-reboot");
        }
        // ttyS0 has the kernel's messages, and ttyS1 only our reports, so that no message lands in the
        // middle of a report.
        // append: the second QEMU's output follows that of the first.
        let append = if self.handed_over.is_some() { ",append=on" } else { "" };
        let console = format!("file,id=console,path={}{append}", escaped(console_log)?);
        args.put("-chardev", &console);
        args.put("-serial", "chardev:console");
        args.put("-serial", "stdio");
        args.put("-kernel", text(&kernel.image())?);
        args.put("-initrd", text(initramfs)?);
        args.put("-append", &self.kernel_command_line());
        self.device_args(&mut args, scratch)?;
        args.0.extend(self.qemu_args.iter().cloned());
        Ok(args.0)
    }

    fn device_args(&self, args: &mut Args, scratch: &Path) -> Result<()> {
        // The IOMMU comes first, because a device that was created before it would bypass it.
        match self.iommu {
            // caching-mode makes the kernel report new mappings too, which VFIO needs.
            Some(Iommu::Intel) => args.put("-device", "intel-iommu,intremap=on,caching-mode=on"),
            // At a fixed low address, so that it is probed before the devices that it serves.
            Some(Iommu::Virtio) => args.put("-device", "virtio-iommu-pci,addr=01.0"),
            None => {}
        }
        for device in &self.devices {
            args.put("-device", device);
        }
        for (index, disk) in self.disks.iter().enumerate() {
            args.0.extend(disk.qemu_args(index, scratch)?);
        }
        Ok(())
    }

    fn kernel_command_line(&self) -> String {
        let fixed = [
            "console=ttyS0",
            // An oops ends the run, because later results prove nothing.
            "oops=panic",
            "panic=-1",
            // On a busy host the kernel's check of the timer at boot sees too few ticks and panics.
            "no_timer_check",
            // On a busy host the lockup detectors would report lockups that the host caused.
            "nowatchdog",
        ];
        let iommu = matches!(self.iommu, Some(Iommu::Intel)).then_some("intel_iommu=on");
        let own = self.kernel_args.iter().map(String::as_str);
        fixed.into_iter().chain(iommu).chain(own).collect::<Vec<_>>().join(" ")
    }
}

#[derive(Default)]
struct Args(Vec<String>);

impl Args {
    fn flag(&mut self, name: &str) {
        self.0.push(name.to_owned());
    }

    fn put(&mut self, name: &str, value: &str) {
        self.0.extend([name.to_owned(), value.to_owned()]);
    }
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().ok_or(Error::Unsupported {
        path: path.to_owned(),
        reason: "QEMU needs file names in UTF-8",
    })
}

/// Returns a path as a value in one of QEMU's comma-separated options.
fn escaped(path: &Path) -> Result<String> {
    Ok(text(path)?.replace(',', ",,"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::Disk;

    fn args(machine: &Machine) -> Vec<String> {
        let kernel = Kernel::for_tests();
        machine.args(&kernel, Path::new("/i"), Path::new("/a,b.log"), Path::new("/s")).unwrap()
    }

    /// Returns the values of an option that may occur more than once.
    fn values(args: &[String], option: &str) -> Vec<String> {
        args.windows(2).filter(|pair| pair[0] == option).map(|pair| pair[1].clone()).collect()
    }

    #[test]
    fn the_console_comes_before_the_reports() {
        let args = args(&Machine::new("m"));
        assert_eq!(values(&args, "-serial"), ["chardev:console", "stdio"]);
        assert_eq!(values(&args, "-chardev"), ["file,id=console,path=/a,,b.log"]);
    }

    #[test]
    fn an_iommu_comes_before_the_devices_it_serves() {
        let machine = Machine::new("m").device("edu").disk(Disk::null("n", 512));
        let intel = args(&machine.clone().iommu(Iommu::Intel));
        assert!(values(&intel, "-device")[0].starts_with("intel-iommu"));
        assert_eq!(values(&intel, "-machine"), ["q35,kernel-irqchip=split"]);
        assert!(values(&intel, "-append")[0].contains("intel_iommu=on"));
        let virtio = args(&machine.iommu(Iommu::Virtio));
        assert!(values(&virtio, "-device")[0].starts_with("virtio-iommu-pci"));
        assert_eq!(values(&virtio, "-device")[1], "edu");
        assert!(!values(&virtio, "-append")[0].contains("intel_iommu"));
    }

    #[test]
    fn counting_instructions_takes_one_processor() {
        let counted = args(&Machine::new("m").cpus(4).counting_instructions());
        assert_eq!(values(&counted, "-smp"), ["1"]);
        assert_eq!(values(&counted, "-icount"), ["shift=0,sleep=off"]);
        assert_eq!(values(&args(&Machine::new("m").cpus(4)), "-smp"), ["4"]);
    }

    #[test]
    fn only_a_machine_with_restarts_may_restart() {
        let args = |restarts| args(&Machine::new("m").restarts(restarts));
        assert!(args(0).contains(&"-no-reboot".to_owned()));
        assert!(!args(1).contains(&"-no-reboot".to_owned()));
    }

    #[test]
    fn added_arguments_are_passed_on() {
        let machine = Machine::new("m").memory_mib(8192).kernel_arg("a=b").qemu_args(["-s", "-S"]);
        let args = args(&machine);
        assert_eq!(values(&args, "-m"), ["8192"]);
        assert!(values(&args, "-append")[0].ends_with(" a=b"));
        assert_eq!(args[args.len() - 2..], ["-s", "-S"]);
    }
}
