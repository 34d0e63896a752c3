//! Users that take the time of the serving thread.

use super::super::super::connection::HELLO_TIME;
use super::*;

impl Still {
    /// A client of this user that has said hello, unheard.
    fn greet(&mut self, uid: u32) -> OwnedFd {
        let (client, refused) = self.connect(uid);
        assert_eq!(refused, None);
        packet_socket::send(&client, &Request::Hello { version: VERSION }.encode(), None).unwrap();
        client
    }
}

#[test]
fn a_user_whose_time_is_used_up_waits_and_keeps_nobody_waiting() {
    let mut still = Still::new();
    let [hostile, honest] = [MALLORY, ALICE].map(|uid| still.greet(uid));
    let user = still.core.users.of(MALLORY);
    // It has time again after eight times what it took, less what it may take at once.
    still.core.closers.budget.count(user, Duration::from_millis(400));
    let told = still.answer(&honest);
    assert!(matches!(told[..], [Reply::Welcome { .. }]), "{told:?}");
    assert!(
        heard(&hostile).is_empty() && still.core.closers.budget.is_used_up(user, Instant::now())
    );
    let told = still.answer(&hostile);
    assert!(matches!(told[..], [Reply::Welcome { .. }]), "{told:?}");
}

#[test]
fn nothing_is_sent_to_a_user_whose_time_is_used_up_until_it_has_time_again() {
    let mut still = Still::new();
    let model = still.load("model", 1000, 0);
    let found = still.core.cache.get(model).unwrap().found.clone();
    let hostile = still.ask_for(MALLORY, found);
    let user = still.core.users.of(MALLORY);
    still.core.closers.budget.count(user, Duration::from_millis(400));
    let loaded = still.loaded(model);
    still.core.on_loaded(model, Ok(loaded), still.now);
    assert!(
        heard(&hostile).is_empty() && still.core.closers.budget.is_used_up(user, Instant::now())
    );
    let told = still.answer(&hostile);
    assert!(matches!(told[..], [Reply::Attached { .. }, Reply::File { .. }]), "{told:?}");
}

#[test]
fn deadlines_do_not_have_a_user_take_more_time() {
    let mut still = Still::new();
    let (_client, _) = still.connect(MALLORY);
    let ids: Vec<u64> = still.core.connections.keys().copied().collect();
    let user = still.core.users.of(MALLORY);
    still.core.closers.budget.count(user, Duration::from_secs(2));
    let late = still.now + 2 * HELLO_TIME;
    still.core.disconnect_late(&ids, late);
    assert_eq!(still.core.connections.len(), 1);
    still.core.closers.budget.forget();
    still.core.disconnect_late(&ids, late);
    assert!(still.core.connections.is_empty());
}

#[test]
fn a_user_without_time_is_turned_away_without_a_word() {
    let options = Options { clients_per_user: Some(1), ..Options::default() };
    let mut still = Still::with(options);
    let (_first, refused) = still.connect(MALLORY);
    assert_eq!(refused, None);
    assert!(still.connect(MALLORY).1.is_some(), "one is the limit");
    still.core.closers.budget.count(still.core.users.of(MALLORY), Duration::from_secs(2));
    assert_eq!(still.connect(MALLORY).1, None);
    assert_eq!(still.core.connections.len(), 1);
}
