//! Finds a device, checks that it is safe to use, and reports what to do if it is not.

use std::fs;
use std::io;
use std::path::PathBuf;

use longshore_mem::{AddrRange, Iova};
use thiserror::Error;

/// The reason that a device could not be opened. The message says what the administrator of the
/// machine must do.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name is not the address of a PCI device.
    #[error("{address:?} is not an address of a PCI device (expected one such as 0000:01:00.0)")]
    Name {
        /// The name.
        address: String,
    },
    /// There is no such device.
    #[error("there is no PCI device {address}; list the devices with: ls /sys/bus/pci/devices")]
    NoDevice {
        /// The device.
        address: String,
    },
    /// The device is not behind an IOMMU.
    #[error(
        "{address} is not behind an IOMMU: turn it on in the firmware (VT-d, AMD-Vi, SMMU) and for the \
         kernel (intel_iommu=on; the module virtio-iommu in a guest)"
    )]
    NoIommu {
        /// The device.
        address: String,
    },
    /// The device is not bound to a VFIO driver.
    #[error(
        "{address} {}: bind it to vfio-pci: modprobe vfio-pci; \
         echo vfio-pci > /sys/bus/pci/devices/{address}/driver_override; {}\
         echo {address} > /sys/bus/pci/drivers_probe",
        driver.as_ref().map_or_else(|| "has no driver".to_owned(), |name| format!("has the driver {name}")),
        driver.as_ref().map_or_else(String::new, |_| format!("echo {address} > /sys/bus/pci/devices/{address}/driver/unbind; ")),
    )]
    OtherDriver {
        /// The device.
        address: String,
        /// Its driver.
        driver: Option<String>,
    },
    /// The kernel uses another device of its IOMMU group.
    #[error(
        "{address} shares IOMMU group {group} with {neighbour}, which has the driver {driver}: the \
         IOMMU cannot isolate the two, so bind that one to vfio-pci too, or unbind it: \
         echo {neighbour} > /sys/bus/pci/devices/{neighbour}/driver/unbind"
    )]
    Neighbour {
        /// The device.
        address: String,
        /// The group.
        group: u32,
        /// The other device.
        neighbour: String,
        /// Its driver.
        driver: String,
    },
    /// The kernel reports that a device of the group is in use.
    #[error(
        "the kernel uses a device of IOMMU group {group}, which {address} is in: check the drivers of \
         the devices in /sys/kernel/iommu_groups/{group}/devices"
    )]
    NotViable {
        /// The device.
        address: String,
        /// The group.
        group: u32,
    },
    /// A file of the interface does not exist.
    #[error("there is no {path}: run modprobe {module}, or use a kernel that has it")]
    NoInterface {
        /// The file.
        path: PathBuf,
        /// The module that provides it.
        module: &'static str,
    },
    /// This process may not open a file of the interface.
    #[error(
        "{path} may not be opened by this user: chown or chmod it (a udev rule makes that last)"
    )]
    NoAccess {
        /// The file.
        path: PathBuf,
    },
    /// Another process has the device.
    #[error("{what} is in use: another process has it open (fuser -v {what})")]
    InUse {
        /// The file, or the device.
        what: String,
    },
    /// The interrupts of the device cannot be isolated.
    #[error(
        "the interrupts of {address} cannot be isolated, so the kernel refuses it: turn on interrupt \
         remapping, or, if the device is trusted: \
         echo 1 > /sys/module/{module}/parameters/allow_unsafe_interrupts"
    )]
    UnsafeInterrupts {
        /// The device.
        address: String,
        /// The module that refuses.
        module: &'static str,
    },
    /// The kernel does not have a required feature.
    #[error("{what} cannot be used")]
    Unsupported {
        /// The part of the kernel or the device that cannot be used.
        what: &'static str,
    },
    /// The kernel returned another error.
    #[error("{operation}: {source}")]
    Io {
        /// The operation that was requested.
        operation: &'static str,
        /// The error of the kernel.
        #[source]
        source: io::Error,
    },
}

impl OpenError {
    pub(super) fn io(operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { operation, source }
    }

