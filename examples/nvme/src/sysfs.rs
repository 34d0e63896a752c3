//! Reads the properties of a device from sysfs, and binds it to drivers.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};

const DEVICES: &str = "/sys/bus/pci/devices";
/// The parameters that allow devices whose interrupts cannot be isolated.
const UNSAFE_INTERRUPTS: [&str; 2] = [
    "/sys/module/vfio_iommu_type1/parameters/allow_unsafe_interrupts",
    "/sys/module/iommufd/parameters/allow_unsafe_interrupts",
];

/// Returns the IOMMU of a device: `intel`, `virtio`, or the kernel's name of it.
pub(crate) fn iommu(address: &str) -> Option<String> {
    let target = fs::read_link(folder(address).ok()?.join("iommu")).ok()?;
    let name = target.file_name()?.to_str()?;
    Some(match () {
        () if name.starts_with("dmar") => "intel".to_owned(),
        () if target.to_string_lossy().contains("/virtio") => "virtio".to_owned(),
        () => name.to_owned(),
    })
}

/// Unbinds the device from its driver, and binds it to another.
pub(crate) fn bind(address: &str, driver: &str) -> Result<()> {
    let folder = folder(address)?;
    let has = link(&folder, "driver");
    if has.as_deref() == Some(driver) {
        return Ok(());
    }
    if has.is_some() {
        write(&folder.join("driver/unbind"), address)?;
    }
    if driver == "none" {
        return write(&folder.join("driver_override"), "\n");
    }
    write(&folder.join("driver_override"), &format!("{driver}\n"))?;
    write(Path::new("/sys/bus/pci/drivers_probe"), address)?;
    match link(&folder, "driver") {
        Some(now) if now == driver => Ok(()),
        now => Err(Failure::Io {
            operation: format!(
                "binding {address} to {driver} (it has {} now); try modprobe {driver}",
                now.as_deref().unwrap_or("no driver")
            ),
            source: io::ErrorKind::NotFound.into(),
        }),
    }
}

/// Sets the parameter of each interface whose module is loaded.
pub(crate) fn allow_unsafe_interrupts() -> Result<()> {
    let mut there = UNSAFE_INTERRUPTS.iter().map(Path::new).filter(|path| path.exists());
    there.try_for_each(|path| write(path, "1"))
}

fn folder(address: &str) -> Result<PathBuf> {
    let is_name = address.bytes().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(&byte));
    let folder = Path::new(DEVICES).join(address);
    if is_name && address.contains(':') && folder.is_dir() {
        return Ok(folder);
    }
    Err(Failure::Io {
        operation: format!(
            "finding the PCI device {address:?} (such as 0000:00:05.0) in {DEVICES}"
        ),
        source: io::ErrorKind::NotFound.into(),
    })
}

/// Returns the last component of the target of a link.
fn link(folder: &Path, name: &str) -> Option<String> {
    let target = fs::read_link(folder.join(name)).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).map_err(|source| {
        let operation = format!("writing {:?} to {}", text.trim_end(), path.display());
        Failure::Io { operation, source }
    })
}
