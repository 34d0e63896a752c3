//! A device that is code of this process cannot access bytes around a transfer, even if the domain is
//! built for a trusted device.

use std::io::{IoSlice, IoSliceMut};

use longshore_access::Session;
use longshore_domain::backend::Soft;
use longshore_domain::{Direction, Domain, SgLimits};
use longshore_iov::{Cursor, Dest, Source};
use longshore_mem::Iova;

use crate::outside::Outside;

/// In one granule, in two, and with whole granules between unaligned ends.
const LENGTHS: [usize; 4] = [1, 64, 5000, 400_000];
const OURS: u8 = 1;
const NEIGHBOR: u8 = 0x5e;

fn trusted() -> (Domain, Session) {
    let soft = Soft::new().unwrap();
    let device = soft.space().session();
    // SAFETY: the devices are code of this process.
    #[allow(unsafe_code, reason = "has no effect here, as the tests show")]
    let builder = unsafe { Domain::builder(soft).trusted() };
    (builder.free_after(None).build(), device)
}

/// Returns `len` bytes of ours with 4096 bytes of a neighbor on both sides, in one allocation.
fn surrounded(len: usize) -> Vec<u8> {
    let mut bytes = vec![NEIGHBOR; 4096 + len + 4096];
    // Neither the start nor the end is aligned to a granule.
    bytes[4096..4096 + len].fill(OURS);
    bytes
}

/// Reads and writes each byte around the transfer that the device can access.
fn roam(device: &Session, iova: Iova, len: usize) {
    let around = (iova.raw() - 4096..iova.raw()).chain(iova.raw() + len as u64..);
    for at in around.take(2 * 4096) {
        let mut byte = [0];
        if device.read(Iova::new(at), &mut byte).is_ok() {
            assert_ne!(byte, [NEIGHBOR], "the device reads a neighbor at {at:#x}");
        }
        let _ = device.write(Iova::new(at), &[0xee]);
    }
}

fn assert_neighbors(bytes: &[u8], len: usize) {
    assert!(bytes[..4096].iter().all(|byte| *byte == NEIGHBOR), "{len} bytes: before");
    assert!(bytes[4096 + len..].iter().all(|byte| *byte == NEIGHBOR), "{len} bytes: after");
}

#[test]
fn a_session_stays_within_borrowed_bytes() {
    let (domain, device) = trusted();
    for len in LENGTHS {
        for direction in [Direction::ToDevice, Direction::FromDevice, Direction::Bidirectional] {
            let mut bytes = surrounded(len);
            let ours = &mut bytes[4096..4096 + len];
            let lent = domain.lend_mut(ours, direction, |iova| {
                let written = device.write(iova, &[7]);
                roam(&device, iova, len);
                written.is_ok()
            });
            let expected = if lent.unwrap() { 7 } else { OURS };
            assert_neighbors(&bytes, len);
            assert_eq!(bytes[4096], expected);
            assert!(bytes[4097..4096 + len].iter().all(|byte| *byte == OURS));
        }
    }
}

#[test]
fn a_session_stays_within_the_segments_of_a_cursor() {
    let (domain, device) = trusted();
    let roam_each = |segments: &[longshore_domain::SgSegment]| {
        for segment in segments {
            roam(&device, segment.iova, segment.len_bytes as usize);
        }
    };
    for len in LENGTHS {
        let mut bytes = surrounded(len);
        let mut slices = [IoSliceMut::new(&mut bytes[4096..4096 + len])];
        let mut cursor = Cursor::<Dest>::own_vec(&mut slices);
        domain.lend_sg(&mut cursor, len, SgLimits::new(), roam_each).unwrap();
        assert_neighbors(&bytes, len);

        let slices = [IoSlice::new(&bytes[4096..4096 + len])];
        let mut cursor = Cursor::<Source>::own_vec(&slices);
        domain.lend_sg(&mut cursor, len, SgLimits::new(), roam_each).unwrap();
        assert_neighbors(&bytes, len);
    }
}

/// A device outside this process is trusted if the builder declares it. Then nothing is bounced.
#[test]
fn a_trusted_device_outside_the_process_gets_whole_granules() {
    let domain = |is_trusted: bool| {
        let builder = Domain::builder(Outside(Soft::new().unwrap())).free_after(None);
        // SAFETY: there is no device.
        #[allow(unsafe_code, reason = "shows the effect")]
        let builder = if is_trusted { unsafe { builder.trusted() } } else { builder };
        builder.build()
    };
    for is_trusted in [false, true] {
        let domain = domain(is_trusted);
        domain.lend(&[1; 100], |_| ()).unwrap();
        assert_eq!(domain.counters().bounced, u64::from(!is_trusted));
    }
}
