//! Lookups and loads that end late or never.

use std::path::Path;
use std::time::Duration;

use longshore_heap::Heap;
use longshore_load::{FormatChoice, Progress};
use longshore_sys::readiness::{self, Watch};

use super::hung::{HUNG, LOOK_TIME, STALL_TIME};
use super::*;
use crate::served::{Layout, Looked};

impl Jobs {
    /// Reports this progress of a load, if it goes on, as its thread would.
    pub(in crate::server) fn trickle(&self, model: u64, done_bytes: u64) {
        let progress = Progress::new(done_bytes, 1000, Duration::ZERO);
        let Some(Loading { ticket, .. }) = self.loading.get(&model) else { return };
        self.teller(*ticket).tell(Done::Progress { id: model, progress });
    }

    /// Has as many looks of the start hang, each of a path of its own.
    pub(in crate::server) fn hang_starts(&mut self, count: usize) {
        self.hangs_looks = true;
        for number in 0..count {
            let asker = Asker::Start(number);
            self.begin(User::trusted(), look_at(&format!("/hung/{number}"), asker), Instant::now());
        }
    }

    /// Returns how many looks have a place, and how many wait for one.
    pub(in crate::server) fn places_of_looks(&self) -> (usize, usize) {
        (self.to_look.running(), self.to_look.waiting().count())
    }

    /// Returns of each look that waits whether a model is known by the same path.
    pub(in crate::server) fn are_known(&self) -> Vec<bool> {
        let jobs = self.to_look.waiting().map(|(_, job)| job);
        jobs.map(|job| matches!(job, Job::Look { known: Some(_), .. })).collect()
    }

    /// Returns how a load that goes on reads its files.
    pub(in crate::server) fn mode_of(&self, model: u64) -> ReadMode {
        self.loading[&model].mode
    }

    /// Says that this many looks, and as many loads, for a user hang.
    pub(in crate::server) fn hang_for(&mut self, user: User, count: usize) {
        for _ in 0..count {
            self.last_ticket += 1;
            let ticket = self.last_ticket;
            let look = Target::Look(RAW, format!("/hung/{ticket}").into());
            let load = Target::Load(vec![((0, 0), ticket, None)], ReadMode::Auto);
            let asked = Purpose::For(Asker::Client(1000 + ticket));
            for (purpose, target) in [(Some(asked), look), (None, load)] {
                self.last_ticket += 1;
                let target = Some(target);
                let hung = Hung { user, held_bytes: 0, descriptors: 0, purpose, target };
                self.hung.insert(self.last_ticket, hung);
            }
        }
    }
}

fn jobs(root: &Path) -> Jobs {
    let served = Arc::new(Served::new(&[root.to_owned()], &[]).unwrap());
    Jobs::new(
        served,
        How { heap: Heap::Memfd, memory_mode: 0o400, remote: None, connections: None },
        1,
    )
    .unwrap()
}

const RAW: Layout = Layout { format: FormatChoice::Raw, align: None };

fn look(asker: Asker) -> Job {
    look_at("/absent", asker)
}

fn look_at(path: &str, asker: Asker) -> Job {
    Job::Look { asker, path: path.into(), layout: RAW, shown: Some(Vec::new()), known: None }
}

#[test]
fn a_job_whose_thread_panics_is_over() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let without: WithoutResult = Arc::new(|_| Done::FoundDeleted { models: vec![2] });
    let panics = |_: &Teller| panic!("as a job of a test does");
    let ticket = jobs.run(&without, panics);
    let told = jobs.receiver.recv().unwrap();
    assert_eq!(told.ticket, ticket);
    assert!(matches!(&told.done, Done::FoundDeleted { models } if *models == [2]), "{told:?}");
    assert!(event_fd::drain(&jobs.event).is_ok(), "the server is woken for it");
    let find = Job::FindDeleted { models: Vec::new() };
    jobs.begin(User::limited(5), find, Instant::now());
    assert!(matches!(jobs.receiver.recv().unwrap().done, Done::FoundDeleted { .. }));
    assert!(jobs.receiver.try_recv().is_err(), "nothing is reported twice");
}

/// A look whose thread hangs, as far as can be seen from here.
fn hang(jobs: &mut Jobs, user: User, begun: Instant) -> u64 {
    jobs.last_ticket += 1;
    let (ticket, asker) = (jobs.last_ticket, Asker::Client(1000 + jobs.last_ticket));
    let look_for = Look::new(user, Purpose::For(asker), begun, 1);
    jobs.to_look.push(user, (look_for.clone(), look(asker)));
    assert!(jobs.to_look.begin().is_some());
    let target = Some(Target::Look(RAW, format!("/hung/{ticket}").into()));
    jobs.looking.insert(ticket, Look { target, ..look_for });
    ticket
}

