//! Files that are to be held from the start, and clients that come before they are loaded.

use longshore_load::ReadMode;

use super::*;

#[test]
fn no_client_is_served_before_the_files_of_the_start_are_found() {
    let mut still = Still::new();
    let found = still.found("named", 1000);
    still.core.starting.insert(0, found.path.clone());
    let client = packet_socket::connect(&still.dir.path().join("socket")).unwrap();
    let hello = Request::Hello { version: VERSION };
    packet_socket::send(&client, &hello.encode(), None).unwrap();
    // Something else to wake up for.
    let other = still.held("other");
    let (_attached, _) = (still.ask_for(ALICE, other), still.core.turn());
    let _loading = (still.ask(ALICE, "loading"), still.core.turn());
    assert!(heard(&client).is_empty(), "it waits");
    let before = still.core.connections.len();
    still.core.on_start_looked(0, Looked::Found(Ok(found)), still.now);
    while still.core.connections.len() == before {
        still.core.turn().unwrap();
    }
    assert!(matches!(still.answer(&client)[..], [Reply::Welcome { .. }]));
}

#[test]
fn a_load_of_the_start_is_never_in_the_turn_of_a_client() {
    let mut still = Still::new();
    still.core.jobs.hanging.extend([1, 2, 3]);
    let _hanging = ["first", "second"].map(|name| still.ask(0, name));
    let found = still.found("named", 1000);
    still.core.starting.insert(0, found.path.clone());
    still.core.on_start_looked(0, Looked::Found(Ok(found.clone())), still.now);
    let _mallory = still.ask_for(MALLORY, found);
    assert_eq!(still.core.cache.len(), 3);
    // The first two lose their places, and the third begins.
    still.end_jobs(Instant::now() + Duration::from_secs(4));
    assert_eq!(still.core.jobs.mode_of(3), ReadMode::Auto);
    still.end_jobs(Instant::now() + Duration::from_secs(70));
    let mallory = still.core.users.of(MALLORY);
    let hung_bytes = [None, Some(mallory)].map(|of| still.core.jobs.hung_bytes(of));
    assert_eq!(hung_bytes, [1000, 0]);
    assert!(still.core.failed.is_none(), "{:?}", still.core.failed);
}

/// A server whose only load is of a file of its start and gets nothing, and the time when that began.
fn with_hanging_load(hanging: impl IntoIterator<Item = u64>) -> (Still, Found, Instant) {
    let mut still = Still::new();
    still.core.jobs.hanging.extend(hanging);
    let found = still.found("named", 1000);
    still.core.starting.insert(0, found.path.clone());
    still.core.start_ends = Some(still.now + Duration::from_secs(10));
    still.core.on_start_looked(0, Looked::Found(Ok(found.clone())), still.now);
    (still, found, Instant::now())
}

/// Lets so many seconds have passed, and returns whether the server is ready.
fn is_ready_after(still: &mut Still, begun: Instant, seconds: u64) -> bool {
    let now = begun + Duration::from_secs(seconds);
    still.end_jobs(now);
    still.core.end_start(now);
    still.core.tell_ready();
    still.core.is_ready
}

#[test]
fn a_load_of_the_start_that_hangs_does_not_keep_the_server_from_being_ready() {
    let (mut still, _, begun) = with_hanging_load([1]);
    for seconds in [0, 4, 9] {
        assert!(!is_ready_after(&mut still, begun, seconds), "{seconds}");
    }
    assert!(is_ready_after(&mut still, begun, 11));
    let problems = start_problems(&mut still);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.contains("named is not loaded yet"), "{problem}");
}

#[test]
fn the_server_is_not_ready_while_a_load_of_the_start_keeps_its_pace() {
    let (mut still, _, begun) = with_hanging_load([1]);
    for seconds in 0..60 {
        still.core.jobs.trickle(1, seconds * (20 << 20));
        assert!(!is_ready_after(&mut still, begun, seconds), "{seconds}");
    }
    assert_eq!(start_problems(&mut still), [""; 0]);
    // It stops.
    assert!(is_ready_after(&mut still, begun, 70));
    assert_eq!(start_problems(&mut still).len(), 1);
}

