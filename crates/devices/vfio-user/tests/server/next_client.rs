//! Clients that come one after the other: what one leaves behind for the next.

use std::os::unix::net::UnixStream;
use std::thread;

use longshore_vfio_user::client::{Client, NoDmaMemory};
use longshore_vfio_user::wire::{Feature, MigrationData, Request, feature};
use longshore_vfio_user::{Errno, MigrationError, Server};

use crate::rig::{self, Shared};

/// Has one server serve clients one after the other, each with what was noted.
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
fn a_device_that_was_being_moved_runs_for_the_next_client() {
    let noted = one_after_the_other(&[
        |client, noted| {
            noted.lock().unwrap().state = b"secret of the first".to_vec();
            assert!(go(client, STOP_COPY));
        },
        |client, noted| {
            assert_eq!((state(client), noted.lock().unwrap().resets), (RUNNING, 1));
            let read = Request::MigrationDataRead { argsz: 72, size: 64 };
            assert!(client.request(&read, &[]).is_err(), "it is not saved for this client");
            // It can be moved for this one, too.
            noted.lock().unwrap().state = b"of the second".to_vec();
            assert!(go(client, STOP_COPY));
            let read = client.request(&read, &[]).unwrap();
            assert_eq!(MigrationData::parse(&read.payload).unwrap().data, b"of the second");
            // And one that leaves it running has it not reset.
            assert!(go(client, RUNNING.into()));
        },
        |client, noted| assert_eq!((state(client), noted.lock().unwrap().resets), (RUNNING, 1)),
    ]);
    assert_eq!(noted.lock().unwrap().disconnects, 3);
}

#[test]
fn a_device_that_could_not_be_moved_runs_for_the_next_client() {
    one_after_the_other(&[
        |client, noted| {
            let broken = MigrationError { errno: Errno::EIO, is_broken: true };
            noted.lock().unwrap().refuse_state = Some(broken);
            assert!(!go(client, STOP_COPY));
            assert_eq!(state(client), 0, "it is broken");
        },
        |client, noted| {
            assert_eq!((state(client), noted.lock().unwrap().resets), (RUNNING, 1));
            assert!(go(client, STOP_COPY));
        },
    ]);
}
