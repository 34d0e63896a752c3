//! Opens the device of the arguments.

use longshore::domain::{Builder, Domain};
use longshore_nvme::{Controller, Namespace, Options, PciDevice};

use crate::args::DeviceArgs;
use crate::failure::Result;

pub(crate) fn open(args: &DeviceArgs) -> Result<(Builder, PciDevice)> {
    Ok(args.backend.interface().open(&args.device)?)
}

pub(crate) fn start<'d>(
    domain: &'d Domain,
    passed: PciDevice,
    args: &DeviceArgs,
) -> Result<(Controller<'d>, Namespace)> {
    let options = Options::default().format(args.pointers.format());
    let controller = Controller::new(domain, passed, options)?;
    let namespace = controller.namespace(args.namespace)?;
    Ok((controller, namespace))
}
