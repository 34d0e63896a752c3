//! Queues of files to close, one for each user. A few threads close the files; the files of one user are
//! closed by one thread at a time.
//!
//! Closing a file that the kernel serves itself does end, but another process can delay it: the kernel
//! walks all locks of the file (`fcntl(2)`, `flock(2)`), and reports the close to each inotify instance
//! that watches it. So no user gets two of the threads.
//!
//! Threads look for files periodically and are not woken for each one, because a server that maps and
//! unmaps without a pause would be slower if another thread ran each time.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use crate::user::User;

/// The maximum number of threads. Files of further users wait.
const THREADS_MAX: usize = 64;

/// The maximum number of files that a thread takes at once. All of them count as held until the last is
/// closed.
const TAKEN_MAX: usize = 16;

/// The files of all users, and the threads that close them.
#[derive(Debug)]
pub(crate) struct FileQueues {
    /// The queues of the users that have files.
    by_user: BTreeMap<User, Queue>,
    /// The users that have files but no thread, in the order in which they get one.
    waiting: VecDeque<User>,
    threads: usize,
    /// The number of threads that are idle and will look for files.
    looking: usize,
}

#[derive(Debug, Default)]
struct Queue {
    files: Vec<OwnedFd>,
    /// The number of files that a thread has taken and may not have closed yet.
    taken: usize,
}

impl FileQueues {
    pub(crate) const fn new() -> Self {
        Self { by_user: BTreeMap::new(), waiting: VecDeque::new(), threads: 0, looking: 0 }
    }

    /// Adds files of a user. Returns `true` if the caller must start a thread, which calls
    /// [`Self::take`].
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

    /// Records that no thread could be started. The files wait for the next call of [`Self::add`], or
    /// for an existing thread.
    pub(crate) fn start_failed(&mut self) {
        self.threads -= 1;
        self.looking -= 1;
    }

    /// Takes the files that a thread closes next, and returns them with their user.
    pub(crate) fn take(&mut self) -> Option<(User, Vec<OwnedFd>)> {
        let user = self.waiting.pop_front()?;
        let queue = self.by_user.entry(user).or_default();
        queue.taken = queue.files.len().min(TAKEN_MAX);
        self.looking -= 1;
        Some((user, queue.files.drain(..queue.taken).collect()))
    }

    /// Records that a thread has closed all files that [`Self::take`] returned, and will look for more.
    pub(crate) fn closed(&mut self, user: User) {
        self.looking += 1;
        let queue = self.by_user.entry(user).or_default();
        queue.taken = 0;
        match queue.files.is_empty() {
            true => _ = self.by_user.remove(&user),
            false => self.waiting.push_back(user),
        }
    }

    /// Returns `true` if the calling thread must end, because there are no files for it.
    pub(crate) fn end(&mut self) -> bool {
        let ends = self.waiting.is_empty();
        if ends {
            self.threads -= 1;
            self.looking -= 1;
        }
        ends
    }

    /// Returns the number of files of a user that may still be open.
    pub(crate) fn held(&self, user: User) -> usize {
        self.by_user.get(&user).map_or(0, |queue| queue.files.len() + queue.taken)
    }

    /// Returns `true` if a user has files that are not closed yet.
    pub(crate) fn has_any(&self, user: User) -> bool {
        self.by_user.contains_key(&user)
    }

    /// Makes the files of a user wait until [`Self::release`], as if a thread were closing others, for
    /// tests.
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

    /// Takes files like a thread, and returns their user and their number.
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
    fn a_batch_counts_until_all_of_its_files_are_closed() {
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
    fn an_idle_thread_takes_new_files_before_it_ends() {
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
    fn users_without_a_thread_get_one_in_turn() {
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
    fn a_thread_that_could_not_be_started_is_started_later() {
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
