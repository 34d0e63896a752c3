//! Finds out if data are all zeros, as a block driver does before it writes them, to leave a hole
//! instead. It shows how to write a step of your own.
//!
//!     cargo run --release --example is_zero

use std::io::IoSlice;
use std::ops::ControlFlow;

use longshore_iov::{Cursor, SegmentSource, Source, kinds::OwnVec};
use longshore_mem::isa::IsaToken;

/// Checks if the next `len_bytes` bytes are zeros, and if not, in which run of 256 bytes the first
/// other byte is. Private memory is walked as slices, so the compiler can use the widest registers
/// of this machine.
fn first_nonzero_run(
    cursor: &mut Cursor<'_, Source, OwnVec<'_, Source>>,
    len_bytes: usize,
) -> ControlFlow<usize> {
    let walked = IsaToken::active().vectorize(|| {
        cursor.iterate_own_vec(len_bytes, |bytes, _| {
            let (runs, rest) = bytes.as_chunks::<256>();
            let zeros = runs.iter().take_while(|run| all_zeros(*run)).count();
            let is_rest_zero = zeros == runs.len() && all_zeros(rest);
            if is_rest_zero { 0 } else { bytes.len() - 256 * zeros }
        })
    });
    if walked == len_bytes { ControlFlow::Continue(()) } else { ControlFlow::Break(walked) }
}

#[inline(always)]
fn all_zeros(bytes: &[u8]) -> bool {
    bytes.iter().fold(0, |ored, byte| ored | byte) == 0
}

/// Does the same for any kind of memory, in words that are each read once.
fn is_zero(source: &mut impl SegmentSource<Source>, len_bytes: usize) -> bool {
    let walked = source.iterate(len_bytes, |segment, _| {
        let view = segment.view();
        let words = segment.len() / 8;
        let is_zero = |at: usize| view.read_u64_le(8 * at).is_ok_and(|word| word == 0);
        let mut rest = [0; 8];
        let rest = &mut rest[..segment.len() % 8];
        let is_rest_read = view.read(8 * words, rest).is_ok();
        let zeros = (0..words).all(is_zero) && is_rest_read && rest.iter().all(|byte| *byte == 0);
        if zeros { 0 } else { segment.len() }
    });
    walked == len_bytes
}

fn main() {
    let (zeros, mut data) = (vec![0u8; 1 << 20], vec![0u8; 1 << 20]);
    data[777_777] = 1;
    let slices = [IoSlice::new(&zeros), IoSlice::new(&data)];

    let mut cursor = Cursor::from_kind(OwnVec::<Source>::new(&slices), 2 << 20);
    match first_nonzero_run(&mut cursor, 2 << 20) {
        ControlFlow::Continue(()) => println!("2 MiB of zeros: a hole will do"),
        ControlFlow::Break(at) => println!("data in the 256 bytes from {at}"),
    }

    let mut cursor = Cursor::<Source>::own_vec(&slices);
    println!("the first MiB is zeros: {}", is_zero(&mut cursor, 1 << 20));
    println!("the second MiB is zeros: {}", is_zero(&mut cursor, 1 << 20));
}
