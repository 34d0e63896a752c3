//! Device assignment to processes: IOMMUs, VFIO, iommufd, and the limit on mapped memory.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use longshore_sys::iommu::{Iommus, PciDevice};
use longshore_sys::iommufd::{self, Iommufd};
use longshore_sys::memory;
use longshore_sys::vfio::{self, Container, Group, IommuType};
use rustix::fs::Access;
use rustix::io::Errno;

use super::finding::Finding;
use crate::units::Decimal;

/// Programs that map memory for devices soon reach a lower limit than this.
const LOCKED_BYTES_AMPLE: u64 = 1 << 30;

/// The commands that bind a device `A` to vfio-pci.
const GIVE_TO_VFIO: &str = "for the device A: modprobe vfio-pci; echo vfio-pci > /sys/bus/pci/devices/A/driver_override; \
     echo A > /sys/bus/pci/devices/A/driver/unbind; echo A > /sys/bus/pci/drivers_probe";

/// The most names in one line.
const NAMES_MAX: usize = 4;

pub(super) fn findings() -> Vec<Finding> {
    let iommus = Iommus::of_this_machine();
    let devices = for_processes(&iommus, |path| {
        Ok(rustix::fs::access(path, Access::READ_OK | Access::WRITE_OK)?)
    });
    let container = Container::open().and_then(|container| container.supports(IommuType::Type1v2));
    vec![
        iommu(&iommus),
        interrupts(&iommus),
        container_of_vfio(container, iommus.vfio_mappings_limit()),
        device_files(Interface::Vfio, &devices),
        iommufd_device(Iommufd::open().map(drop)),
        device_files(Interface::Iommufd, &devices),
        locked_memory(memory::locked_memory_limit(), memory::may_lock_without_limit()),
    ]
}

fn iommu(iommus: &Iommus) -> Finding {
    const NAME: &str = "IOMMU";
    let (units, groups) = (iommus.units(), iommus.groups());
    if units.is_empty() {
        return Finding::no(
            NAME,
            "none, so the kernel cannot restrict a device to the memory that is mapped for it",
            "turn it on in the firmware (VT-d, AMD-Vi, SMMU) and boot with intel_iommu=on; in a guest: \
             modprobe virtio-iommu",
        );
    }
    if groups.is_empty() {
        return Finding::no(
            NAME,
            format!("{}, but no device is behind it", some_of(&units)),
            "boot with intel_iommu=on, and without iommu=off",
        );
    }
    Finding::yes(NAME, format!("{}; {} groups of devices", some_of(&units), groups.len()))
}

fn interrupts(iommus: &Iommus) -> Finding {
    const NAME: &str = "interrupt remapping";
    if iommus.units().is_empty() {
        return Finding::no(NAME, "no IOMMU", "see IOMMU");
    }
    if iommus.remaps_interrupts() {
        return Finding::yes(NAME, "devices can raise only their own interrupts");
    }
    let allowed: Vec<String> = ["vfio_iommu_type1", "iommufd"]
        .into_iter()
        .filter(|module| iommus.allows_unsafe_interrupts(module) == Some(true))
        .map(str::to_owned)
        .collect();
    let advice = "turn on interrupt remapping in the firmware; for trusted devices: echo 1 > \
                  /sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts (iommufd has it, too)";
    if allowed.is_empty() {
        return Finding::no(NAME, "none, so the kernel gives no device to a process", advice);
    }
    let found = format!("none, but {} gives devices to processes without it", some_of(&allowed));
    Finding::limited(NAME, found, advice)
}

fn container_of_vfio(supports_type1: io::Result<bool>, mappings_limit: Option<u64>) -> Finding {
    const NAME: &str = "VFIO";
    match supports_type1 {
        Ok(true) => {
            let limit = mappings_limit
                .map_or_else(String::new, |limit| format!(", {limit} mappings per container"));
            Finding::yes(NAME, format!("type 1{limit}"))
        }
        Ok(false) => Finding::limited(
            NAME,
            "type 1 is not supported, or only after a group was added",
            "modprobe vfio_iommu_type1, or a kernel with CONFIG_VFIO_IOMMU_TYPE1",
        ),
        Err(error) => unopened(
            NAME,
            Path::new(vfio::CONTAINER),
            &error,
            "modprobe vfio-pci, or a kernel with CONFIG_VFIO_PCI",
        ),
    }
}

