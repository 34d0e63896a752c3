//! Loads that hang, and the resources that remain for other users.

use longshore_load::ReadMode;

use super::*;
use crate::server::jobs::LOADING_MAX;

#[test]
fn models_that_a_user_wants_do_not_wait_for_another_user_whose_load_hangs() {
    let mut still = Still::new();
    still.core.jobs.hanging.insert(1);
    let _hanging = still.ask(MALLORY, "own");
    let models = ["a", "b", "c"].map(|name| still.found(name, 1000));
    let _queued = models.clone().map(|found| still.ask_for(MALLORY, found));
    assert_eq!(still.core.jobs.loading(), 1);
    let clients = models.map(|found| still.ask_for(ALICE, found));
    for client in &clients {
        let told = still.answer(client);
        assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    }
}

#[test]
fn a_load_is_charged_to_a_user_that_still_wants_it() {
    let mut still = Still::new();
    still.core.jobs.hanging.insert(1);
    let found = still.found("shared", 1000);
    let first = still.ask_for(ALICE, found.clone());
    let _second = still.ask_for(MALLORY, found);
    let wanted = still.ask(ALICE, "other");
    assert_eq!(still.core.jobs.loading(), 1, "Alice loads one already");
    drop(first);
    let told = still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
}

#[test]
fn loads_of_trusted_users_go_on_without_progress_and_delay_no_other_user() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend([1, 2]);
    let hanging = ["first", "second"].map(|name| still.ask(0, name));
    let wanted = still.ask(ALICE, "wanted");
    assert_eq!(still.core.jobs.loading(), LOADING_MAX);
    still.end_jobs(Instant::now() + Duration::from_secs(70));
    let told = still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    for client in &hanging {
        assert!(heard(client).iter().all(|reply| matches!(reply, Reply::Progress { .. })));
    }
    assert_eq!((still.core.jobs.loading(), still.core.jobs.hung_bytes(None)), (0, 0));
}

/// A server that loads a file of each of two users, whose file system gives this number of bytes a second, and
/// the clients.
struct Slow {
    still: Still,
    clients: [OwnedFd; 2],
    begun: Instant,
    bytes_per_second: u64,
    seconds: u64,
}

impl Slow {
    fn new(bytes_per_second: u64) -> Self {
        let mut still = Still::new();
        still.core.jobs.hanging.extend([1, 2]);
        let clients = [2002, 2003].map(|mallory| still.ask(mallory, &format!("of {mallory}")));
        let begun = Instant::now();
        Self { still, clients, begun, bytes_per_second, seconds: 0 }
    }

    /// Lets time pass, until this second.
    fn trickle_until(&mut self, seconds: u64) {
        while self.seconds < seconds {
            self.seconds += 1;
            let done_bytes = self.seconds * self.bytes_per_second;
            [1, 2].iter().for_each(|id| self.still.core.jobs.trickle(*id, done_bytes));
            self.still.end_jobs(self.begun + Duration::from_secs(self.seconds));
        }
    }

    /// Returns whether both clients heard nothing but how far their loads have come.
    fn go_on(&self) -> bool {
        let mut told = self.clients.iter().flat_map(heard);
        told.all(|reply| matches!(reply, Reply::Progress { .. }))
    }
}

#[test]
fn loads_that_trickle_delay_others_by_seconds_and_are_given_up_as_those_that_hang() {
    let mut slow = Slow::new(5);
    let wanted = slow.still.ask(ALICE, "wanted");
    slow.trickle_until(2);
    assert_eq!(slow.still.core.jobs.loading(), LOADING_MAX);
    slow.trickle_until(4);
    let told = slow.still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    assert_eq!(slow.still.core.jobs.loading(), 0);
    slow.trickle_until(59);
    assert!(slow.go_on());
    assert_eq!(slow.still.core.jobs.hung_bytes(None), 0);
    slow.trickle_until(61);
    assert_eq!(slow.still.core.jobs.hung_bytes(None), 2000);
    assert!(!slow.go_on(), "they are refused");
}

#[test]
fn slow_loads_go_on_and_delay_no_other_user() {
    let mut slow = Slow::new(1 << 20);
    let wanted = slow.still.ask(ALICE, "wanted");
    slow.trickle_until(4);
    let told = slow.still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    slow.trickle_until(150);
    assert_eq!((slow.still.core.jobs.loading(), slow.still.core.jobs.hung_bytes(None)), (0, 0));
    assert!(slow.go_on());
}

