//! Clients that come one after the other: the state that one leaves for the next.

use std::io::ErrorKind;
use std::mem;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread;

use longshore_access::{OnUnmap, ReadWrite, Space};
use longshore_mem::Iova;
use longshore_sys::memfd;
use longshore_vfio_user::client::{Client, NoDmaMemory};
use longshore_vfio_user::wire::{Feature, MigrationData, Request, feature};
use longshore_vfio_user::{Device, DeviceDescription, Errno, MigrationError, Server, SpaceDma};

use crate::rig::{self, Shared};

/// Serves clients one after the other with one server. Each gets the device's notes.
fn one_after_the_other(clients: &[fn(&mut Client<NoDmaMemory>, &Shared)]) -> Shared {
    let noted = Shared::default();
    let mut server = Server::new(rig::device(&noted, Vec::new()), rig::dma(&noted)).unwrap();
    for client in clients {
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::scope(|scope| {
            let served = scope.spawn(|| server.serve(theirs).unwrap());
            let mut connected = Client::from_stream(ours, NoDmaMemory).unwrap();
            client(&mut connected, &noted);
            drop(connected);
            served.join().unwrap();
        });
    }
    noted
}

/// A device that keeps a lease of its client's memory on the server's thread, if `keeps` is set.
struct Keeping {
    space: Space,
    keeps: bool,
}

impl Device for Keeping {
    fn description(&self) -> DeviceDescription {
        DeviceDescription::new(Vec::new(), Vec::new())
    }

    fn region_read(&mut self, _: u32, _: u64, _: &mut [u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn region_write(&mut self, _: u32, _: u64, _: &[u8]) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    fn reset(&mut self) {}

    fn disconnected(&mut self) {
        if self.keeps {
            let lease = self.space.session().lease(IOVA, 4096, ReadWrite, OnUnmap::Wait).unwrap();
            mem::forget(lease);
        }
    }
}

const IOVA: Iova = Iova::new(0x1000);

#[test]
fn no_client_is_served_while_memory_of_an_earlier_one_is_mapped() {
    let space = Space::new().unwrap();
    let device = Keeping { space: space.clone(), keeps: false };
    let mut server = Server::new(device, SpaceDma::new(space)).unwrap();
    let serve = |server: &mut Server<Keeping, SpaceDma>| {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let client = thread::spawn(move || {
            let mut client = Client::from_stream(ours, NoDmaMemory)?;
            let memory = memfd::create("client", memfd::Backing::Shmem).unwrap();
            memfd::set_len(&memory, 4096).unwrap();
            client.dma_map(IOVA.raw(), 4096, Some((memory.as_fd(), 0)), true)
        });
        let served = server.serve(theirs);
        (served, client.join().unwrap().is_ok())
    };
    let (served, is_done) = serve(&mut server);
    assert!(is_done && served.unwrap().maps_left_count == 0);
    server.responder().device().keeps = true;
    let (served, is_done) = serve(&mut server);
    assert!(is_done && served.unwrap().maps_left_count == 1);
    for _ in 0..2 {
        let (served, is_done) = serve(&mut server);
        let error = served.unwrap_err();
        assert_eq!((error.kind(), is_done), (ErrorKind::ResourceBusy, false), "{error}");
    }
    assert_eq!(server.responder().maps().count(), 1);
}

#[test]
fn clients_are_served_again_when_the_memory_of_earlier_ones_could_be_unmapped() {
    let noted = one_after_the_other(&[
        |client, noted| {
            let memory = memfd::create("client", memfd::Backing::Shmem).unwrap();
            memfd::set_len(&memory, 4096).unwrap();
            client.dma_map(IOVA.raw(), 4096, Some((memory.as_fd(), 0)), true).unwrap();
            noted.lock().unwrap().refuse_next_unmap = Some(Errno::EBUSY);
        },
        |client, noted| {
            client.device_info().unwrap();
            assert!(noted.lock().unwrap().mapped.is_empty());
        },
    ]);
    assert_eq!(noted.lock().unwrap().disconnects, 2);
}

fn state(client: &mut Client<NoDmaMemory>) -> u8 {
    let flags = feature::MIGRATION_STATE | Feature::GET;
    let asked = Request::DeviceFeature(Feature { argsz: 16, flags, data: &[] });
    client.request(&asked, &[]).unwrap().payload[8]
}

fn go(client: &mut Client<NoDmaMemory>, state: u32) -> bool {
    let flags = feature::MIGRATION_STATE | Feature::SET;
    let data = [state.to_ne_bytes(), [0; 4]].concat();
    let asked = Request::DeviceFeature(Feature { argsz: 16, flags, data: &data });
    client.request(&asked, &[]).is_ok()
}

const RUNNING: u8 = 2;
const STOP_COPY: u32 = 3;

#[test]
fn a_device_whose_migration_had_begun_runs_for_the_next_client() {
    let noted = one_after_the_other(&[
        |client, noted| {
            noted.lock().unwrap().state = b"secret of the first".to_vec();
            assert!(go(client, STOP_COPY));
        },
        |client, noted| {
            assert_eq!((state(client), noted.lock().unwrap().resets), (RUNNING, 1));
            let read = Request::MigrationDataRead { argsz: 72, size: 64 };
            assert!(client.request(&read, &[]).is_err(), "it is not saved for this client");
            // This client can migrate the device, too.
            noted.lock().unwrap().state = b"of the second".to_vec();
            assert!(go(client, STOP_COPY));
            let read = client.request(&read, &[]).unwrap();
            assert_eq!(MigrationData::parse(&read.payload).unwrap().data, b"of the second");
            // A client that leaves the device running causes no reset.
            assert!(go(client, RUNNING.into()));
        },
        |client, noted| assert_eq!((state(client), noted.lock().unwrap().resets), (RUNNING, 1)),
    ]);
    assert_eq!(noted.lock().unwrap().disconnects, 3);
}

#[test]
fn a_device_whose_migration_failed_runs_for_the_next_client() {
    one_after_the_other(&[
        |client, noted| {
            let broken = MigrationError { errno: Errno::EIO, is_broken: true };
            noted.lock().unwrap().refuse_state = Some(broken);
            assert!(!go(client, STOP_COPY));
            assert_eq!(state(client), 0, "the device is broken");
        },
        |client, noted| {
            assert_eq!((state(client), noted.lock().unwrap().resets), (RUNNING, 1));
            assert!(go(client, STOP_COPY));
        },
    ]);
}