#[test]
fn a_load_of_the_start_that_hangs_is_given_up_and_tried_again_through_the_page_cache() {
    let (mut still, found, begun) = with_hanging_load([1]);
    let first = still.ask_for(ALICE, found.clone());
    still.end_jobs(begun + Duration::from_secs(50));
    assert!(heard(&first).is_empty(), "it waits");
    still.end_jobs(begun + Duration::from_secs(70));
    let told = format!("{:?}", heard(&first).last());
    assert!(told.contains("gave less than 3145728 bytes in 60 s"), "{told}");
    assert_eq!(still.core.jobs.mode_of(2), ReadMode::Buffered);
    let second = still.ask_for(ALICE, found);
    let told = still.answer(&second);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    assert!(still.core.cache.get(2).unwrap().is_pinned);
    assert!(is_ready_after(&mut still, begun, 71));
}

#[test]
fn a_file_of_the_start_whose_loads_hang_does_not_end_the_server() {
    let (mut still, found, begun) = with_hanging_load([1, 2]);
    for seconds in [70, 140] {
        still.end_jobs(begun + Duration::from_secs(seconds));
        assert!(still.core.failed.is_none(), "{:?}", still.core.failed);
    }
    let problems = start_problems(&mut still);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.contains("named is not loaded: loading the model"), "{problem}");
    assert_eq!((still.core.cache.len(), still.core.jobs.hung_bytes(None)), (0, 2000));
    // Clients are refused at once.
    let client = still.ask_for(ALICE, found);
    let told = format!("{:?}", still.answer(&client));
    assert!(told.contains("an earlier attempt still waits for the file system"), "{told}");
    assert!(is_ready_after(&mut still, begun, 141));
}

/// Has the load of the start fail once a client has done its part, and returns the problem that is logged,
/// or `None` if the server ends.
fn fail_beside(
    error: longshore_load::Error,
    client: impl FnOnce(&mut Still) -> OwnedFd,
) -> Option<String> {
    let (mut still, ..) = with_hanging_load([1, 2]);
    let client = client(&mut still);
    still.core.on_loaded(1, Err(error), still.now);
    drop(client);
    let problems = start_problems(&mut still);
    assert_eq!(problems.len(), usize::from(still.core.failed.is_none()), "{problems:?}");
    problems.into_iter().next()
}

/// Checks that a load of the start that fails in this way ends the server if it has had no clients but those
/// of its own user, and otherwise never.
fn check_failure(error: impl Fn() -> longshore_load::Error) {
    let words = format!("named is not loaded: {}", error());
    let is_logged = |client: fn(&mut Still) -> OwnedFd| {
        fail_beside(error(), client).is_some_and(|problem| problem.contains(&words))
    };
    assert!(is_logged(|still| still.ask(ALICE, "other")), "{words}: it has a model");
    let gone = |still: &mut Still| {
        let client = still.connect(ALICE).0;
        still.disconnect_newest();
        client
    };
    assert!(is_logged(gone), "{words}: it is gone, and can have memory in a pipe");
    let turned_away = |still: &mut Still| {
        still.core.options.clients_max = 0;
        let (client, refused) = still.connect(ALICE);
        assert!(refused.is_some());
        client
    };
    assert!(is_logged(turned_away), "{words}: there was no room for it");
    assert!(!is_logged(|still| still.connect(still.core.users.own().uid()).0), "{words}");
}

#[test]
fn a_load_of_the_start_that_lacks_memory_ends_no_server_that_has_clients() {
    let limit = longshore_load::MemoryLimit::Load;
    let (needed_bytes, limit_bytes) = (1000, 0);
    check_failure(|| {
        let limit = limit.clone();
        longshore_load::Error::NotEnoughMemory { needed_bytes, limit_bytes, limit }
    });
}

#[test]
fn a_load_of_the_start_that_lacks_pages_of_the_pool_ends_no_server_that_has_clients() {
    check_failure(|| pool_lacks_pages(1, 0));
}

