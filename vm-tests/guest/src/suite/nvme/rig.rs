//! Controllers that are passed through to this process, and the kernel's messages.

use std::error::Error;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use longshore_domain::{Builder, Domain};
use longshore_nvme::{Controller, Interface, Namespace, Options, PciDevice};
use longshore_vm_tests::pattern;

pub(super) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Binds the device to vfio-pci. Behind virtio-iommu, which does not isolate interrupts, allows that.
pub(super) fn open(interface: Interface, address: &str) -> Result<(Builder, PciDevice)> {
    set_driver(address, Some("vfio-pci"))?;
    if !Path::new("/sys/class/iommu/dmar0").exists() {
        let module = match interface {
            Interface::Vfio => "vfio_iommu_type1",
            Interface::Iommufd => "iommufd",
        };
        fs::write(format!("/sys/module/{module}/parameters/allow_unsafe_interrupts"), "1")?;
    }
    Ok(interface.open(address)?)
}

/// Calls `work` with the controller at `address`.
pub(super) fn drive<R>(
    interface: Interface,
    address: &str,
    options: Options,
    work: impl for<'d> FnOnce(&'d Domain, &mut Controller<'d>, Namespace) -> Result<R>,
) -> Result<R> {
    let (builder, passed) = open(interface, address)?;
    let domain = builder.build();
    let mut controller = Controller::new(&domain, passed, options)?;
    let namespace = controller.namespace(1)?;
    let result = work(&domain, &mut controller, namespace)?;
    drop(controller);
    // Only pools may be left.
    domain.shrink(std::time::Duration::ZERO)?;
    let iovas = domain.iovas();
    if iovas.free_bytes() != iovas.all_bytes() {
        return Err(format!("something is still mapped: {iovas:?}").into());
    }
    if domain.counters().leaked != 0 {
        return Err(format!("memory was leaked: {:?}", domain.counters()).into());
    }
    Ok(result)
}

pub(super) fn set_driver(address: &str, driver: Option<&str>) -> Result<()> {
    let folder = Path::new("/sys/bus/pci/devices").join(address);
    let has = fs::read_link(folder.join("driver")).ok();
    let has = has.as_deref().and_then(Path::file_name).and_then(|name| name.to_str());
    if has == driver {
        return Ok(());
    }
    if has.is_some() {
        fs::write(folder.join("driver/unbind"), address)?;
    }
    fs::write(folder.join("driver_override"), format!("{}\n", driver.unwrap_or_default()))?;
    if driver.is_some() {
        fs::write("/sys/bus/pci/drivers_probe", address)?;
    }
    Ok(())
}

/// Fails if the bytes are not the content with this seed.
pub(super) fn expect(seed: u64, offset: u64, bytes: &[u8]) -> Result<()> {
    match pattern::first_difference(seed, offset, bytes) {
        None => Ok(()),
        Some(at) => {
            Err(format!("byte {at:#x} is wrong, in {:#x} bytes from {offset:#x}", bytes.len())
                .into())
        }
    }
}

/// The kernel's messages from its creation on.
pub(super) struct KernelLog(File);

impl KernelLog {
    pub(super) fn from_now() -> Result<Self> {
        let mut file =
            File::options().read(true).custom_flags(libc::O_NONBLOCK).open("/dev/kmsg")?;
        read_all(&mut file)?;
        Ok(Self(file))
    }

    /// Returns the faults that IOMMUs have reported.
    pub(super) fn faults(&mut self) -> Result<Vec<String>> {
        let lines = read_all(&mut self.0)?;
        let is_fault = |line: &String| {
            let line = line.to_lowercase();
            line.contains("fault") && (line.contains("dmar") || line.contains("iommu"))
        };
        Ok(lines.into_iter().filter(is_fault).collect())
    }
}

/// Reads one message at a time, until there is none.
fn read_all(file: &mut File) -> Result<Vec<String>> {
    let mut lines = Vec::new();
    let mut record = [0; 8192];
    loop {
        match file.read(&mut record) {
            Ok(len) => lines.push(String::from_utf8_lossy(&record[..len]).into_owned()),
            Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => return Ok(lines),
            // Older messages were overwritten; the next read continues after them.
            Err(error) if error.raw_os_error() == Some(libc::EPIPE) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