fn iommufd_device(opened: io::Result<()>) -> Finding {
    const NAME: &str = "iommufd";
    match opened {
        Ok(()) => Finding::yes(NAME, format!("{} opens", iommufd::DEVICE)),
        Err(error) => unopened(
            NAME,
            Path::new(iommufd::DEVICE),
            &error,
            "modprobe iommufd, or Linux 6.2 or later with CONFIG_IOMMUFD; VFIO is an alternative",
        ),
    }
}

/// Describes why a device file could not be opened; `advice` is used if it does not exist.
fn unopened(name: &'static str, path: &Path, error: &io::Error, advice: &str) -> Finding {
    let path = path.display();
    match error.kind() {
        ErrorKind::PermissionDenied => Finding::no(
            name,
            format!("this user may not open {path}"),
            format!("chown or chmod {path} (permanently: by a udev rule)"),
        ),
        _ if is_absent(error) => Finding::no(name, format!("no {path}"), advice),
        _ => Finding::no(name, format!("{path}: {error}"), "see the kernel log"),
    }
}

/// Returns `true` if there is no such file, or no driver behind it.
fn is_absent(error: &io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::NOENT | Errno::NODEV | Errno::NXIO))
}

/// The kernel interface by which a process gets a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Interface {
    Vfio,
    Iommufd,
}

/// A device that is bound to a VFIO driver, and whether this process may open its files.
struct ForProcesses {
    address: String,
    group: (PathBuf, io::Result<()>),
    /// Its character device, if the kernel has one for it.
    own: Option<(PathBuf, io::Result<()>)>,
}

impl ForProcesses {
    fn file(&self, interface: Interface) -> Option<&(PathBuf, io::Result<()>)> {
        match interface {
            Interface::Vfio => Some(&self.group),
            Interface::Iommufd => self.own.as_ref(),
        }
    }
}

/// Returns the devices that are bound to VFIO drivers. It checks access without opening the files,
/// because an open file would keep other processes from the device.
fn for_processes(iommus: &Iommus, may_open: impl Fn(&Path) -> io::Result<()>) -> Vec<ForProcesses> {
    let tried = |path: PathBuf| {
        let may = may_open(&path);
        (path, may)
    };
    let device = |device: PciDevice| {
        let number = device.vfio_number;
        Some(ForProcesses {
            address: device.address,
            group: tried(Group::path(device.group?)),
            own: number.map(|n| tried(PathBuf::from(format!("{}/devices/vfio{n}", vfio::GROUPS)))),
        })
    };
    let devices = iommus.pci_devices().into_iter();
    devices.filter(PciDevice::is_for_processes).filter_map(device).collect()
}

fn device_files(interface: Interface, devices: &[ForProcesses]) -> Finding {
    let name = match interface {
        Interface::Vfio => "devices for VFIO",
        Interface::Iommufd => "devices for iommufd",
    };
    if devices.is_empty() {
        let advice = match interface {
            Interface::Vfio => GIVE_TO_VFIO,
            Interface::Iommufd => "see devices for VFIO",
        };
        return Finding::no(name, "no device has the driver vfio-pci", advice);
    }
    let named = |wanted: &dyn Fn(&io::Result<()>) -> bool| -> Vec<String> {
        let files = devices.iter().filter_map(|device| {
            let (path, may) = device.file(interface)?;
            wanted(may).then(|| format!("{} ({})", device.address, path.display()))
        });
        files.collect()
    };
    let (usable, refused) = (named(&Result::is_ok), named(&Result::is_err));
    if !refused.is_empty() {
        let found = format!("this user may not open {}", some_of(&refused));
        let advice = "chown or chmod those files (permanently: by a udev rule)";
        return if usable.is_empty() {
            Finding::no(name, found, advice)
        } else {
            Finding::limited(name, format!("{}; {found}", some_of(&usable)), advice)
        };
    }
    if usable.is_empty() {
        return Finding::no(
            name,
            "the devices of vfio-pci have no character devices",
            "Linux 6.6 or later with CONFIG_VFIO_DEVICE_CDEV; VFIO is an alternative",
        );
    }
    Finding::yes(name, some_of(&usable))
}

