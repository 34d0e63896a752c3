//! The commands of the program.

mod copy;
mod measure;

use longshore_nvme::{Controller, Options};
use serde_json::json;

use crate::args::{Args, Command, DeviceArgs};
use crate::device::open;
use crate::failure::Result;
use crate::sysfs;

pub(crate) fn run(args: Args) -> Result<()> {
    match args.command {
        Command::Info { device, json } => info(&device, json),
        Command::Bind { device, driver, allow_unsafe_interrupts } => {
            if allow_unsafe_interrupts {
                sysfs::allow_unsafe_interrupts()?;
            }
            sysfs::bind(&device, &driver)
        }
        Command::Bench(args) => measure::bench(&args),
        Command::Extents { file } => copy::extents(&file),
        Command::Load(args) => copy::load(&args),
        Command::Write(args) => copy::write(&args),
    }
}

fn info(args: &DeviceArgs, is_json: bool) -> Result<()> {
    let (builder, passed) = open(args)?;
    let domain = builder.build();
    let options = Options::default();
    let controller = Controller::new(&domain, passed, options)?;
    let (data, capabilities) = (controller.identify(), controller.capabilities());
    let mut namespaces = Vec::new();
    for id in controller.namespace_ids()? {
        namespaces.push((id, controller.namespace(id)));
    }
    if is_json {
        let namespaces: Vec<_> = namespaces
            .iter()
            .map(|(id, namespace)| match namespace {
                Ok(namespace) => json!({
                    "id": id,
                    "blocks": namespace.blocks,
                    "block_bytes": namespace.block_bytes(),
                }),
                Err(error) => json!({"id": id, "error": error.to_string()}),
            })
            .collect();
        println!(
            "{}",
            json!({
                "device": args.device,
                "backend": args.backend.name(),
                "iommu": sysfs::iommu(&args.device),
                "model": data.model,
                "serial": data.serial,
                "firmware": data.firmware,
                "version": controller.version().to_string(),
                "max_transfer_bytes": controller.max_transfer_bytes(),
                "depth_max": controller.depth_max(),
                "queues": controller.queues_left(),
                "doorbell_stride_bytes": capabilities.doorbell_stride_bytes(),
                "sgl": format!("{:?}", data.sgl),
                "has_write_cache": data.has_write_cache,
                "namespaces": namespaces,
            })
        );
        return Ok(());
    }
    println!("{} (serial {}, firmware {})", data.model, data.serial, data.firmware);
    println!(
        "  NVMe {}, {} queues of up to {} commands",
        controller.version(),
        controller.queues_left(),
        controller.depth_max()
    );
    println!(
        "  at most {} bytes per command; scatter-gather lists: {:?}; doorbells {} bytes apart",
        controller.max_transfer_bytes(),
        data.sgl,
        capabilities.doorbell_stride_bytes()
    );
    for (id, namespace) in namespaces {
        match namespace {
            Ok(namespace) => println!(
                "  namespace {id}: {} blocks of {} bytes",
                namespace.blocks,
                namespace.block_bytes()
            ),
            Err(error) => println!("  {error}"),
        }
    }
    Ok(())
}