#[test]
fn a_load_of_the_start_that_lacks_descriptors_ends_no_server_that_has_clients() {
    check_failure(|| longshore_load::Error::Open {
        path: "named".into(),
        source: std::io::Error::from_raw_os_error(libc::EMFILE),
    });
}

#[test]
fn a_load_of_the_start_that_fails_ends_the_server_until_it_is_ready() {
    let fail = |still: &mut Still| {
        let source = std::io::Error::other("bad sector");
        let error = longshore_load::Error::Process { operation: "reading", source };
        still.core.on_loaded(1, Err(error), still.now);
    };
    let (mut still, ..) = with_hanging_load([1]);
    fail(&mut still);
    assert!(still.core.failed.is_some());
    let (mut still, _, begun) = with_hanging_load([1]);
    assert!(is_ready_after(&mut still, begun, 11));
    start_problems(&mut still);
    fail(&mut still);
    assert!(still.core.failed.is_none());
    assert_eq!(start_problems(&mut still).len(), 1);
}

/// A server that looks for a file of its start, of which nothing comes back in time.
fn with_slow_start(options: Options) -> (Still, Found) {
    let mut still = Still::with(options);
    let found = still.found("named", 1000);
    still.core.starting.insert(0, found.path.clone());
    still.core.start_ends = Some(still.now);
    still.core.turn().unwrap();
    (still, found)
}

/// Returns the problems with files of the start since the last call.
fn start_problems(still: &mut Still) -> Vec<String> {
    let problem = |event: Event| match event {
        Event::Trouble { problem } => Some(problem.to_string()),
        _ => None,
    };
    still.core.events.drain(..).filter_map(problem).collect()
}

#[test]
fn clients_are_served_if_a_file_of_the_start_is_not_found_in_time_and_it_is_kept_later() {
    let (mut still, found) = with_slow_start(Options::default());
    let problems = start_problems(&mut still);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.contains("named was not found in 10 s"), "{problem}");
    let client = packet_socket::connect(&still.dir.path().join("socket")).unwrap();
    let hello = Request::Hello { version: VERSION };
    packet_socket::send(&client, &hello.encode(), None).unwrap();
    assert!(matches!(still.answer(&client)[..], [Reply::Welcome { .. }]));
    assert!(still.core.has_started());
    still.core.on_start_looked(0, Looked::Found(Ok(found.clone())), still.now);
    let alice = still.ask_for(ALICE, found);
    let told = still.answer(&alice);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    assert!(still.core.cache.get(1).unwrap().is_pinned);
    assert_eq!(start_problems(&mut still), [""; 0]);
}

#[test]
fn a_file_of_the_start_that_is_found_too_late_and_fails_does_not_end_the_server() {
    // Clients have taken the room that it needs.
    let options = Options { memory_max: Some(1500), ..Options::default() };
    let (mut still, found) = with_slow_start(options);
    start_problems(&mut still);
    let _attached = still.ask(0, "other");
    still.core.on_start_looked(0, Looked::Found(Ok(found.clone())), still.now);
    let problems = start_problems(&mut still);
    let [problem] = &problems[..] else { panic!("{problems:?}") };
    assert!(problem.contains("1000 bytes are needed"), "{problem}");
    // Or it is gone.
    still.core.starting.insert(1, found.path.clone());
    let why = std::io::Error::from(ErrorKind::NotFound);
    still.core.on_start_looked(1, Looked::Refused { path: found.path, why }, still.now);
    assert_eq!(start_problems(&mut still).len(), 1);
    assert!(still.core.failed.is_none());
    still.core.turn().unwrap();
}

#[test]
fn look_ups_of_the_start_that_hang_take_no_place_of_clients() {
    let mut still = Still::new();
    for number in 0..6 {
        let path = still.found(&format!("named {number}"), 1000).path;
        still.core.starting.insert(number, path);
    }
    still.core.jobs.hang_starts(6);
    assert_eq!(still.core.jobs.places_of_looks(), (4, 2), "two wait for the others");
    still.core.start_ends = Some(still.now);
    still.core.end_start(still.now);
    assert_eq!(still.core.jobs.places_of_looks(), (0, 0));
}
