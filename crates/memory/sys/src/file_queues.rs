//! Files that wait to be closed, by user. A few threads close them: those of a user one after another.
//!
//! A close of a file for which the kernel answers ends, but another process can delay it: the kernel walks all
//! locks of the file (`fcntl(2)`, `flock(2)`), and reports the close to each inotify instance that watches it.
//! So no user has two of the threads.
//!
//! A thread looks for files every now and then, and is not woken for each: a server that maps and unmaps without
//! a pause is slower if a third thread runs each time.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use crate::user::User;

/// How many threads close files. Files of further users wait.
const THREADS_MAX: usize = 64;

/// How many files a thread takes at once. They count until the last of them is closed.
const TAKEN_MAX: usize = 16;

/// The files of all users, and the threads that close them.
#[derive(Debug)]
pub(crate) struct FileQueues {
    /// Only users that have files.
    by_user: BTreeMap<User, Queue>,
    /// The users that have files and no thread, in the order in which they get one.
    waiting: VecDeque<User>,
    threads: usize,
    /// How many of the threads close nothing now, and will look for files.
    looking: usize,
}

#[derive(Debug, Default)]
struct Queue {
    files: Vec<OwnedFd>,
    /// How many files a thread has taken and may not have closed yet.
    taken: usize,
}

impl FileQueues {
    pub(crate) const fn new() -> Self {
        Self { by_user: BTreeMap::new(), waiting: VecDeque::new(), threads: 0, looking: 0 }
    }

    /// Adds files of a user. Returns `true` if the caller has to start a thread, which calls [`Self::take`].
    pub(crate) fn add(&mut self, user: User, mut files: Vec<OwnedFd>) -> bool {
        if !files.is_empty() {
            if !self.has_any(user) {
                self.waiting.push_back(user);
            }
            self.by_user.entry(user).or_default().files.append(&mut files);
        }
        let starts = self.waiting.len() > self.looking && self.threads < THREADS_MAX;
        if starts {
            self.threads += 1;
            self.looking += 1;
        }
        starts
    }

    /// Notes that no thread could be started. The files wait for the next call of [`Self::add`], or for a
    /// thread that is there.
    pub(crate) fn start_failed(&mut self) {
        self.threads -= 1;
        self.looking -= 1;
    }

    /// Returns the files that a thread closes next, and their user.
    pub(crate) fn take(&mut self) -> Option<(User, Vec<OwnedFd>)> {
        let user = self.waiting.pop_front()?;
        let queue = self.by_user.entry(user).or_default();
        queue.taken = queue.files.len().min(TAKEN_MAX);
        self.looking -= 1;
        Some((user, queue.files.drain(..queue.taken).collect()))
    }

    /// Notes that a thread has closed all files that [`Self::take`] returned, and will look for more.
    pub(crate) fn closed(&mut self, user: User) {
        self.looking += 1;
        let queue = self.by_user.entry(user).or_default();
        queue.taken = 0;
        match queue.files.is_empty() {
            true => _ = self.by_user.remove(&user),
            false => self.waiting.push_back(user),
        }
    }

    /// Returns `true` if a thread may end, which it does then.
    pub(crate) fn end(&mut self) -> bool {
        let ends = self.waiting.is_empty();
        if ends {
            self.threads -= 1;
            self.looking -= 1;
        }
        ends
    }

    /// Returns how many files of a user may be open.
    pub(crate) fn held(&self, user: User) -> usize {
        self.by_user.get(&user).map_or(0, |queue| queue.files.len() + queue.taken)
    }

    /// Returns `true` if not all files of a user are closed.
    pub(crate) fn has_any(&self, user: User) -> bool {
        self.by_user.contains_key(&user)
    }

    /// Has the files of a user wait as if a thread closed others, until [`Self::release`], for tests.
    #[cfg(test)]
    pub(crate) fn occupy(&mut self, user: User) {
        self.by_user.insert(user, Queue::default());
    }

