//! Writes a PDU of NVMe over TCP: a header with its digest, then data with their digest, both
//! CRC-32C (NVMe TCP Transport Specification, section 3.3.1). The data are copied and digested in
//! one pass, so foreign memory is read once.
//!
//!     cargo run --release --example pdu_writer

use std::io::{IoSlice, IoSliceMut};

use longshore_iov::crc32c::{self, Crc32c};
use longshore_iov::{Cursor, Dest, Error, SegmentSource, Source, copy};

const HEADER_BYTES: usize = 24;
const DIGEST_BYTES: usize = 4;
/// Header digest and data digest are present.
const FLAGS: u8 = 0b11;
/// Data from the controller to the host.
const C2H_DATA: u8 = 0x07;

/// Returns the length of a PDU with `data_bytes` bytes of data.
fn pdu_len_bytes(data_bytes: usize) -> usize {
    HEADER_BYTES + DIGEST_BYTES + data_bytes + DIGEST_BYTES
}

/// Writes a PDU with the next `data_bytes` bytes of `data` to `dest`: all of it, or nothing.
fn write_pdu(
    dest: &mut impl SegmentSource<Dest>,
    data: &mut impl SegmentSource<Source>,
    data_bytes: usize,
) -> Result<(), Error> {
    let wanted_bytes = pdu_len_bytes(data_bytes);
    let available_bytes = dest.remaining();
    if available_bytes < wanted_bytes {
        return Err(Error::TooShort { wanted_bytes, available_bytes });
    }
    let mut header = [0; HEADER_BYTES];
    header[0] = C2H_DATA;
    header[1] = FLAGS;
    header[2] = HEADER_BYTES as u8;
    header[3] = (HEADER_BYTES + DIGEST_BYTES) as u8;
    header[4..8].copy_from_slice(&(wanted_bytes as u32).to_le_bytes());
    header[16..20].copy_from_slice(&(data_bytes as u32).to_le_bytes());
    copy::write_full(dest, &header)?;
    copy::write_full(dest, &crc32c::of(&header).to_le_bytes())?;
    let mut digest = Crc32c::new();
    let copied = copy::transfer_into(data, dest, data_bytes, &mut digest)?;
    if copied < data_bytes {
        dest.revert(HEADER_BYTES + DIGEST_BYTES + copied)?;
        data.revert(copied)?;
        return Err(Error::TooShort { wanted_bytes: data_bytes, available_bytes: copied });
    }
    copy::write_full(dest, &digest.finish().to_le_bytes())
}

fn main() -> Result<(), Error> {
    let blocks: Vec<Vec<u8>> = (0..8u8).map(|block| vec![block; 4096]).collect();
    let data: Vec<IoSlice<'_>> = blocks.iter().map(|block| IoSlice::new(block)).collect();
    let mut data = Cursor::<Source>::own_vec(&data);

    // The buffers of a socket, split at any place.
    let (mut low, mut high) = (vec![0; 5000], vec![0; 40_000]);
    let mut buffers = [IoSliceMut::new(&mut low), IoSliceMut::new(&mut high)];
    let mut socket = Cursor::<Dest>::own_vec(&mut buffers);
    write_pdu(&mut socket, &mut data, 32_768)?;
    let written = socket.walked();

    let pdu: Vec<u8> = low.iter().chain(&high).copied().take(written).collect();
    let (content, digest) = pdu[HEADER_BYTES + DIGEST_BYTES..].split_at(32_768);
    println!("{written} bytes, data digest {digest:02x?}");
    assert_eq!(digest, crc32c::of(content).to_le_bytes());
    Ok(())
}