    /// Returns the error for a file of the interface, which `module` provides, that could not be opened.
    pub(super) fn opening(path: PathBuf, module: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => Self::NoInterface { path, module },
            Some(libc::EACCES | libc::EPERM) => Self::NoAccess { path },
            Some(libc::EBUSY) => Self::InUse { what: path.display().to_string() },
            _ => Self::Io { operation: "opening a file of VFIO or iommufd", source },
        }
    }

    /// Returns the error for a device, opened by `path`, that could not be bound.
    #[cfg(feature = "iommufd")]
    pub(super) fn binding(found: &Found, path: &std::path::Path, source: io::Error) -> Self {
        match source.raw_os_error() {
            // Linux 6.12 returns EINVAL for a device that is bound already.
            Some(libc::EBUSY | libc::EINVAL) => Self::InUse { what: path.display().to_string() },
            _ => Self::isolation(found, "iommufd", "binding the device to an iommufd", source),
        }
    }

    /// Returns the error for a device, or its group, that could not be attached to an address space.
    pub(super) fn isolation(
        found: &Found,
        module: &'static str,
        operation: &'static str,
        source: io::Error,
    ) -> Self {
        match source.raw_os_error() {
            Some(libc::EPERM) => Self::UnsafeInterrupts { address: found.address.clone(), module },
            _ => Self::Io { operation, source },
        }
    }
}

/// A device that is safe to use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// The name of the device in sysfs.
    pub(super) address: String,
    pub(super) group: u32,
}