/// Returns the result of the look for this client, when it is over.
fn looked_for(jobs: &mut Jobs, wanted: u64, now: Instant) -> Looked {
    loop {
        for one in jobs.done(now) {
            match one {
                Done::Looked { asker, looked } if asker == Asker::Client(wanted) => {
                    return looked;
                }
                _ => {}
            }
        }
        let watch = Watch { fd: jobs.as_fd(), read: true, write: false };
        readiness::wait(&[watch], None).unwrap();
    }
}

fn is_no_answer(looked: &Looked) -> bool {
    why_not(looked).contains("did not answer in 20 s")
}

fn why_not(looked: &Looked) -> String {
    let Looked::Failed(error) = looked else { return String::new() };
    std::error::Error::source(error).unwrap().to_string()
}

#[test]
fn looks_that_do_not_come_back_are_given_up_and_do_not_keep_others_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let (begun, alice) = (Instant::now(), User::limited(1));
    let late = begun + LOOK_TIME;
    let hung = [(); 4].map(|()| hang(&mut jobs, alice, begun));
    jobs.begin(alice, look(Asker::Client(7)), begun + Duration::from_secs(1));
    assert_eq!(jobs.to_look.waiting().count(), 1, "a user has no more threads");
    // After some seconds they lose their places, and it is looked for.
    assert_eq!(jobs.next_deadline(), Some(begun + STALL_TIME));
    assert!(jobs.done(begun + STALL_TIME - Duration::from_secs(1)).is_empty());
    assert_eq!(jobs.to_look.waiting().count(), 1);
    assert!(matches!(looked_for(&mut jobs, 7, begun + STALL_TIME), Looked::Refused { .. }));
    assert_eq!(jobs.next_deadline(), Some(late));
    assert!(jobs.done(late - Duration::from_secs(1)).is_empty());
    let given_up = jobs.done(late);
    assert_eq!(given_up.len(), hung.len());
    for one in &given_up {
        let Done::Looked { looked, .. } = one else { panic!("{one:?}") };
        assert!(is_no_answer(looked), "{looked:?}");
    }
    // One that comes back after all says nothing, and its thread is no longer counted.
    let asker = Asker::Client(1000 + hung[0]);
    jobs.teller(hung[0]).tell(Done::Looked { asker, looked: Looked::Unshown(Vec::new()) });
    assert!(jobs.done(late).is_empty());
    assert_eq!(jobs.hung.len(), hung.len() - 1);
    assert_eq!((jobs.looking.len(), jobs.to_look.running()), (0, 0));
}

#[test]
fn looks_at_held_models_that_hang_leave_room_for_clients() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let (begun, alice) = (Instant::now(), User::limited(1));
    for ticket in 0..HUNG.max as u64 {
        let (user, purpose) = (alice, Some(Purpose::Sweep(ticket)));
        let hung = Hung { user, held_bytes: 0, descriptors: 0, purpose, target: None };
        jobs.hung.insert(ticket, hung);
    }
    assert!(jobs.is_sweep_hung(0) && !jobs.is_sweep_hung(1000));
    jobs.last_ticket = 1000;
    jobs.begin(alice, Job::FindDeleted { models: Vec::new() }, begun);
    jobs.begin(alice, look(Asker::Client(7)), begun);
    assert!(matches!(looked_for(&mut jobs, 7, begun), Looked::Refused { .. }));
    assert_eq!((jobs.looking.len(), jobs.to_sweep.waiting().count()), (0, 0));
}

#[test]
fn threads_that_do_not_come_back_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let begun = Instant::now();
    let late = begun + LOOK_TIME;
    let (alice, bob) = (User::limited(1), User::limited(2));
    for _ in 0..8 {
        (0..4).for_each(|_| _ = hang(&mut jobs, alice, begun));
        assert_eq!(jobs.done(late).len(), 4);
    }
    assert_eq!(jobs.hung.len(), HUNG.max / 2, "as many as are still free for others");
    jobs.begin(alice, look(Asker::Client(7)), late);
    let why = why_not(&looked_for(&mut jobs, 7, late));
    assert!(why.contains("too many other files that user 1 asked for"), "{why}");
    jobs.begin(bob, look(Asker::Client(8)), late);
    assert!(matches!(looked_for(&mut jobs, 8, late), Looked::Refused { .. }));
    for user in 10..18 {
        (0..4).for_each(|_| _ = hang(&mut jobs, User::limited(user), begun));
        jobs.done(late);
    }
    assert_eq!(jobs.hung.len(), HUNG.max);
    // A user with fewer than four of them is served whatever others have.
    for _ in 0..HUNG.reserved {
        jobs.begin(bob, look(Asker::Client(9)), late);
        assert!(matches!(looked_for(&mut jobs, 9, late), Looked::Refused { .. }));
        hang(&mut jobs, bob, begun);
        jobs.done(late);
    }
    jobs.begin(bob, look(Asker::Client(9)), late);
    assert!(why_not(&looked_for(&mut jobs, 9, late)).contains("too many other files"));
    // Models that are held are looked at, and files of the server's start are looked for.
    jobs.begin(bob, Job::FindDeleted { models: Vec::new() }, late);
    assert_eq!(jobs.looking.len(), 1);
    while !jobs.done(late).iter().any(|done| matches!(done, Done::FoundDeleted { .. })) {
        let watch = Watch { fd: jobs.as_fd(), read: true, write: false };
        readiness::wait(&[watch], None).unwrap();
    }
    jobs.begin(bob, look(Asker::Start(0)), late);
    assert_eq!(jobs.looking.len(), 1);
    assert_eq!(jobs.next_deadline(), None);
}

