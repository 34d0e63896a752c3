//! Address spaces of the kernel through VFIO: a container of type 1 with one group.
#![expect(unsafe_code, reason = "maps memory that the domain keeps")]

use std::io;

use longshore_mem::{AddrRange, Granule, Iova};
use longshore_pagetable::Prot;
use longshore_sys::vfio::{API_VERSION, CONTAINER, Container, Group, IommuType};

use super::device::Device;
use super::open::{Found, OpenError, Sysfs};
use super::pinned::{access, at_file, memory_advice, runs};
use super::{Backend, BackendError, Limits, Piece};

/// An address space of the kernel for the devices of one IOMMU group.
///
/// Mapping pins pages, which are charged to the locked memory of the user (`RLIMIT_MEMLOCK`). The number
/// of mappings is limited ([`available_mappings`](Self::available_mappings)). Memory that cannot be
/// pinned at its address in this process, such as a mapped dma-buf, is pinned through its memfd, if it
/// has one.
///
/// ```no_run
/// use longshore_domain::{Direction, Domain, backend::Vfio};
/// use longshore_heap::Heap;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (vfio, device) = Vfio::open_device("0000:01:00.0")?;
/// let domain = Domain::builder(vfio).build();
/// let buffer = Heap::Memfd.allocate(1 << 20)?;
/// let mapping = domain.map(buffer, Direction::FromDevice).map_err(|failed| failed.error)?;
/// device.set_bus_master(true)?;
/// let registers = device.map(&device.region(0)?)?;
/// registers.write_u64(0x10, mapping.iova().raw());
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Vfio {
    container: Container,
    // Held, so that no other process can open it.
    _group: Group,
    limits: Limits,
}

impl Vfio {
    /// Opens the PCI device at `address`, such as `0000:01:00.0`, in an address space of its group. The
    /// device does no DMA before [`Device::set_bus_master`].
    ///
    /// The descriptors of a device keep its address space alive, so a device that outlives the domain
    /// can reach only memory that the domain has leaked.
    ///
    /// # Errors
    /// [`OpenError`], which says what the administrator of the machine must do.
    pub fn open_device(address: &str) -> Result<(Self, Device), OpenError> {
        let sysfs = Sysfs::of_this_machine();
        let found = sysfs.find(address)?;
        let container = Container::open()
            .map_err(|source| OpenError::opening(CONTAINER.into(), "vfio_iommu_type1", source))?;
        let version =
            container.api_version().map_err(OpenError::io("asking for VFIO's version"))?;
        if version != API_VERSION {
            return Err(OpenError::Unsupported { what: "another version of VFIO's interface" });
        }
        let group = Group::open(found.group)
            .map_err(|source| OpenError::opening(Group::path(found.group), "vfio_pci", source))?;
        let status = group.status().map_err(OpenError::io("asking for the group's status"))?;
        if !status.is_viable {
            return Err(OpenError::NotViable { address: found.address, group: found.group });
        }
        group
            .set_container(&container)
            .map_err(OpenError::io("adding the group to a container"))?;
        set_iommu(&container, &found)?;
        let limits = Limits { reserved: sysfs.bus_windows(), ..limits(&container)? };
        let device = group.device(&found.address).map_err(OpenError::io("opening the device"))?;
        Ok((Self { container, _group: group, limits }, Device::new(device)))
    }

    /// Returns how many more mappings can be made now, if the kernel reports it (from Linux 5.10 on):
    /// the parameter `dma_entry_limit` of `vfio_iommu_type1`, less the present mappings.
    ///
    /// # Errors
    /// The errors of the kernel.
    pub fn available_mappings(&self) -> io::Result<Option<u32>> {
        Ok(self.container.info()?.available_mappings)
    }
}

fn set_iommu(container: &Container, found: &Found) -> Result<(), OpenError> {
    let kind = IommuType::Type1v2;
    let is_supported = container.supports(kind).map_err(OpenError::io("asking for type 1"))?;
    if !is_supported {
        return Err(OpenError::Unsupported {
            what: "VFIO without IOMMUs of type 1, version 2 (`modprobe vfio_iommu_type1`)",
        });
    }
    container.set_iommu(kind).map_err(|source| {
        OpenError::isolation(found, "vfio_iommu_type1", "making an address space", source)
    })
}

fn limits(container: &Container) -> Result<Limits, OpenError> {
    let info = container.info().map_err(OpenError::io("asking for the usable IOVAs"))?;
    let usable = info.iova_ranges.ok_or(OpenError::Unsupported {
        what: "a kernel that does not report the usable IOVAs (Linux 5.4 and later do)",
    })?;
    let smallest = info.page_sizes & info.page_sizes.wrapping_neg();
    let page_bytes = (longshore_sys::page_size_bytes() as u64).max(smallest);
    let granule = Granule::new(page_bytes).expect("the larger of two powers of two");
    Ok(Limits {
        granule,
        usable,
        reserved: Vec::new(),
        denies_reads: false,
        maps_cheaply: false,
        in_process: false,
    })
}

// SAFETY: type 1 unmaps and invalidates before the call returns, and it unmaps all of a range or fails.
// After a call that succeeds, no device can reach the range, also if nothing was mapped in it. A device
// can write only to mappings that were made writable.
unsafe impl Backend for Vfio {
    fn name(&self) -> &'static str {
        "vfio"
    }

    fn limits(&self) -> Limits {
        self.limits.clone()
    }

    unsafe fn map(&self, iova: Iova, piece: Piece<'_>, prot: Prot) -> Result<(), BackendError> {
        let access = access(prot);
        // SAFETY: the caller's promise.
        let mut done = unsafe { self.container.map(iova, piece.host, piece.len_bytes, access) };
        if at_file::is_called_for(&done, &piece) {
            done = at_file::with(&piece, |host| {
                // SAFETY: these are the pages of `piece`, for which the caller makes the same promise.
                unsafe { self.container.map(iova, host, piece.len_bytes, access) }
            });
        }
        done.map_err(|source| BackendError::Io {
            operation: match source.raw_os_error() {
                Some(libc::ENOSPC) => {
                    "mapping by VFIO (too many mappings: raise the parameter dma_entry_limit of \
                     vfio_iommu_type1, or bounce small transfers)"
                }
                _ => memory_advice(&source, "mapping by VFIO"),
            },
            source,
        })
    }

    unsafe fn unmap(&self, ranges: &[AddrRange<Iova>]) -> Result<(), BackendError> {
        for run in runs(ranges) {
            // This succeeds if an earlier call unmapped the range, and failed at a later one.
            let done = self.container.unmap(run.start(), run.len());
            done.map_err(|source| BackendError::Io { operation: "unmapping by VFIO", source })?;
        }
        Ok(())
    }
}
