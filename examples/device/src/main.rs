//! `longshore-device-example`: serves the device on a Unix socket.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use longshore::access::Space;
use longshore::vfio_user::Listener;
use longshore_device_example::trace::Counts;

const HELP: &str = "\
A PCI device that copies and sums the memory of a virtual machine, served over vfio-user.

usage: longshore-device-example --socket PATH [--trace]

  --socket PATH   listen on this socket; the socket of a dead server is replaced
  --trace         print every map, unmap, reset and descriptor
  --help          print this

It serves one machine after the other until it is killed. To try it, with QEMU 10.1 or newer:

  longshore-device-example --socket /tmp/device.sock --trace &
  qemu-system-x86_64 -M q35,memory-backend=ram -m 1G \\
    -object memory-backend-memfd,id=ram,size=1G,share=on \\
    -device '{\"driver\":\"vfio-user-pci\",\"socket\":{\"type\":\"unix\",\"path\":\"/tmp/device.sock\"}}'

The guest sees a device 1234:10d5 whose registers are described in examples/device/src/layout.rs.
";

struct Options {
    socket: PathBuf,
    is_traced: bool,
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
            eprintln!("longshore-device-example: {reason}; see --help");
            return ExitCode::from(2);
        }
    };
    match serve(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("longshore-device-example: {}: {error}", options.socket.display());
            ExitCode::FAILURE
        }
    }
}

/// Returns the options, or `None` if only help is requested.
fn parse(mut args: impl Iterator<Item = OsString>) -> Result<Option<Options>, String> {
    let (mut socket, mut is_traced) = (None, false);
    while let Some(arg) = args.next() {
        match arg.to_str() {
            Some("--socket") => {
                socket = Some(args.next().ok_or("--socket needs a path")?.into());
            }
            Some("--trace") => is_traced = true,
            Some("--help" | "-h") => return Ok(None),
            _ => return Err(format!("unknown option {}", arg.display())),
        }
    }
    let socket = socket.ok_or("--socket PATH is missing: the socket to listen on")?;
    Ok(Some(Options { socket, is_traced }))
}

fn serve(options: &Options) -> io::Result<()> {
    let counts = Counts::default();
    if options.is_traced {
        counts.print();
    }
    let listener = Listener::bind(&options.socket)?;
    let space = Space::new().map_err(io::Error::other)?;
    let mut server = longshore_device_example::server(space, &counts)?;
    println!("listening at {}", options.socket.display());
    server.serve_all(&listener, |served| {
        println!("client disconnected: {:?}", served.ended);
        println!("{} messages, {} refused", served.messages_count, served.refused_count);
        if let Some(refused) = &served.last_refused {
            println!("last refused message: {refused:?}");
        }
        println!("so far: {}", counts.snapshot());
    })
}
