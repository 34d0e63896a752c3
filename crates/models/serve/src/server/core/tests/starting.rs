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