#[test]
fn loads_at_the_pace_of_a_disk_keep_their_places() {
    let mut slow = Slow::new(32 << 20);
    let wanted = slow.still.ask(ALICE, "wanted");
    slow.trickle_until(100);
    assert_eq!(slow.still.core.jobs.loading(), LOADING_MAX);
    assert!(heard(&wanted).is_empty() && slow.go_on());
    // They stop.
    slow.still.end_jobs(slow.begun + Duration::from_secs(106));
    assert!(slow.still.core.jobs.loading() < LOADING_MAX);
}

#[test]
fn loads_that_make_no_progress_are_given_up_and_charged_until_they_end() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend([1, 2]);
    let hanging = [2002, 2003].map(|mallory| still.ask(mallory, &format!("of {mallory}")));
    assert_eq!(still.core.jobs.loading(), LOADING_MAX);
    // The clients disconnect, and no client waits for the models; the threads still hang.
    drop(hanging);
    let wanted = still.ask(ALICE, "wanted");
    still.core.turn().unwrap();
    let later = Instant::now() + Duration::from_secs(20);
    still.end_jobs(later);
    assert_eq!(still.core.jobs.loading(), 1, "they have lost their places");
    assert_eq!(still.core.jobs.hung_bytes(None), 0);
    let told = still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    still.end_jobs(later + Duration::from_secs(60));
    assert_eq!(still.core.jobs.hung_bytes(None), 2000);
    let mallory = still.core.users.of(2002);
    assert_eq!(still.core.jobs.hung_bytes(Some(mallory)), 1000);
    // The inode, memory, two descriptors that read, and a few more.
    assert_eq!(still.core.jobs.hung_descriptors(Of::One(mallory)), 8);
    assert_eq!(still.core.jobs.hung_descriptors(Of::All), 16);
    assert_eq!(still.core.kept_bytes(), 2000);
}

#[test]
fn of_a_load_that_is_given_up_only_the_memory_that_it_has_is_charged() {
    // Not a multiple of 2 MiB, for which a pool of huge pages could be used.
    const LEN_BYTES: u64 = (512 << 20) + 4096;
    let mut still = Still::new();
    still.core.jobs.hanging.insert(1);
    let sparse = still.dir.path().join("large");
    fs::File::create(&sparse).unwrap().set_len(LEN_BYTES).unwrap();
    let large = still.look("large");
    assert_eq!(large.len_bytes, LEN_BYTES);
    let _client = still.ask_for(ALICE, large);
    still.core.jobs.trickle(1, 100 << 20);
    still.end_jobs(Instant::now());
    still.end_jobs(Instant::now() + Duration::from_secs(70));
    assert_eq!(still.core.jobs.hung_bytes(None), (100 + 256) << 20);
}

#[test]
fn loads_without_a_byte_delay_others_by_seconds() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend([1, 2]);
    let hanging = [2002, 2003].map(|mallory| still.ask(mallory, &format!("of {mallory}")));
    let wanted = still.ask(ALICE, "wanted");
    let begun = Instant::now();
    still.end_jobs(begun + Duration::from_secs(2));
    assert_eq!(still.core.jobs.loading(), LOADING_MAX);
    still.end_jobs(begun + Duration::from_secs(4));
    let told = still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    assert_eq!(still.core.jobs.loading(), 0);
    // They go on.
    for client in &hanging {
        assert!(heard(client).iter().all(|reply| matches!(reply, Reply::Progress { .. })));
    }
}

#[test]
fn loads_of_one_user_that_go_on_without_a_place_are_bounded() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend(1..=20);
    let _hanging: Vec<OwnedFd> =
        (0..20).map(|number| still.ask(MALLORY, &format!("of mallory {number}"))).collect();
    for _ in 0..20 {
        still.end_jobs(Instant::now() + Duration::from_secs(4));
    }
    assert_eq!(still.core.jobs.loading(), 0);
    let mallory = still.core.users.of(MALLORY);
    // Of eight loads: two descriptors that read, and a few more.
    assert_eq!(still.core.jobs.hung_descriptors(Of::One(mallory)), 8 * 6);
    let wanted = still.ask(ALICE, "wanted");
    let told = still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
}

