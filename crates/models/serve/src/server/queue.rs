//! Work that waits for a thread, taken from each user in turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::users::User;

/// The most items that may be in progress at once.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// The most of all users.
    pub(super) max: usize,
    /// The most of one user to whom the limits apply.
    pub(super) limited_max: usize,
    /// The most of one user to whom they do not apply.
    pub(super) unlimited_max: usize,
}

/// Items in the order in which they came, each with the users that want it. The next item is the first
/// that is wanted by the user whose turn comes after that of the user who was served last. So a user
/// with many items delays each other user by one item, and an item that several users want begins in
/// the first turn of one of them.
#[derive(Debug)]
pub(super) struct Queue<T> {
    bounds: Bounds,
    waiting: VecDeque<Waiting<T>>,
    /// The number of items in progress of each user. No number is zero.
    running: BTreeMap<User, usize>,
    last: Option<User>,
}

#[derive(Debug)]
struct Waiting<T> {
    users: BTreeSet<User>,
    item: T,
}

impl<T> Queue<T> {
    pub(super) fn new(bounds: Bounds) -> Self {
        Self { bounds, waiting: VecDeque::new(), running: BTreeMap::new(), last: None }
    }

    pub(super) fn push(&mut self, user: User, item: T) {
        self.waiting.push_back(Waiting { users: BTreeSet::from([user]), item });
    }

    /// Takes the next item that may begin, with the user in whose turn it begins. It is in progress for
    /// that user until [`Self::end`].
    pub(super) fn begin(&mut self) -> Option<(User, T)> {
        self.begin_if(|_| true, |_| true)
    }

    /// As [`Self::begin`], in the turn of a user for whom `may_user` is true, and an item for which `may`
    /// is true.
    pub(super) fn begin_if(
        &mut self,
        may_user: impl Fn(User) -> bool,
        may: impl Fn(&T) -> bool,
    ) -> Option<(User, T)> {
        if self.running() >= self.bounds.max {
            return None;
        }
        let users = self.waiting.iter().flat_map(|waiting| &waiting.users);
        let users: BTreeSet<User> = users.copied().collect();
        let has_room = |user: &User| self.running_of(*user) < self.max_of(*user) && may_user(*user);
        let users: BTreeSet<User> = users.into_iter().filter(has_room).collect();
        let is_wanted = |waiting: &&Waiting<T>| !waiting.users.is_disjoint(&users);
        let items = self.waiting.iter().filter(is_wanted).filter(|waiting| may(&waiting.item));
        let wanting: BTreeSet<User> =
            items.flat_map(|waiting| waiting.users.intersection(&users)).copied().collect();
        let next = wanting.iter().find(|user| Some(**user) > self.last).or(wanting.first());
        let user = *next?;
        let is_next = |waiting: &Waiting<T>| waiting.users.contains(&user) && may(&waiting.item);
        let at = self.waiting.iter().position(is_next)?;
        let Waiting { item, .. } = self.waiting.remove(at)?;
        *self.running.entry(user).or_default() += 1;
        self.last = Some(user);
        Some((user, item))
    }

    /// Ends an item of this user that was in progress.
    pub(super) fn end(&mut self, user: User) {
        if let Some(count) = self.running.get_mut(&user) {
            *count -= 1;
            if *count == 0 {
                self.running.remove(&user);
            }
        }
    }

    /// Lets an item in progress count for another user, even if that user then has more than the limit.
    pub(super) fn hand_over(&mut self, from: User, to: User) {
        self.end(from);
        *self.running.entry(to).or_default() += 1;
    }

    /// Takes a waiting item that no user wants for whom `may_user` is true, with one of its users.
    pub(super) fn take_unless(&mut self, may_user: impl Fn(User) -> bool) -> Option<(User, T)> {
        let is_it = |waiting: &Waiting<T>| !waiting.users.iter().any(|user| may_user(*user));
        let at = self.waiting.iter().position(|it| !it.users.is_empty() && is_it(it))?;
        let Waiting { users, item } = self.waiting.remove(at)?;
        Some((*users.first()?, item))
    }

