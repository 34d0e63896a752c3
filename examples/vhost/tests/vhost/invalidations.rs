//! Translations that are invalidated while a request uses them. After the acknowledgement, the device
//! must not access the memory, because the guest may use it for something else; the request continues in
//! other memory. With a space that does not wait for sessions (`Space::without_grace_periods`), this
//! test failed in the fourth round.

use longshore::vhost_user::wire::number;

use crate::frontend::{
    DISK_BYTES, Descriptor, Frontend, IOVA, MEMORY_BYTES, Served, USER, WRITE, iotlb,
};

const PAGE: u64 = 4096;
/// The IOVA of the data.
const WINDOW: u64 = 0xe000_0000;
const LEN: u64 = DISK_BYTES;
/// The offsets in memory to which the data is translated, first and later.
const FIRST: u64 = 0x10_0000;
const SECOND: u64 = 0x20_0000;
const _: () = assert!(SECOND + LEN <= MEMORY_BYTES && WINDOW + LEN <= IOVA);

fn is_data(iova: u64) -> bool {
    (WINDOW..WINDOW + LEN).contains(&iova)
}

/// Translates data to the front-end's `target`.
fn translate(frontend: &mut Frontend, iova: u64, is_write: bool) {
    if !is_data(iova) {
        return frontend.translate(iova, is_write);
    }
    let page = iova & !0xfff;
    let user = USER + frontend.target + (page - WINDOW);
    frontend.done(number::IOTLB_MSG, &iotlb(page, PAGE, user, 3, 2), &[]);
    frontend.answer(0);
}

/// Returns how many pages of the disk are in the first place, and how many in the second.
fn pages(frontend: &Frontend, disk: &[u8]) -> (usize, usize) {
    let (first, second) = (frontend.get(FIRST, LEN as usize), frontend.get(SECOND, LEN as usize));
    let page = PAGE as usize;
    let (mut in_first, mut in_second) = (0, 0);
    for ((first, second), disk) in
        first.chunks(page).zip(second.chunks(page)).zip(disk.chunks(page))
    {
        in_first += usize::from(first == disk);
        in_second += usize::from(second == disk);
        assert!(first == disk || second == disk, "a page is in neither place");
    }
    (in_first, in_second)
}

#[test]
fn memory_is_not_accessed_after_its_translation_was_invalidated() {
    let served = Served::new();
    let disk = served.on_disk(0, LEN as usize);
    let mut frontend = Frontend::ready_behind_iommu(&served, translate);
    let all = LEN / PAGE;
    let data = [Descriptor(WINDOW, LEN as u32, WRITE, 0)];
    let forget = iotlb(WINDOW, LEN, 0, 0, 3);
    let mut random = 0x9e37_79b9_7f4a_7c15_u64;
    let mut split_rounds = 0;
    for round in 0..100 {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        frontend.put(FIRST, &vec![0; 2 * LEN as usize]);
        frontend.done(number::IOTLB_MSG, &forget, &[]);
        // A part of the data is translated, or all of it.
        let known = if round % 2 == 0 { random % all } else { all };
        if known > 0 {
            let update = iotlb(WINDOW, known * PAGE, USER + FIRST, 3, 2);
            frontend.done(number::IOTLB_MSG, &update, &[]);
        }
        frontend.target = SECOND;
        frontend.begin(0, 0, &data);
        let mut held = None;
        if known < all {
            // The request waits for the first page without a translation. All pages before it are read.
            while held.is_none() {
                let (iova, is_write) = frontend.take_miss();
                if is_data(iova) {
                    held = Some((iova, is_write));
                } else {
                    frontend.translate(iova, is_write);
                }
            }
        } else {
            // The request is at an unknown page.
            (0..random % 20_000).for_each(|_| std::hint::spin_loop());
        }
        frontend.done(number::IOTLB_MSG, &forget, &[]);
        // The first place must not change from here on.
        let before = frontend.get(FIRST, LEN as usize);
        frontend.put(FIRST, &vec![0x5a; LEN as usize]);
        if let Some((iova, is_write)) = held {
            translate(&mut frontend, iova, is_write);
        }
        assert!(frontend.wait());
        assert!(
            frontend.get(FIRST, LEN as usize).iter().all(|byte| *byte == 0x5a),
            "round {round}: written after the invalidation"
        );
        frontend.put(FIRST, &before);
        let (in_first, in_second) = pages(&frontend, &disk);
        split_rounds += usize::from(in_first > 0 && in_second > 0);
        if known < all {
            assert_eq!((in_first as u64, in_second as u64), (known, all - known), "round {round}");
        }
    }
    // At least the rounds that waited, except those without any translation.
    println!("{split_rounds} of 100 rounds continued in the second place");
    assert!(split_rounds > 40, "{split_rounds}");
    drop(frontend);
    assert_eq!(served.ended(), "closed by the front-end");
    let counts = served.counts.snapshot();
    assert_eq!((counts.ring_errors, counts.failed, counts.refused), (0, 0, 0));
}
