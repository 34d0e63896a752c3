//! Files that are to be held from the start, and clients that come before they are loaded.

use super::*;

#[test]
fn no_client_is_served_before_the_files_of_the_start_are_found() {
    let mut still = Still::new();
    let found = still.found("named", 1000);
    still.core.starting.insert(0, found.path.clone());
    let client = packet_socket::connect(&still.dir.path().join("socket")).unwrap();
    let hello = Request::Hello { version: crate::protocol::VERSION };
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
    assert_eq!(still.core.shelf.len(), 3);
    // The first two lose their places, and the third begins. It has all the time there is.
    let mut now = Instant::now();
    for _ in 0..4 {
        now += Duration::from_secs(70);
        still.end_jobs(now);
    }
    assert!(still.core.failed.is_none(), "{:?}", still.core.failed);
    assert!(still.core.start_models.contains(&3));
    assert_eq!(still.core.jobs.hung_bytes(None), 0);
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
        Event::Trouble {
            problem:
                problem @ (ServerProblem::StartFileHangs { .. } | ServerProblem::StartFileFailed { .. }),
        } => Some(problem.to_string()),
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
    let hello = Request::Hello { version: crate::protocol::VERSION };
    packet_socket::send(&client, &hello.encode(), None).unwrap();
    assert!(matches!(still.answer(&client)[..], [Reply::Welcome { .. }]));
    assert!(still.core.has_started());
    still.core.on_start_looked(0, Looked::Found(Ok(found.clone())), still.now);
    let alice = still.ask_for(ALICE, found);
    let told = still.answer(&alice);
    assert!(matches!(told[..], [.., Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
    assert!(still.core.shelf.get(1).unwrap().is_pinned);
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