/// Examines the limit on locked memory, which VFIO applies to each process and iommufd to all
/// processes of a user. Loading files locks no memory.
fn locked_memory(limit: Option<u64>, is_exempt: bool) -> Finding {
    const NAME: &str = "locked memory limit";
    match limit {
        None => Finding::yes(NAME, "none"),
        Some(limit) if is_exempt => {
            let others = Decimal(limit as f64);
            Finding::yes(NAME, format!("none for this user (CAP_IPC_LOCK); {others} for others"))
        }
        Some(limit) => {
            let found = format!(
                "{} can be mapped for devices: per process with VFIO, per user with iommufd",
                Decimal(limit as f64)
            );
            if limit >= LOCKED_BYTES_AMPLE {
                return Finding::yes(NAME, found);
            }
            Finding::limited(
                NAME,
                found,
                "ulimit -l unlimited, memlock in /etc/security/limits.conf, or LimitMEMLOCK= of a service",
            )
        }
    }
}

/// Joins the first names, and adds the number of the others.
fn some_of(names: &[String]) -> String {
    let shown = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(NAMES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::super::finding::State;
    use super::*;

    /// The `/sys` and `/proc` of a machine, in a temporary folder.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn iommus(&self) -> Iommus {
            Iommus::below(self.0.path())
        }

        fn folder(&self, path: &str) {
            fs::create_dir_all(self.0.path().join(path)).unwrap();
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn device(&self, address: &str, group: &str, driver: &str, own: Option<u32>) {
            let at = format!("sys/bus/pci/devices/{address}");
            self.folder(&format!("sys/kernel/iommu_groups/{group}"));
            self.folder(&at);
            if let Some(own) = own {
                self.folder(&format!("{at}/vfio-dev/vfio{own}"));
            }
            let at = self.0.path().join(at);
            symlink(Path::new("../groups").join(group), at.join("iommu_group")).unwrap();
            symlink(Path::new("../drivers").join(driver), at.join("driver")).unwrap();
        }
    }

    fn assert_finding(finding: &Finding, state: State, found: &str, advice: &[&str]) {
        let Finding { name, found: text, advice: told, .. } = finding;
        assert!(finding.state == state, "{name}: {text}");
        assert!(text.contains(found), "{name}: {text}");
        let told = told.as_deref().unwrap_or_default();
        assert_eq!(told.is_empty(), advice.is_empty(), "{name}: {told}");
        assert!(!told.contains('\n'), "{name}: {told}");
        advice.iter().for_each(|word| assert!(told.contains(word), "{name}: {word} in {told}"));
    }

    #[test]
    fn without_an_iommu_the_advice_is_to_turn_it_on() {
        let machine = Machine::new();
        let iommus = machine.iommus();
        assert_finding(&iommu(&iommus), State::No, "none", &["firmware", "intel_iommu=on"]);
        assert_finding(&interrupts(&iommus), State::No, "no IOMMU", &["see IOMMU"]);
        machine.folder("sys/class/iommu/dmar0");
        assert_finding(&iommu(&iommus), State::No, "dmar0, but no device", &["intel_iommu=on"]);
    }

    #[test]
    fn units_and_groups_are_counted() {
        let machine = Machine::new();
        for unit in 0..6 {
            machine.folder(&format!("sys/class/iommu/dmar{unit}"));
        }
        for group in 0..23 {
            machine.folder(&format!("sys/kernel/iommu_groups/{group}"));
        }
        let found = "dmar0, dmar1, dmar2, dmar3 and 2 more; 23 groups of devices";
        assert_finding(&iommu(&machine.iommus()), State::Yes, found, &[]);
    }

    #[test]
    fn interrupts_are_remapped_or_allowed_without_it_or_refused() {
        let machine = Machine::new();
        let iommus = machine.iommus();
        machine.folder("sys/class/iommu/virtio0");
        machine.file("proc/interrupts", "  2:  1  IO-APIC  2-edge  timer\n");
        let allow = "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts";
        machine.file(allow, "N\n");
        assert_finding(&interrupts(&iommus), State::No, "none", &["firmware", allow]);
        machine.file(allow, "Y\n");
        let without = "vfio_iommu_type1 gives devices";
        assert_finding(&interrupts(&iommus), State::Limited, without, &["trusted"]);
        machine.file("proc/interrupts", "  2:  1  IR-IO-APIC  2-edge  timer\n");
        assert_finding(&interrupts(&iommus), State::Yes, "only their own", &[]);
    }

    #[test]
    fn the_reason_why_a_file_cannot_be_opened_is_named() {
        let error = |errno| io::Error::from_raw_os_error(errno);
        for absent in [libc::ENOENT, libc::ENODEV] {
            let finding = container_of_vfio(Err(error(absent)), None);
            assert_finding(&finding, State::No, "no /dev/vfio/vfio", &["modprobe vfio-pci"]);
            let finding = iommufd_device(Err(error(absent)));
            assert_finding(&finding, State::No, "no /dev/iommu", &["CONFIG_IOMMUFD"]);
        }
        let finding = iommufd_device(Err(error(libc::EACCES)));
        assert_finding(&finding, State::No, "may not open", &["chmod /dev/iommu"]);
        let finding = container_of_vfio(Err(error(libc::EMFILE)), None);
        assert_finding(&finding, State::No, "Too many open files", &["kernel log"]);
        let finding = container_of_vfio(Ok(false), None);
        assert_finding(&finding, State::Limited, "type 1 is not", &["vfio_iommu_type1"]);
        let finding = container_of_vfio(Ok(true), Some(65535));
        assert_finding(&finding, State::Yes, "type 1, 65535 mappings per container", &[]);
        assert_finding(&iommufd_device(Ok(())), State::Yes, "/dev/iommu opens", &[]);
    }

    #[test]
    fn devices_are_named_with_the_files_that_this_user_may_open() {
        let machine = Machine::new();
        machine.device("0000:01:00.0", "7", "nvme", None);
        let all = |_: &Path| Ok(());
        let found = |interface, may_open: &dyn Fn(&Path) -> io::Result<()>| {
            device_files(interface, &for_processes(&machine.iommus(), may_open))
        };
        let none = found(Interface::Vfio, &all);
        assert_finding(&none, State::No, "no device", &["driver_override", "drivers_probe"]);
        assert_finding(&found(Interface::Iommufd, &all), State::No, "no device", &["for VFIO"]);

        machine.device("0000:02:00.0", "8", "vfio-pci", Some(0));
        machine.device("0000:03:00.0", "9", "vfio-pci", None);
        let both = "0000:02:00.0 (/dev/vfio/8), 0000:03:00.0 (/dev/vfio/9)";
        assert_finding(&found(Interface::Vfio, &all), State::Yes, both, &[]);
        let own = "0000:02:00.0 (/dev/vfio/devices/vfio0)";
        assert_finding(&found(Interface::Iommufd, &all), State::Yes, own, &[]);

        let all_but_9 = |path: &Path| match path.ends_with("9") {
            true => Err(ErrorKind::PermissionDenied.into()),
            false => Ok(()),
        };
        let part = "0000:02:00.0 (/dev/vfio/8); this user may not open 0000:03:00.0 (/dev/vfio/9)";
        assert_finding(&found(Interface::Vfio, &all_but_9), State::Limited, part, &["udev rule"]);
        let nothing = |_: &Path| Err(ErrorKind::PermissionDenied.into());
        assert_finding(&found(Interface::Iommufd, &nothing), State::No, own, &["chown"]);
    }

    #[test]
    fn a_kernel_without_character_devices_for_vfio_is_reported() {
        let machine = Machine::new();
        machine.device("0000:02:00.0", "8", "vfio-pci", None);
        let devices = for_processes(&machine.iommus(), |_| Ok(()));
        let finding = device_files(Interface::Iommufd, &devices);
        assert_finding(&finding, State::No, "no character devices", &["CONFIG_VFIO_DEVICE_CDEV"]);
    }

    #[test]
    fn the_locked_memory_limit_is_reported_as_mappable_bytes() {
        let finding = locked_memory(Some(8 << 20), false);
        assert_finding(&finding, State::Limited, "8.39 MB can be mapped", &["ulimit -l"]);
        assert_finding(&locked_memory(Some(8 << 20), true), State::Yes, "none for this user", &[]);
        assert_finding(&locked_memory(Some(2 << 30), false), State::Yes, "with iommufd", &[]);
        assert_finding(&locked_memory(None, false), State::Yes, "none", &[]);
    }
}
