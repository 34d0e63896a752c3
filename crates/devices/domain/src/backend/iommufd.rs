//! Address spaces of the kernel through iommufd. A device is opened by itself, without its group.
#![expect(unsafe_code, reason = "maps memory that the domain keeps")]

use std::io;

use longshore_mem::{AddrRange, FileOffset, Granule, Iova};
use longshore_pagetable::Prot;
use longshore_sys::iommufd::{DEVICE, Ioas, Iommufd as Descriptor};
use longshore_sys::vfio;

use super::device::Device;
use super::open::{OpenError, Sysfs};
use super::pinned::{access, at_file, memory_advice, runs};
use super::{Backend, BackendError, Limits, Piece};

/// An address space of the kernel, made through `/dev/iommu` (Linux 6.6 with `CONFIG_IOMMUFD` and
/// `CONFIG_VFIO_DEVICE_CDEV`).
///
/// Mapping pins pages, which are charged to the locked memory of the user (`RLIMIT_MEMLOCK`). Memory
/// that cannot be pinned at its address in this process, such as a mapped dma-buf, is pinned through its
/// memfd, if it has one.
#[derive(Debug)]
pub struct Iommufd {
    descriptor: Descriptor,
    ioas: Ioas,
    limits: Limits,
}

impl Iommufd {
    /// Opens the PCI device at `address`, such as `0000:01:00.0`, in an address space of its own. The
    /// device does no DMA before [`Device::set_bus_master`].
    ///
    /// A device that outlives the domain can reach only memory that the domain has leaked.
    ///
    /// # Errors
    /// [`OpenError`], which says what the administrator of the machine must do.
    pub fn open_device(address: &str) -> Result<(Self, Device), OpenError> {
        let sysfs = Sysfs::of_this_machine();
        let found = sysfs.find(address)?;
        let descriptor = Descriptor::open()
            .map_err(|source| OpenError::opening(DEVICE.into(), "iommufd", source))?;
        let number = sysfs.device_number(&found)?;
        let device = vfio::Device::open(number)
            .map_err(|source| OpenError::opening(vfio::Device::path(number), "vfio_pci", source))?;
        device
            .bind(&descriptor)
            .map_err(|source| OpenError::binding(&found, &vfio::Device::path(number), source))?;
        let ioas = descriptor.alloc_ioas().map_err(OpenError::io("making an address space"))?;
        device.attach(ioas).map_err(OpenError::io("attaching the device to an address space"))?;
        // After the device is attached, because its IOMMU limits the addresses.
        let limits = Limits { reserved: sysfs.bus_windows(), ..limits(&descriptor, ioas)? };
        Ok((Self { descriptor, ioas, limits }, Device::new(device)))
    }

    unsafe fn map_by_file(&self, iova: Iova, piece: &Piece<'_>, prot: Prot) -> io::Result<()> {
        if let Some((file, at)) = piece.file {
            let range = AddrRange::<FileOffset>::new(at, piece.len_bytes)
                .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
            // SAFETY: these are the pages of `piece`, for which the caller makes the same promise.
            let done =
                unsafe { self.descriptor.map_file(self.ioas, iova, file, range, access(prot)) };
            // Linux before 6.13 does not have this call.
            if done.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ENOTTY)) {
                return at_file::with(piece, |host| {
                    // SAFETY: the same pages again.
                    unsafe {
                        self.descriptor.map(self.ioas, iova, host, piece.len_bytes, access(prot))
                    }
                });
            }
            return done;
        }
        Err(io::Error::from_raw_os_error(libc::EFAULT))
    }
}

fn limits(descriptor: &Descriptor, ioas: Ioas) -> Result<Limits, OpenError> {
    let said =
        descriptor.iova_ranges(ioas).map_err(OpenError::io("asking for the usable IOVAs"))?;
    let page_bytes = (longshore_sys::page_size_bytes() as u64).max(said.alignment_bytes);
    let granule = Granule::new(page_bytes).map_err(|_| OpenError::Unsupported {
        what: "an alignment of addresses that is not a power of two",
    })?;
    Ok(Limits {
        granule,
        usable: said.ranges,
        reserved: Vec::new(),
        denies_reads: false,
        in_process: false,
        maps_cheaply: false,
    })
}

// SAFETY: iommufd unmaps and invalidates before the call returns, and it unmaps all of a range or fails.
// A device can write only to mappings that were made writable.
unsafe impl Backend for Iommufd {
    fn name(&self) -> &'static str {
        "iommufd"
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        // SAFETY: the caller's promise.
        let mut done = unsafe {
            self.descriptor.map(self.ioas, iova, piece.host, piece.len_bytes, access(prot))
        };
        if at_file::is_called_for(&done, &piece) {
            // SAFETY: the caller's promise.
            done = unsafe { self.map_by_file(iova, &piece, prot) };
        }
        done.map_err(|source| BackendError::Io {
            operation: memory_advice(&source, "mapping by iommufd"),
            source,
        })
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        for run in runs(ranges) {
            match self.descriptor.unmap(self.ioas, run.start(), run.len()) {
                Ok(_) => {}
                // Nothing is mapped: an earlier call unmapped this range, and failed at a later one.
                Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
                Err(source) => {
                    return Err(BackendError::Io { operation: "unmapping by iommufd", source });
                }
            }
        }
        Ok(())
    }
}
