//! A PCI device over vfio-user, and the client that drives it.

use std::io;
use std::os::fd::AsFd;
use std::thread;

use longshore::access::Space;
use longshore::mem::Iova;
use longshore::vfio_user::client::{Client, NoDmaMemory};
use longshore::vfio_user::pci::{Bar, CONFIG_REGION, ConfigSpace, MSIX_IRQ, MsixTable};
use longshore::vfio_user::{
    Device, DeviceDescription, Errno, Link, Listener, MappableFile, Server, SpaceDma,
};
use longshore::{Heap, Sealing};
use longshore_sys::event_fd;

use crate::run::{Files, Phase, Run, Steps};

const SOCKET: &str = "device.sock";
const LEN: u64 = 1 << 20;

/// A device that writes a word to the address in its register, and raises an interrupt.
struct Writer {
    config: ConfigSpace,
    space: Space,
    register: [u8; 0x2000],
    link: Option<Link>,
}

impl Device for Writer {
    fn description(&self) -> DeviceDescription {
        self.config.description()
    }

    fn region_read(&mut self, region: u32, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            return self.config.read(at, into);
        }
        into.copy_from_slice(&self.register[at as usize..][..into.len()]);
        Ok(())
    }

    fn region_write(&mut self, region: u32, at: u64, from: &[u8]) -> Result<(), Errno> {
        if region == CONFIG_REGION {
            return self.config.write(at, from);
        }
        self.register[at as usize..][..from.len()].copy_from_slice(from);
        let target = Iova::new(u64::from_le_bytes(*self.register.first_chunk().unwrap()));
        self.space.session().write(target, b"word").map_err(|_| Errno::EFAULT)?;
        let link = self.link.as_ref().expect("a client writes");
        link.interrupts().raise(MSIX_IRQ, 0).map(|_| ())
    }

    fn mappable(&mut self, region: u32) -> io::Result<Option<MappableFile>> {
        (region == 0).then(|| MappableFile::new(0x2000)).transpose()
    }

    fn reset(&mut self) {
        self.config.reset();
    }

    fn connected(&mut self, link: &Link) {
        self.link = Some(link.clone());
    }

    fn disconnected(&mut self) {
        self.link = None;
    }
}

pub(crate) fn vfio_user(run: &mut Run) -> ! {
    let path = Files::new().run.join(SOCKET);
    let mut peer = run.peer("a vfio-user client");
    let (mut disconnected, mut disconnects) = run.gate();

    run.begin(Phase::Setup);
    let space = Space::new().unwrap();
    let config = ConfigSpace::new(0x1234, 0x5678).bar(0, Bar::memory32(0x2000)).msix(MsixTable {
        vectors: 8,
        bar: 0,
        table_offset: 0x1000,
        pba_offset: 0x1800,
    });
    let device = Writer { config, space: space.clone(), register: [0; 0x2000], link: None };
    let mut server = Server::new(device, SpaceDma::new(space)).unwrap();
    let (listener, stop) = (Listener::bind(&path).unwrap(), server.stop_handle());
    let server =
        thread::spawn(move || server.serve_all(&listener, |_| disconnected.open()).unwrap());
    peer.step();

    run.begin(Phase::Steady);
    peer.step();

    run.begin(Phase::Teardown);
    peer.step();
    disconnects.wait();
    stop.stop();
    server.join().unwrap();
    run.end()
}

/// Connects, maps memory, makes the device write to it, and disconnects.
pub(crate) fn vfio_user_client(mut steps: Steps) {
    let memory = Heap::Memfd.allocate(LEN).unwrap().share(Sealing::Size).unwrap();
    let (file, event) = (memory.export().memfd.unwrap(), event_fd::create().unwrap());
    let mut client = steps.step(|| {
        let mut client = Client::connect(&Files::new().run.join(SOCKET), NoDmaMemory).unwrap();
        assert!(client.region_info(0).unwrap().1.is_some());
        client.dma_map(0x10_0000, LEN, Some((file, 0)), true).unwrap();
        client.set_irq_events(MSIX_IRQ, 0, &[event.as_fd()]).unwrap();
        client
    });
    let on_disk = tempfile::tempfile_in(&Files::new().run).unwrap();
    on_disk.set_len(LEN).unwrap();
    steps.step(|| {
        client.dma_map(0x60_0000, LEN, Some((on_disk.as_fd(), 0)), true).unwrap();
        client.dma_map(0x40_0000, LEN, Some((file, 0)), true).unwrap();
        for _ in 0..3 {
            client.region_write(0, 0, &0x40_0040_u64.to_le_bytes()).unwrap();
            let mut back = [0; 8];
            client.region_read(0, 0, &mut back).unwrap();
        }
        assert!(event_fd::drain(&event).unwrap() > 0);
        client.dma_unmap(0x40_0000, LEN).unwrap();
        client.reset().unwrap();
    });
    steps.step(|| drop(client));
    steps.step(|| ());
}
