//! The device that the arguments name.

use longshore_domain::{Builder, Domain};
use longshore_nvme::controller::{Controller, Namespace, Options};
use longshore_nvme::hardware::Passed;

use crate::args::DeviceArgs;
use crate::failure::Result;

pub(crate) fn open(args: &DeviceArgs) -> Result<(Builder, Passed)> {
    Ok(args.backend.interface().open(&args.device)?)
}

pub(crate) fn start<'d>(
    domain: &'d Domain,
    passed: Passed,
    args: &DeviceArgs,
) -> Result<(Controller<'d>, Namespace)> {
    let options = Options { format: args.pointers.format(), ..Options::default() };
    let controller = Controller::new(domain, passed, options)?;
    let namespace = controller.namespace(args.namespace)?;
    Ok((controller, namespace))
}
