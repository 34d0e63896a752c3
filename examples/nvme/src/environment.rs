//! The environment of a measurement.

use longshore::domain::{Bounce, Calibration};
use longshore_nvme::{Controller, Namespace};
use serde::Serialize;

use crate::args::DeviceArgs;
use crate::sysfs;

/// The first line of a bench.
#[derive(Serialize)]
pub(crate) struct Line {
    environment: Environment,
}

#[derive(Serialize)]
struct Environment {
    /// The release of the kernel.
    kernel: String,
    arch: &'static str,
    /// `intel`, `virtio`, or the kernel's name of the IOMMU.
    iommu: Option<String>,
    backend: &'static str,
    device: String,
    device_model: String,
    device_firmware: String,
    nvme_version: String,
    namespace_bytes: u64,
    lba_bytes: u64,
    max_transfer_bytes: u64,
    pointers: &'static str,
    granule_bytes: u64,
    doorbell_batch: u16,
    /// The length in bytes below which the scheme `policy` bounces transfers.
    policy_bounces_below_bytes: u64,
    calibration: Vec<Step>,
}

#[derive(Serialize)]
struct Step {
    len_bytes: u64,
    bounced_ns: u64,
    mapped_ns: u64,
}

impl Line {
    pub(crate) fn new(
        args: &DeviceArgs,
        controller: &Controller<'_>,
        namespace: &Namespace,
        calibration: &Calibration,
        doorbell_batch: u16,
    ) -> Self {
        let data = controller.identify();
        let ns = |time: std::time::Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let step = |step: &longshore::domain::CalibrationStep| Step {
            len_bytes: step.len_bytes,
            bounced_ns: ns(step.bounced),
            mapped_ns: ns(step.mapped),
        };
        Self {
            environment: Environment {
                kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
                arch: std::env::consts::ARCH,
                iommu: sysfs::iommu(&args.device),
                backend: args.backend.name(),
                device: args.device.clone(),
                device_model: data.model.clone(),
                device_firmware: data.firmware.clone(),
                nvme_version: controller.version().to_string(),
                namespace_bytes: namespace.len(),
                lba_bytes: namespace.block_bytes(),
                max_transfer_bytes: controller.max_transfer_bytes(),
                pointers: args.pointers.name(),
                granule_bytes: controller.domain().limits().granule.bytes(),
                doorbell_batch,
                policy_bounces_below_bytes: match calibration.bounce {
                    Bounce::Never => 0,
                    Bounce::Below(bytes) => bytes,
                    Bounce::Always => u64::MAX,
                },
                calibration: calibration.steps.iter().map(step).collect(),
            },
        }
    }
}