#[test]
fn a_file_whose_loads_hang_keeps_two_threads_however_many_users_ask() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend(1..=40);
    let found = still.found("public", 1000);
    let mut asked = Vec::new();
    for round in 0..6 {
        let users = 3000 + round * 3..3003 + round * 3;
        asked.extend(users.map(|user| still.ask_for(user, found.clone())));
        still.end_jobs(Instant::now() + Duration::from_secs(70));
        still.end_jobs(Instant::now());
    }
    // The second one reads through the page cache, and no others begin.
    assert_eq!(still.core.jobs.hung_bytes(None), 2000);
    assert_eq!(still.core.jobs.loading(), 0);
    let told: Vec<String> =
        asked.iter().map(|client| format!("{:?}", heard(client).last())).collect();
    assert!(
        told[..6].iter().all(|told| told.contains("gave less than 3145728 bytes in 60 s")),
        "{told:?}"
    );
    let waits = "an earlier attempt still waits for the file system";
    assert!(told[6..].iter().all(|told| told.contains(waits)), "{told:?}");
}

#[test]
fn a_load_beside_one_of_the_same_files_that_hangs_reads_through_the_page_cache() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend([1, 2, 3]);
    let found = still.found("public", 1000);
    let _first = still.ask_for(MALLORY, found.clone());
    assert_eq!(still.core.jobs.mode_of(1), ReadMode::Auto);
    still.end_jobs(Instant::now() + Duration::from_secs(70));
    let _second = still.ask_for(ALICE, found.clone());
    assert_eq!(still.core.jobs.mode_of(2), ReadMode::Buffered);
    let _other = still.ask(2003, "other");
    assert_eq!(still.core.jobs.mode_of(3), ReadMode::Auto);
}

#[test]
fn files_that_hang_do_not_use_up_the_loads_of_users_that_request_them() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend(1..=12);
    let _hanging: Vec<OwnedFd> =
        (0..12).map(|number| still.ask(ALICE, &format!("frozen {number}"))).collect();
    // Eight of them go on at once until they are given up, and then the others.
    for _ in 0..2 {
        (0..12).for_each(|_| still.end_jobs(Instant::now() + Duration::from_secs(4)));
        still.end_jobs(Instant::now() + Duration::from_secs(70));
    }
    assert_eq!(still.core.jobs.hung_bytes(None), 12_000);
    let wanted = still.ask(ALICE, "own");
    let told = still.answer(&wanted);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
}

#[test]
fn a_load_that_is_given_up_ends_when_the_file_system_answers() {
    let mut still = Still::new();
    still.core.jobs.hanging.insert(1);
    let _client = still.ask(ALICE, "frozen");
    let cancel = still.core.loads[&1].cancel.clone();
    still.end_jobs(Instant::now() + Duration::from_secs(50));
    assert!(!cancel.is_cancelled());
    still.end_jobs(Instant::now() + Duration::from_secs(70));
    assert!(cancel.is_cancelled(), "it does not read the rest of the file");
}

#[test]
fn whatever_hangs_root_and_users_without_anything_that_hangs_load() {
    let mut still = Still::new();
    for uid in 3000..3100 {
        let user = still.core.users.of(uid);
        still.core.jobs.hang_for(user, 4);
    }
    for uid in [ALICE, 0] {
        let wanted = still.ask(uid, &format!("of {uid}"));
        let told = still.answer(&wanted);
        assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    }
    // Looks and loads that hang do not count for each other.
    let wanted = still.ask(3000, "of 3000");
    let told = still.answer(&wanted);
    let [.., Reply::Refused { message, .. }] = &told[..] else { panic!("{told:?}") };
    assert!(message.contains("too many other files that user 3000 asked for"), "{message}");
}

#[test]
fn a_load_that_others_want_too_is_not_refused_for_a_user_whose_loads_hang() {
    let mut still = Still::new();
    let (first, second, mallory, victim) = (2000, 2001, MALLORY, 2003);
    still.core.jobs.hanging.extend([1, 2]);
    let _busy = [first, second].map(|user| still.ask(user, &format!("of {user}")));
    let shared = still.found("shared", 1000);
    let hers = still.ask_for(mallory, shared.clone());
    let theirs = still.ask_for(victim, shared);
    let alone = still.ask(mallory, "her own");
    still.core.jobs.hang_for(still.core.users.of(mallory), 32);
    let late = still.ask(mallory, "another");
    // The next turn would be hers.
    still.end_jobs(Instant::now() + Duration::from_secs(4));
    for client in [&theirs, &hers] {
        let told = still.answer(client);
        assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    }
    for client in [&alone, &late] {
        let told = still.answer(client);
        let [.., Reply::Refused { message, .. }] = &told[..] else { panic!("{told:?}") };
        assert!(message.contains("too many other files that user 2002 asked for"), "{message}");
    }
}
