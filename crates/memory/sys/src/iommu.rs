//! The machine's IOMMUs and the devices behind them, read from `/sys` and `/proc/interrupts`.
//!
//! ```text
//!   /sys/class/iommu/dmar0               a unit
//!   /sys/kernel/iommu_groups/7           devices that no unit can isolate from each other
//!   /sys/bus/pci/devices/0000:01:00.0    iommu_group ─► 7, driver ─► vfio-pci, vfio-dev/vfio0
//!   /proc/interrupts                     interrupt chips: "IR-" or "ITS-" if interrupts are remapped
//! ```

use std::fs;
use std::path::{Path, PathBuf};

/// A PCI device, its IOMMU group and its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Its address, such as `0000:01:00.0`.
    pub address: String,
    /// Its IOMMU group; `None` if it is not behind an IOMMU.
    pub group: Option<u32>,
    /// Its driver.
    pub driver: Option<String>,
    /// The number by which it can be opened without its group: 7 means `/dev/vfio/devices/vfio7`.
    pub vfio_number: Option<u32>,
}

impl PciDevice {
    /// Returns `true` if its driver gives it to processes: vfio-pci, or a variant of it for one kind of
    /// device.
    pub fn is_for_processes(&self) -> bool {
        self.driver.as_deref().is_some_and(|driver| driver.replace('_', "-").contains("vfio-pci"))
    }
}

/// The kernel's information about IOMMUs. Without any, all lists are empty.
#[derive(Clone, Debug)]
pub struct Iommus {
    root: PathBuf,
}

impl Iommus {
    /// Returns the IOMMUs of this machine.
    pub fn of_this_machine() -> Self {
        Self::below("/")
    }

    /// Returns the IOMMUs of a machine whose `sys` and `proc` are in this folder.
    pub fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Returns the names of the units, sorted.
    pub fn units(&self) -> Vec<String> {
        names(&self.root.join("sys/class/iommu"))
    }

    /// Returns the numbers of the groups, sorted.
    pub fn groups(&self) -> Vec<u32> {
        let mut groups: Vec<u32> = names(&self.root.join("sys/kernel/iommu_groups"))
            .iter()
            .filter_map(|name| name.parse().ok())
            .collect();
        groups.sort_unstable();
        groups
    }

    /// Returns the PCI devices, sorted by address.
    pub fn pci_devices(&self) -> Vec<PciDevice> {
        let folder = self.root.join("sys/bus/pci/devices");
        let device = |address: String| {
            let own = folder.join(&address);
            let numbered = names(&own.join("vfio-dev"));
            PciDevice {
                group: target(&own.join("iommu_group")).and_then(|name| name.parse().ok()),
                driver: target(&own.join("driver")),
                vfio_number: numbered
                    .iter()
                    .find_map(|name| name.strip_prefix("vfio")?.parse().ok()),
                address,
            }
        };
        names(&folder).into_iter().map(device).collect()
    }

    /// Returns `true` if interrupts are remapped, so that a device can raise only its own. The kernel
    /// does not report this directly, but the names of interrupt chips show it. On a machine with
    /// several units, this means that one of them remaps interrupts; the kernel itself checks the unit
    /// of the device.
    pub fn remaps_interrupts(&self) -> bool {
        let text = fs::read_to_string(self.root.join("proc/interrupts")).unwrap_or_default();
        text.split_whitespace().any(|word| word.starts_with("IR-") || word.starts_with("ITS-"))
    }

    /// Returns `true` if `module` (`vfio_iommu_type1` or `iommufd`) accepts devices whose interrupts are
    /// not remapped; `None` if it is not loaded.
    pub fn allows_unsafe_interrupts(&self, module: &str) -> Option<bool> {
        Some(self.parameter(module, "allow_unsafe_interrupts")? == "Y")
    }

    /// Returns the maximum number of mappings of a VFIO container; `None` if its module is not loaded.
    pub fn vfio_mappings_limit(&self) -> Option<u64> {
        self.parameter("vfio_iommu_type1", "dma_entry_limit")?.parse().ok()
    }