#[test]
fn a_path_whose_look_up_hangs_keeps_one_thread_however_many_users_ask() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let begun = Instant::now();
    let late = begun + LOOK_TIME;
    let path = format!("/hung/{}", hang(&mut jobs, User::limited(1), begun));
    assert!(is_no_answer(&looked_for(&mut jobs, 1001, late)));
    for client in 0..20 {
        jobs.begin(
            User::limited(10 + client),
            look_at(&path, Asker::Client(u64::from(client))),
            late,
        );
        let why = why_not(&looked_for(&mut jobs, u64::from(client), late));
        assert!(why.contains("an earlier attempt still waits for the file system"), "{why}");
    }
    assert_eq!((jobs.hung.len(), jobs.looking.len()), (1, 0));
    // Other paths are looked for.
    jobs.begin(User::limited(1), look(Asker::Client(7)), late);
    assert!(matches!(looked_for(&mut jobs, 7, late), Looked::Refused { .. }));
}

#[test]
fn targets_are_compared_by_the_bytes_of_their_paths() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    jobs.hang_starts(0);
    let begun = Instant::now();
    for (client, path) in ["/a/b", "/a//b", "/a/b"].into_iter().enumerate() {
        jobs.begin(User::limited(1), look_at(path, Asker::Client(client as u64)), begun);
    }
    assert_eq!(jobs.places_of_looks(), (2, 1));
}

#[test]
fn look_ups_of_one_path_that_begin_together_keep_one_thread_when_they_hang() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let begun = Instant::now();
    let path = format!("/hung/{}", hang(&mut jobs, User::limited(1), begun));
    let clients: Vec<u64> = (1..=40).collect();
    for client in &clients {
        let user = User::limited(2 + *client as u32 / 8);
        jobs.begin(user, look_at(&path, Asker::Client(*client)), begun);
    }
    assert_eq!((jobs.looking.len(), jobs.to_look.waiting().count()), (1, clients.len()));
    // Those who wait for them do not wait for their users' other paths.
    jobs.begin(User::limited(2), look(Asker::Client(100)), begun);
    assert!(matches!(looked_for(&mut jobs, 100, begun), Looked::Refused { .. }));
    let refused = jobs.done(begun + LOOK_TIME);
    let (given_up, others): (Vec<&Done>, Vec<&Done>) = refused
        .iter()
        .partition(|done| matches!(done, Done::Looked { looked, .. } if is_no_answer(looked)));
    assert_eq!((given_up.len(), others.len()), (1, clients.len()));
    for one in others {
        let Done::Looked { looked, .. } = one else { panic!("{one:?}") };
        assert!(why_not(looked).contains("an earlier attempt still waits"), "{looked:?}");
    }
    assert_eq!((jobs.hung.len(), jobs.looking.len()), (1, 0));
}

#[test]
fn look_ups_of_one_path_that_begin_together_are_all_answered() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let begun = Instant::now();
    let ticket = hang(&mut jobs, User::limited(1), begun);
    let path = format!("/hung/{ticket}");
    for client in 1..=20 {
        let user = User::limited(2 + client as u32 % 3);
        jobs.begin(user, look_at(&path, Asker::Client(client)), begun);
    }
    let asker = Asker::Client(1000 + ticket);
    jobs.teller(ticket).tell(Done::Looked { asker, looked: Looked::Unshown(Vec::new()) });
    let mut answered = 0;
    while answered < 21 {
        answered += jobs.done(begun).len();
        assert!(jobs.looking.len() <= 1, "one at a time");
        if !jobs.looking.is_empty() {
            let watch = Watch { fd: jobs.as_fd(), read: true, write: false };
            readiness::wait(&[watch], None).unwrap();
        }
    }
    assert_eq!((jobs.looking.len(), jobs.to_look.running(), jobs.hung.len()), (0, 0, 0));
}

#[test]
fn a_look_up_that_waits_too_long_for_others_is_refused_with_that_reason() {
    let dir = tempfile::tempdir().unwrap();
    let mut jobs = jobs(dir.path());
    let begun = Instant::now();
    // As many as have a place, all of them slow but not late, and as many as go on without one.
    let alice = User::limited(1);
    let later = begun + Duration::from_secs(10);
    for _ in 0..3 {
        (0..4).for_each(|_| _ = hang(&mut jobs, alice, later));
        jobs.done(later + STALL_TIME);
    }
    jobs.begin(alice, look(Asker::Client(7)), begun);
    let why = why_not(&looked_for(&mut jobs, 7, begun + LOOK_TIME));
    assert!(why.contains("it waited 20 s for other look-ups"), "{why}");
}