    #[cfg(test)]
    pub(crate) fn release(&mut self, user: User) {
        self.waiting.push_back(user);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn files(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| File::open("/dev/null").unwrap().into()).collect()
    }

    /// Takes files as a thread does, and returns whose and how many they are.
    fn take(queues: &mut FileQueues) -> Option<(User, usize)> {
        queues.take().map(|(user, files)| (user, files.len()))
    }

    #[test]
    fn one_thread_closes_all_files_of_a_user() {
        let mut queues = FileQueues::new();
        let (one, other) = (User::from_uid(1), User::from_uid(2));
        assert!(queues.add(one, files(2)));
        assert!(!queues.add(one, files(1)), "a thread will look");
        assert_eq!(take(&mut queues), Some((one, 3)));
        assert!(!queues.add(one, files(1)), "it has a thread");
        assert!(queues.add(other, files(4)));
        assert_eq!((queues.held(one), queues.held(other)), (4, 4));
        // The first thread is faster than the second.
        queues.closed(one);
        assert_eq!(take(&mut queues), Some((other, 4)));
        assert_eq!(take(&mut queues), Some((one, 1)));
        assert_eq!(take(&mut queues), None);
        queues.closed(one);
        assert!(!queues.has_any(one) && queues.has_any(other));
        queues.closed(other);
        assert!(queues.by_user.is_empty() && queues.waiting.is_empty());
        assert!(!queues.add(one, Vec::new()));
        assert!(queues.by_user.is_empty() && queues.end() && queues.end());
        assert_eq!((queues.threads, queues.looking), (0, 0));
    }

    #[test]
    fn files_are_counted_less_before_all_of_them_are_closed() {
        let mut queues = FileQueues::new();
        let user = User::from_uid(1);
        assert!(queues.add(user, files(TAKEN_MAX + 2)));
        assert_eq!(take(&mut queues), Some((user, TAKEN_MAX)));
        assert_eq!(queues.held(user), TAKEN_MAX + 2);
        queues.closed(user);
        assert_eq!(queues.held(user), 2);
        assert_eq!(take(&mut queues), Some((user, 2)));
        queues.closed(user);
        assert!(!queues.has_any(user));
    }

    #[test]
    fn a_thread_that_looks_takes_what_comes_and_does_not_end_before() {
        let mut queues = FileQueues::new();
        let (one, other) = (User::from_uid(1), User::from_uid(2));
        assert!(queues.add(one, files(1)));
        take(&mut queues).unwrap();
        queues.closed(one);
        assert!(!queues.add(one, files(1)) && queues.add(other, files(1)));
        assert!(!queues.end());
        assert_eq!(take(&mut queues), Some((one, 1)));
        assert!(!queues.end());
        assert_eq!(take(&mut queues), Some((other, 1)));
        queues.closed(one);
        assert!(queues.end() && queues.has_any(other));
        queues.closed(other);
        assert!(queues.end() && queues.threads == 0);
    }

    #[test]
    fn users_for_whom_there_is_no_thread_get_one_in_turn() {
        let mut queues = FileQueues::new();
        let mut users = (0..).map(User::from_uid);
        for user in users.by_ref().take(THREADS_MAX) {
            assert!(queues.add(user, files(1)));
            assert_eq!(take(&mut queues), Some((user, 1)));
        }
        let late = users.next().unwrap();
        assert!(!queues.add(late, files(1)));
        let busy = User::from_uid(7);
        queues.add(busy, files(9));
        queues.closed(busy);
        assert_eq!(take(&mut queues), Some((late, 1)));
        queues.closed(late);
        assert_eq!(take(&mut queues), Some((busy, 9)));
    }

    #[test]
    fn a_thread_that_does_not_start_is_started_later() {
        let mut queues = FileQueues::new();
        let user = User::from_uid(1);
        assert!(queues.add(user, files(1)));
        queues.start_failed();
        assert_eq!(queues.held(user), 1);
        assert!(queues.add(user, Vec::new()));
        assert_eq!(take(&mut queues), Some((user, 1)));
        queues.closed(user);
        assert!(!queues.has_any(user));
    }
}