    fn parameter(&self, module: &str, name: &str) -> Option<String> {
        let path = self.root.join("sys/module").join(module).join("parameters").join(name);
        Some(fs::read_to_string(path).ok()?.trim().to_owned())
    }
}

/// Returns the sorted names in a folder; none if it does not exist.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// Returns the last component of the target of a link.
fn target(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    #[test]
    fn a_machine_without_iommus_has_empty_lists() {
        let dir = tempfile::tempdir().unwrap();
        let iommus = Iommus::below(dir.path());
        assert!(iommus.units().is_empty() && iommus.groups().is_empty());
        assert!(iommus.pci_devices().is_empty() && !iommus.remaps_interrupts());
        assert_eq!(iommus.allows_unsafe_interrupts("iommufd"), None);
        assert_eq!(iommus.vfio_mappings_limit(), None);
    }

    #[test]
    fn units_groups_devices_and_settings_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let (root, sys) = (dir.path(), dir.path().join("sys"));
        for unit in ["dmar1", "dmar0"] {
            fs::create_dir_all(sys.join("class/iommu").join(unit)).unwrap();
        }
        for group in ["2", "10"] {
            fs::create_dir_all(sys.join("kernel/iommu_groups").join(group)).unwrap();
        }
        for (address, group, driver) in [
            ("0000:02:00.0", Some("10"), Some("nvme_vfio_pci")),
            ("0000:01:00.0", Some("2"), Some("nvme")),
            ("0000:03:00.0", None, None),
        ] {
            let device = sys.join("bus/pci/devices").join(address);
            fs::create_dir_all(&device).unwrap();
            for (name, target) in [("iommu_group", group), ("driver", driver)] {
                if let Some(target) = target {
                    symlink(Path::new("../../../..").join(target), device.join(name)).unwrap();
                }
            }
        }
        fs::create_dir_all(sys.join("bus/pci/devices/0000:02:00.0/vfio-dev/vfio3")).unwrap();
        write(root, "sys/module/iommufd/parameters/allow_unsafe_interrupts", "Y\n");
        write(root, "sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts", "N\n");
        write(root, "sys/module/vfio_iommu_type1/parameters/dma_entry_limit", "65535\n");

        let iommus = Iommus::below(root);
        assert_eq!(iommus.units(), ["dmar0", "dmar1"]);
        assert_eq!(iommus.groups(), [2, 10]);
        let devices = iommus.pci_devices();
        let device = |address: &str, group, driver: Option<&str>, vfio_number| {
            let driver = driver.map(str::to_owned);
            PciDevice { address: address.to_owned(), group, driver, vfio_number }
        };
        assert_eq!(
            devices,
            [
                device("0000:01:00.0", Some(2), Some("nvme"), None),
                device("0000:02:00.0", Some(10), Some("nvme_vfio_pci"), Some(3)),
                device("0000:03:00.0", None, None, None),
            ]
        );
        let is_for_processes: Vec<_> = devices.iter().map(PciDevice::is_for_processes).collect();
        assert_eq!(is_for_processes, [false, true, false]);
        assert_eq!(iommus.allows_unsafe_interrupts("iommufd"), Some(true));
        assert_eq!(iommus.allows_unsafe_interrupts("vfio_iommu_type1"), Some(false));
        assert_eq!(iommus.vfio_mappings_limit(), Some(65535));
    }

    #[test]
    fn remapping_is_detected_by_the_names_of_interrupt_chips() {
        for (line, remaps) in [
            ("  2:  1  IO-APIC   2-edge      timer", false),
            (" 24:  0  PCI-MSI-0000:00:02.0   0-edge  PCIe PME", false),
            ("  2:  1  IR-IO-APIC    2-edge      timer", true),
            (" 24:  0  IR-PCI-MSI-0000:00:02.0   0-edge  PCIe PME", true),
            (" 40:  0  ITS-PCI-MSI-0000:01:00.0  0 Edge  nvme0q0", true),
        ] {
            let dir = tempfile::tempdir().unwrap();
            write(dir.path(), "proc/interrupts", &format!("      CPU0\n{line}\n"));
            assert_eq!(Iommus::below(dir.path()).remaps_interrupts(), remaps, "{line}");
        }
    }
}