    /// Removes the waiting items for which `keeps` returns `false`. Returns their number.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(&T) -> bool) -> usize {
        let before = self.waiting.len();
        self.waiting.retain(|waiting| keeps(&waiting.item));
        before - self.waiting.len()
    }

    /// Takes the waiting items for which `is_it` returns `true`.
    pub(super) fn take_all(&mut self, is_it: impl Fn(&T) -> bool) -> Vec<T> {
        let (mut taken, mut left) = (Vec::new(), VecDeque::new());
        for waiting in self.waiting.drain(..) {
            match is_it(&waiting.item) {
                true => taken.push(waiting.item),
                false => left.push_back(waiting),
            }
        }
        self.waiting = left;
        taken
    }

    /// Sets the users that want a waiting item.
    pub(super) fn set_users(&mut self, users: &BTreeSet<User>, is_it: impl Fn(&T) -> bool) {
        if let Some(waiting) = self.waiting.iter_mut().find(|waiting| is_it(&waiting.item)) {
            waiting.users.clone_from(users);
        }
    }

    /// Returns the items that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter().map(|waiting| &waiting.item)
    }

    /// Returns the number of items in progress.
    pub(super) fn running(&self) -> usize {
        self.running.values().sum()
    }

    fn running_of(&self, user: User) -> usize {
        self.running.get(&user).copied().unwrap_or(0)
    }

    fn max_of(&self, user: User) -> usize {
        if user.is_limited() { self.bounds.limited_max } else { self.bounds.unlimited_max }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MALLORY: User = User::limited(2002);
    const ALICE: User = User::limited(2001);
    const BOB: User = User::limited(3000);

    fn queue(max: usize, limited_max: usize) -> Queue<u32> {
        Queue::new(Bounds { max, limited_max, unlimited_max: max })
    }

    /// The order in which everything is done, one after the other.
    fn order(queue: &mut Queue<u32>) -> Vec<u32> {
        std::iter::from_fn(|| {
            let (user, item) = queue.begin()?;
            queue.end(user);
            Some(item)
        })
        .collect()
    }

    #[test]
    fn a_hundred_of_one_user_delay_one_of_another_by_one() {
        let mut queue = queue(1, 1);
        (0..100).for_each(|item| queue.push(MALLORY, item));
        assert_eq!(queue.begin(), Some((MALLORY, 0)));
        queue.push(ALICE, 1000);
        queue.push(BOB, 2000);
        queue.push(ALICE, 1001);
        assert_eq!(queue.begin(), None, "one at once");
        queue.end(MALLORY);
        let order = order(&mut queue);
        assert_eq!(order[..5], [2000, 1000, 1, 1001, 2]);
        assert_eq!(order.len(), 102);
    }

    #[test]
    fn one_user_does_not_take_all_threads() {
        let mut queue = queue(8, 2);
        (0..8).for_each(|item| queue.push(MALLORY, item));
        assert!(queue.begin().is_some() && queue.begin().is_some());
        assert_eq!(queue.begin(), None);
        queue.push(ALICE, 1000);
        assert_eq!(queue.begin(), Some((ALICE, 1000)));
        queue.end(MALLORY);
        assert_eq!(queue.begin(), Some((MALLORY, 2)));
        assert_eq!(queue.running(), 3);
    }

    #[test]
    fn items_that_another_user_wants_do_not_wait_behind_the_rest() {
        let mut queue = queue(2, 1);
        (0..6).for_each(|item| queue.push(MALLORY, item));
        assert_eq!(queue.begin(), Some((MALLORY, 0)), "this one never ends");
        for wanted in [5, 3, 4] {
            queue.set_users(&BTreeSet::from([MALLORY, ALICE]), |item| *item == wanted);
        }
        assert_eq!(order(&mut queue), [3, 4, 5], "all of them begin in the turns of Alice");
        queue.push(ALICE, 7);
        queue.set_users(&BTreeSet::from([ALICE, BOB]), |item| *item == 7);
        queue.push(ALICE, 8);
        assert_eq!(queue.begin(), Some((BOB, 7)), "it begins in the first turn of either");
        queue.end(BOB);
        assert_eq!(order(&mut queue), [8]);
        queue.set_users(&BTreeSet::from([BOB]), |item| *item == 1);
        assert_eq!(order(&mut queue), [1], "one user wants it instead of another");
    }

    #[test]
    fn an_item_in_progress_counts_for_the_user_to_whom_it_was_handed_over() {
        let mut queue = queue(2, 1);
        queue.push(ALICE, 0);
        queue.push(ALICE, 1);
        queue.push(BOB, 2);
        assert_eq!(queue.begin(), Some((ALICE, 0)));
        queue.hand_over(ALICE, BOB);
        assert_eq!(queue.begin(), Some((ALICE, 1)));
        assert_eq!(queue.begin(), None);
        queue.end(ALICE);
        assert_eq!(queue.begin(), None, "Bob has one");
        queue.end(BOB);
        assert_eq!(queue.begin(), Some((BOB, 2)));
    }

    #[test]
    fn what_is_forgotten_is_not_begun() {
        let mut queue = queue(1, 1);
        (0..5).for_each(|item| queue.push(MALLORY, item));
        queue.push(ALICE, 7);
        assert_eq!(queue.retain(|item| item % 2 == 0), 3);
        assert_eq!(order(&mut queue), [0, 2, 4]);
        assert_eq!(queue.running(), 0);
    }
}
