use longshore_access::vfio_user::pci::{Bar, CONFIG_REGION, ConfigSpace, MsixTable};
use longshore_access::vfio_user::*;
use longshore_mem::{AddrRange, Iova};
use longshore_vm_tests::{Qemu, Qtest};
use std::sync::{Arc, Mutex};
use std::time::Instant;

struct Dev {
    config: ConfigSpace,
    log: Log,
    regs: Vec<u8>,
}
type Log = Arc<Mutex<(Instant, Vec<String>, Option<Link>)>>;
fn say(log: &Log, s: String) {
    let mut l = log.lock().unwrap();
    let t = l.0.elapsed().as_micros();
    l.1.push(format!("{t:>9} {s}"));
}
impl Device for Dev {
    fn description(&self) -> Description {
        self.config.description()
    }
    fn region_read(&mut self, region: u32, offset: u64, into: &mut [u8]) -> Result<(), Refusal> {
        if region == CONFIG_REGION {
            self.config.read(offset, into)?;
        } else {
            into.copy_from_slice(&self.regs[offset as usize..][..into.len()]);
        }
        say(&self.log, format!("read {region} {offset:#x} {into:x?}"));
        Ok(())
    }
    fn region_write(&mut self, region: u32, offset: u64, from: &[u8]) -> Result<(), Refusal> {
        say(&self.log, format!("write {region} {offset:#x} {from:x?}"));
        if region == CONFIG_REGION {
            self.config.write(offset, from)
        } else {
            self.regs[offset as usize..][..from.len()].copy_from_slice(from);
            Ok(())
        }
    }
    fn reset(&mut self) {
        say(&self.log, "reset".into());
        self.config.reset();
    }
    fn connected(&mut self, link: &Link) {
        say(&self.log, "connected".into());
        self.log.lock().unwrap().2 = Some(link.clone());
    }
    fn disconnected(&mut self) {
        say(&self.log, "gone".into());
    }
}
struct Dma {
    log: Log,
}
impl DmaTarget for Dma {
    fn dma_map(&mut self, map: DmaMap) -> Result<(), Refusal> {
        say(&self.log, format!("map {map:x?}"));
        Ok(())
    }
    fn dma_unmap(&mut self, r: AddrRange<Iova>) -> Result<(), Refusal> {
        say(&self.log, format!("unmap {r:x?}"));
        Ok(())
    }
}
#[test]
fn proto() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let listener = Listener::bind(&path).unwrap();
    let log: Log = Arc::new(Mutex::new((Instant::now(), vec![], None)));
    let config = ConfigSpace::new(0x1b36, 0x0010)
        .class(0x01_08_02)
        .bar(0, Bar::memory64(0x4000))
        .intx()
        .msix(MsixTable { vectors: 4, bar: 0, table_offset: 0x2000, pba_offset: 0x3000 });
    let mut server = Server::new(
        Dev { config, log: log.clone(), regs: vec![0; 0x4000] },
        Dma { log: log.clone() },
    )
    .unwrap();
    let t = std::thread::spawn(move || {
        let s = listener.accept(&server.stop_handle()).unwrap().unwrap();
        server.serve(s)
    });
    let qemu = Qemu::v11().unwrap();
    let sock = format!(
        "{{\"driver\":\"vfio-user-pci\",\"socket\":{{\"type\":\"unix\",\"path\":\"{}\"}},\"addr\":\"03.0\"}}",
        path.display()
    );
    let mut q = Qtest::start(
        &qemu,
        [
            "-M",
            "q35,memory-backend=ram",
            "-m",
            "256",
            "-object",
            "memory-backend-memfd,id=ram,size=256M,share=on",
            "-device",
            &sock,
        ],
    )
    .unwrap();
    let _ = q.read(0, 16);
    std::thread::sleep(std::time::Duration::from_secs(4));
    println!("{:x?}", q.read(0xfffffff0, 16));
    println!("{:x?}", q.read(0xffff0, 16));
    q.write_port_u32(0xcf8, 1 << 31 | 3 << 11 | 4).unwrap();
    q.write_port_u32(0xcfc, 6).unwrap();
    let link = log.lock().unwrap().2.clone().unwrap();
    let mut b = [0; 64];
    for at in [0xffff0u64, 0xfffffff0, 0xfffc0000, 0x1000, 0xe0000, 0xc0000] {
        let n = 16;
        let r = link.read(Iova::new(at), &mut b[..n]);
        println!("{at:#x} {r:?} {:x?}", &b[..n]);
    }
    let r = link.write(Iova::new(0x5000), &[0x11; 8]);
    println!("{r:?} {:x?}", q.read(0x5000 - 8, 24));
    let r = link.write(Iova::new(0x4ff0), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    println!("{r:?} {:x?}", q.read(0x4fe8, 24));
    drop(q);
    println!("{:?}", t.join().unwrap());
    for l in &log.lock().unwrap().1 {
        println!("{l}");
    }
}
