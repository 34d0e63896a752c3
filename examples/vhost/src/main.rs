//! `longshore-vhost-example`: serves the disk on a Unix socket.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use longshore_vhost_example::{BlockDevice, Counts, Disk, Listener, Server};

const HELP: &str = "\
A virtio block device for virtual machines, served over vhost-user.

usage: longshore-vhost-example --socket PATH --disk FILE [--read-only] [--serial NAME] [--trace]

  --socket PATH   listen on this socket; the socket of a dead server is replaced
  --disk FILE     a raw disk image of whole sectors of 512 bytes
  --read-only     do not allow the guest to write to the disk
  --serial NAME   the serial number that the guest sees, at most 20 bytes
  --trace         print every message, and each address whose translation is requested
  --leave-out-dirty-log
                  do not mark written pages in the dirty log, to show its purpose: a migrated
                  machine has stale memory then
  --help          print this

It serves one machine after the other until it is killed. To try it, behind a virtual IOMMU:

  longshore-vhost-example --socket /tmp/disk.sock --disk disk.img &
  qemu-system-x86_64 -M q35,kernel-irqchip=split,memory-backend=ram -m 1G \\
    -object memory-backend-memfd,id=ram,size=1G,share=on \\
    -device intel-iommu,intremap=on,device-iotlb=on \\
    -chardev socket,id=disk,path=/tmp/disk.sock \\
    -device vhost-user-blk-pci,chardev=disk,num-queues=2,iommu_platform=on,ats=on,disable-legacy=on
";

struct Options {
    socket: PathBuf,
    disk: PathBuf,
    serial: String,
    is_read_only: bool,
    is_traced: bool,
    is_log_left_out: bool,
}

fn main() -> ExitCode {
    let options = match parse(env::args_os().skip(1)) {
        Ok(Some(options)) => options,
        Ok(None) => {
            // An error means that the reader has closed the pipe.
            let _ = io::stdout().write_all(HELP.as_bytes());
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("longshore-vhost-example: {reason}; see --help");
            return ExitCode::from(2);
        }
    };
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longshore-vhost-example: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Returns the options, or `None` if only help is requested.
fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Option<Options>, String> {
    let (mut socket, mut disk, mut serial) = (None, None, "longshore".to_owned());
    let (mut is_read_only, mut is_traced, mut is_log_left_out) = (false, false, false);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--socket") => {
                socket = Some(args.next().ok_or("--socket needs a path")?.into());
            }
            Some("--disk") => disk = Some(args.next().ok_or("--disk needs a file")?.into()),
            Some("--serial") => {
                let name = args.next().and_then(|name| name.into_string().ok());
                serial = name.ok_or("--serial needs a name")?;
            }
            Some("--read-only") => is_read_only = true,
            Some("--trace") => is_traced = true,
            Some("--leave-out-dirty-log") => is_log_left_out = true,
            Some("--help" | "-h") => return Ok(None),
            _ => return Err(format!("unknown option {}", arg.display())),
        }
    }
    let socket = socket.ok_or("--socket PATH is missing: the socket to listen on")?;
    let disk = disk.ok_or("--disk FILE is missing: the disk image to serve")?;
    Ok(Some(Options { socket, disk, serial, is_read_only, is_traced, is_log_left_out }))
}

fn serve(options: &Options) -> io::Result<()> {
    let named = |path: &PathBuf| {
        let path = path.display().to_string();
        move |error: io::Error| io::Error::new(error.kind(), format!("{path}: {error}"))
    };
    let counts = Counts::default();
    if options.is_traced {
        counts.print();
    }
    let disk = Disk::open(&options.disk, options.is_read_only, &options.serial);
    let device = BlockDevice::new(disk.map_err(named(&options.disk))?, counts.clone());
    let mut server = Server::new(device)?;
    if options.is_log_left_out {
        server = server.without_dirty_log();
    }
    let listener = Listener::bind(&options.socket).map_err(named(&options.socket))?;
    println!("listening at {}", options.socket.display());
    server.serve_all(&listener, |ended| {
        println!("{ended}");
        println!("so far: {}", counts.snapshot());
    })
}