/// The kernel's description of its devices.
#[derive(Debug)]
pub(super) struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    pub(super) fn of_this_machine() -> Self {
        Self { root: PathBuf::from("/sys") }
    }

    /// Finds the device, and checks that the kernel uses no device of its group.
    pub(super) fn find(&self, address: &str) -> Result<Found, OpenError> {
        if !is_pci_address(address) {
            return Err(OpenError::Name { address: address.to_owned() });
        }
        let address = address.to_ascii_lowercase();
        if !self.folder(&address).is_dir() {
            return Err(OpenError::NoDevice { address });
        }
        let Some(group) = self.link(&address, "iommu_group").and_then(|name| name.parse().ok())
        else {
            return Err(OpenError::NoIommu { address });
        };
        let driver = self.link(&address, "driver");
        if !driver.as_deref().is_some_and(is_of_vfio) {
            return Err(OpenError::OtherDriver { address, driver });
        }
        self.check_neighbours(&address, group)?;
        Ok(Found { address, group })
    }

    /// Returns the number in the device's own file of VFIO: 7 for `vfio-dev/vfio7`.
    #[cfg(feature = "iommufd")]
    pub(super) fn device_number(&self, found: &Found) -> Result<u32, OpenError> {
        let folder = self.folder(&found.address).join("vfio-dev");
        let names = fs::read_dir(&folder).into_iter().flatten().flatten();
        names
            .filter_map(|entry| entry.file_name().to_str()?.strip_prefix("vfio")?.parse().ok())
            .next()
            .ok_or(OpenError::NoInterface { path: folder, module: "vfio_pci" })
    }

    /// Returns the bus addresses of registers of devices, and of windows of bridges. A DMA to such an
    /// address may reach another device, or the same one, without passing the IOMMU.
    pub(super) fn bus_windows(&self) -> Vec<AddrRange<Iova>> {
        /// `IORESOURCE_MEM` of the kernel.
        const MEMORY: u64 = 0x200;
        let devices = fs::read_dir(self.root.join("bus/pci/devices"));
        let lists = devices.into_iter().flatten().flatten();
        let lists =
            lists.filter_map(|entry| fs::read_to_string(entry.path().join("resource")).ok());
        let mut windows = Vec::new();
        for list in lists {
            for line in list.lines() {
                let number =
                    |word: &str| u64::from_str_radix(word.trim_start_matches("0x"), 16).ok();
                let words: Vec<_> = line.split_whitespace().filter_map(number).collect();
                let [start, last, flags] = words[..] else { continue };
                let len_bytes = last.checked_sub(start).map_or(0, |len| len.saturating_add(1));
                if flags & MEMORY != 0
                    && start != 0
                    && let Ok(window) = AddrRange::new(Iova::new(start), len_bytes)
                {
                    windows.push(window);
                }
            }
        }
        windows
    }

    fn check_neighbours(&self, address: &str, group: u32) -> Result<(), OpenError> {
        let folder = self.root.join(format!("kernel/iommu_groups/{group}/devices"));
        let listing = fs::read_dir(folder).map_err(OpenError::io("listing the group's devices"))?;
        for entry in listing {
            let entry = entry.map_err(OpenError::io("listing the group's devices"))?;
            let neighbour = entry.file_name().to_string_lossy().into_owned();
            match self.link(&neighbour, "driver") {
                Some(driver) if !is_harmless(&driver) => {
                    let address = address.to_owned();
                    return Err(OpenError::Neighbour { address, group, neighbour, driver });
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn folder(&self, address: &str) -> PathBuf {
        self.root.join("bus/pci/devices").join(address)
    }

    /// Returns the last component of the target of a link in the device's folder.
    fn link(&self, address: &str, name: &str) -> Option<String> {
        let target = fs::read_link(self.folder(address).join(name)).ok()?;
        Some(target.file_name()?.to_str()?.to_owned())
    }
}

/// Returns true for vfio-pci, and for its variants for certain devices.
fn is_of_vfio(driver: &str) -> bool {
    driver.replace('_', "-").contains("vfio-pci")
}

/// Returns true for drivers that the kernel accepts beside VFIO's, because they do no DMA.
fn is_harmless(driver: &str) -> bool {
    is_of_vfio(driver) || matches!(driver, "pci-stub" | "pcieport")
}

/// Returns true for an address `DDDD:BB:DD.F` in hexadecimal digits.
fn is_pci_address(address: &str) -> bool {
    let bytes = address.as_bytes();
    let Some(domain_len) = bytes.len().checked_sub(8) else { return false };
    let (domain, rest) = bytes.split_at(domain_len);
    let is_hex = |bytes: &[u8]| bytes.iter().all(u8::is_ascii_hexdigit);
    (4..=8).contains(&domain.len())
        && is_hex(domain)
        && matches!(rest, [b':', b1, b0, b':', d1, d0, b'.', b'0'..=b'7'] if is_hex(&[*b1, *b0, *d1, *d0]))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use super::*;

    const DEVICE: &str = "0000:01:00.0";

    struct Machine {
        folder: tempfile::TempDir,
    }

    impl Machine {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }

        fn at(&self, path: impl AsRef<Path>) -> PathBuf {
            self.folder.path().join(path)
        }

        fn device(&self, address: &str, group: Option<u32>, driver: Option<&str>) {
            let folder = self.at("bus/pci/devices").join(address);
            fs::create_dir_all(&folder).unwrap();
            if let Some(group) = group {
                let devices = self.at(format!("kernel/iommu_groups/{group}/devices"));
                fs::create_dir_all(&devices).unwrap();
                fs::write(devices.join(address), "").unwrap();
                symlink(devices.parent().unwrap(), folder.join("iommu_group")).unwrap();
            }
            if let Some(driver) = driver {
                symlink(self.at("bus/pci/drivers").join(driver), folder.join("driver")).unwrap();
            }
        }

        fn find(&self, address: &str) -> Result<Found, OpenError> {
            Sysfs { root: self.folder.path().to_owned() }.find(address)
        }
    }

    #[test]
    fn a_device_of_vfio_alone_in_its_group_is_found() {
        let machine = Machine::new();
        machine.device(DEVICE, Some(7), Some("vfio-pci"));
        machine.device("0000:02:00.0", Some(8), Some("nvme"));
        assert_eq!(machine.find(DEVICE).unwrap(), Found { address: DEVICE.into(), group: 7 });
    }

    #[test]
    fn neighbours_must_have_no_driver_that_does_dma() {
        for (driver, is_safe) in [
            (None, true),
            (Some("vfio-pci"), true),
            (Some("nvme_vfio_pci"), true),
            (Some("pci-stub"), true),
            (Some("pcieport"), true),
            (Some("snd_hda_intel"), false),
        ] {
            let machine = Machine::new();
            machine.device(DEVICE, Some(7), Some("vfio-pci"));
            machine.device("0000:01:00.1", Some(7), driver);
            let found = machine.find(DEVICE);
            assert_eq!(found.is_ok(), is_safe, "{driver:?}");
            if let Err(error) = found {
                let text = error.to_string();
                assert!(text.contains("group 7") && text.contains("snd_hda_intel"), "{text}");
                assert!(text.contains("0000:01:00.1/driver/unbind"), "{text}");
            }
        }
    }

    #[test]
    fn each_refusal_says_what_to_do() {
        let machine = Machine::new();
        machine.device(DEVICE, Some(7), Some("nvme"));
        let text = machine.find(DEVICE).unwrap_err().to_string();
        assert!(text.contains("driver nvme") && text.contains("driver/unbind"), "{text}");
        assert!(text.contains("echo 0000:01:00.0 > /sys/bus/pci/drivers_probe"), "{text}");
        machine.device("0000:03:00.0", Some(9), None);
        let text = machine.find("0000:03:00.0").unwrap_err().to_string();
        assert!(text.contains("no driver") && !text.contains("unbind"), "{text}");
        machine.device("0000:04:00.0", None, Some("vfio-pci"));
        let error = machine.find("0000:04:00.0").unwrap_err();
        assert!(matches!(error, OpenError::NoIommu { .. }), "{error}");
        let error = machine.find("0000:05:00.0").unwrap_err();
        assert!(matches!(error, OpenError::NoDevice { .. }), "{error}");
    }

    #[test]
    fn names_are_checked_before_they_are_used_in_paths() {
        for good in ["0000:01:00.0", "10000:E1:1f.7"] {
            assert!(is_pci_address(good), "{good}");
        }
        let bad = ["", "01:00.0", "0000:01:00.8", "0000:01:00", "../../:01:00.0", "0000:01:0g.0"];
        for bad in bad {
            assert!(!is_pci_address(bad), "{bad}");
            let refused = Machine::new().find(bad).unwrap_err();
            assert!(matches!(refused, OpenError::Name { .. }), "{refused}");
        }
    }

    #[test]
    fn memory_resources_of_devices_are_bus_windows() {
        let machine = Machine::new();
        machine.device(DEVICE, Some(7), Some("vfio-pci"));
        machine.device("0000:02:00.0", Some(8), None);
        let resources = "0x00000000fea00000 0x00000000fea03fff 0x0000000000140204\n\
                         0x000000000000c000 0x000000000000c03f 0x0000000000040101\n\
                         0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        fs::write(machine.at("bus/pci/devices").join(DEVICE).join("resource"), resources).unwrap();
        let sysfs = Sysfs { root: machine.folder.path().to_owned() };
        let window = AddrRange::new(Iova::new(0xfea0_0000), 0x4000).unwrap();
        assert_eq!(sysfs.bus_windows(), [window]);
        assert_eq!(Sysfs { root: machine.at("nowhere") }.bus_windows(), []);
    }

    #[cfg(feature = "iommufd")]
    #[test]
    fn a_devices_number_is_read() {
        let machine = Machine::new();
        machine.device(DEVICE, Some(7), Some("vfio-pci"));
        let (found, sysfs) =
            (machine.find(DEVICE).unwrap(), Sysfs { root: machine.folder.path().to_owned() });
        assert!(matches!(sysfs.device_number(&found), Err(OpenError::NoInterface { .. })));
        fs::create_dir_all(machine.at("bus/pci/devices/0000:01:00.0/vfio-dev/vfio12")).unwrap();
        assert_eq!(sysfs.device_number(&found).unwrap(), 12);
    }

    #[test]
    fn kernel_errors_are_translated() {
        let opening = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            OpenError::opening("/dev/vfio/7".into(), "vfio_pci", source)
        };
        assert!(opening(libc::ENOENT).to_string().contains("modprobe vfio_pci"));
        assert!(matches!(opening(libc::EACCES), OpenError::NoAccess { .. }));
        assert!(opening(libc::EBUSY).to_string().contains("fuser -v /dev/vfio/7"));
        assert!(matches!(opening(libc::EMFILE), OpenError::Io { .. }));
        let found = Found { address: DEVICE.into(), group: 7 };
        let refused = io::Error::from_raw_os_error(libc::EPERM);
        let text = OpenError::isolation(&found, "iommufd", "x", refused).to_string();
        assert!(text.contains("/sys/module/iommufd/parameters/allow_unsafe_interrupts"), "{text}");
    }
}
