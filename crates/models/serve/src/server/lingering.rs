//! Memory that the server gave up, and that clients keep by a descriptor that they did not close or that
//! they passed on.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use longshore_heap::SharedBuffer;
use longshore_sys::last_reference::{self, LastReferences, Watched};

use super::users::{Of, User};

/// The time from giving up memory to the report that clients keep it. A client that is about to exit
/// releases its memory earlier, and is not reported.
const REPORT_AFTER: Duration = Duration::from_secs(1);

/// The time between two attempts to watch memory.
const WATCH_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// The most models that one user may keep, unless the kernel allows few watches.
const KEPT_MAX: usize = 1024;
/// The fewest models that one user may keep.
const KEPT_MIN: usize = 16;
/// One user may use one part in this many of the server's watches.
const USERS: usize = 16;

/// Models whose memory clients may keep.
#[derive(Debug)]
pub(super) struct Lingering {
    freeing: Freeing,
    /// The most models that one user may keep.
    kept_max: usize,
    /// `None` if the kernel has refused an inotify instance.
    references: Option<LastReferences>,
    models: BTreeMap<Watched, Gone>,
    /// Memory that could not be watched yet. Nothing else would show that clients have released it, so
    /// the server keeps it until it can be watched, and it counts as kept.
    unwatched: Vec<(Arc<SharedBuffer>, Gone)>,
    watch_again: Instant,
    /// Models that no client was given, and whose memory could not be watched.
    free: Vec<Gone>,
    /// The models that are not reported yet, with the time at which they will be.
    unreported: BTreeMap<Watched, Instant>,
}

/// A model that the server has given up.
#[derive(Clone, Debug)]
pub(super) struct Gone {
    pub(super) id: u64,
    pub(super) path: PathBuf,
    pub(super) len_bytes: u64,
    /// The users that had it: any of them can keep it.
    pub(super) users: BTreeSet<User>,
    /// The user by whose path it was known.
    pub(super) named_by: User,
}

impl Lingering {
    pub(super) fn new() -> Self {
        let watches = last_reference::watches_max().unwrap_or(usize::MAX);
        Self {
            freeing: Freeing::start(),
            kept_max: (watches / USERS).clamp(KEPT_MIN, KEPT_MAX),
            references: LastReferences::new().ok(),
            models: BTreeMap::new(),
            unwatched: Vec::new(),
            watch_again: Instant::now(),
            free: Vec::new(),
            unreported: BTreeMap::new(),
        }
    }

    /// Gives up the memory of a model. It counts as kept until it is freed, which
    /// [`Self::take_free`] reports.
    ///
    /// # Errors
    /// The kernel refuses to watch it, as for [`LastReferences`]. The server keeps the memory then, and
    /// tries again later.
    pub(super) fn give_up(
        &mut self,
        memory: Arc<SharedBuffer>,
        gone: Gone,
        now: Instant,
    ) -> io::Result<()> {
        let refused = match self.watch(&memory) {
            Ok(watched) => {
                self.unreported.insert(watched, now + REPORT_AFTER);
                self.models.insert(watched, gone);
                self.free_later(memory);
                return Ok(());
            }
            Err(_) if gone.users.is_empty() => {
                self.free.push(gone);
                self.free_later(memory);
                return Ok(());
            }
            Err(refused) => refused,
        };
        self.unwatched.push((memory, gone));
        self.watch_again = now + WATCH_AGAIN_AFTER;
        Err(refused)
    }

    /// Drops memory on a thread of its own. The kernel takes 0.1 to 0.2 s for each GiB in base pages.
    pub(super) fn free_later(&mut self, memory: impl Send + 'static) {
        self.freeing.free(Box::new(memory));
    }

    /// Returns the number of calls of [`Self::free_later`] so far.
    pub(super) fn given_up(&self) -> u64 {
        self.freeing.given
    }

    /// Returns `true` if all memory is dropped that was given up until `given_up` was returned.
    pub(super) fn is_dropped(&self, given_up: u64) -> bool {
        self.freeing.dropped.load(Ordering::Acquire) >= given_up
    }

    /// Waits until all memory is dropped. From here on memory is dropped at once.
    pub(super) fn wait_until_dropped(&mut self) {
        self.freeing.end();
    }

    /// Returns the number of models that a user keeps, and the most that it may keep.
    pub(super) fn kept_by(&self, user: User) -> (usize, usize) {
        (self.iter().filter(|gone| gone.users.contains(&user)).count(), self.kept_max)
    }

    fn watch(&mut self, memory: &SharedBuffer) -> io::Result<Watched> {
        let memfd = memory.memfd().ok_or(io::ErrorKind::Unsupported)?;
        match &mut self.references {
            Some(references) => references.watch(memfd),
            None => self.references.insert(LastReferences::new()?).watch(memfd),
        }
    }

    /// Watches memory that could not be watched before, if it is time to.
    pub(super) fn watch_again(&mut self, now: Instant) {
        if self.unwatched.is_empty() || now < self.watch_again {
            return;
        }
        for (memory, gone) in std::mem::take(&mut self.unwatched) {
            // After a refusal the memory stays for the next attempt.
            let _ = self.give_up(memory, gone, now);
        }
    }

    /// Takes the models whose memory is free by now.
    pub(super) fn take_free(&mut self) -> Vec<Gone> {
        let mut free = std::mem::take(&mut self.free);
        let (Some(references), false) = (&mut self.references, self.models.is_empty()) else {
            return free;
        };
        let gone = references.gone().unwrap_or_default();
        for watched in &gone {
            self.unreported.remove(watched);
        }
        free.extend(gone.iter().filter_map(|watched| self.models.remove(watched)));
        free
    }

    /// Returns the time at which [`Self::take_unreported`] returns the next model, or
    /// [`Self::watch_again`] is to be called.
    pub(super) fn next_time(&self) -> Option<Instant> {
        let again = (!self.unwatched.is_empty()).then_some(self.watch_again);
        self.unreported.values().copied().chain(again).min()
    }

    /// Returns the models that clients have kept until `now` and that are to be reported, each once;
    /// without `now` all that were not returned before.
    pub(super) fn take_unreported(&mut self, now: Option<Instant>) -> Vec<Gone> {
        let (models, mut due) = (&self.models, Vec::new());
        self.unreported.retain(|watched, at| {
            let is_due = now.is_none_or(|now| *at <= now);
            due.extend(models.get(watched).filter(|_| is_due).cloned());
            !is_due
        });
        due
    }

    /// Returns the descriptor to wait for, or `None` if no memory is kept.
    pub(super) fn references(&self) -> Option<&LastReferences> {
        self.references.as_ref().filter(|_| !self.models.is_empty())
    }

    /// Returns the number of open descriptors of memory that these users had and that cannot be watched.
    pub(super) fn descriptors(&self, of: Of) -> usize {
        let is_of = |gone: &Gone| gone.users.iter().any(|user| of.contains(*user));
        self.unwatched.iter().filter(|(_, gone)| is_of(gone)).count()
    }

    /// Returns the models whose memory is kept: by clients, or because it cannot be watched.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Gone> {
        self.models.values().chain(self.unwatched.iter().map(|(_, gone)| gone))
    }
}

/// Memory of any type.
type Droppable = Box<dyn Send>;

/// A thread that drops memory.
#[derive(Debug)]
struct Freeing {
    /// `None` if it has ended, or could not be started.
    thread: Option<(Sender<Droppable>, JoinHandle<()>)>,
    given: u64,
    dropped: Arc<AtomicU64>,
}

impl Freeing {
    fn start() -> Self {
        let (sender, receiver) = mpsc::channel::<Droppable>();
        let dropped = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&dropped);
        let drop_all = move || {
            for memory in receiver {
                drop(memory);
                count.fetch_add(1, Ordering::Release);
            }
        };
        let thread = thread::Builder::new().name("longshore-free".to_owned()).spawn(drop_all);
        Self { thread: thread.ok().map(|thread| (sender, thread)), given: 0, dropped }
    }

    fn free(&mut self, memory: Droppable) {
        // Without the thread the memory is dropped here.
        if let Some((sender, _)) = &self.thread
            && sender.send(memory).is_ok()
        {
            self.given += 1;
        }
    }

    fn end(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // The thread only drops memory, so its result does not matter.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use longshore_heap::{Heap, Sealing};

    use super::*;

    fn memory() -> Arc<SharedBuffer> {
        Arc::new(Heap::Memfd.allocate(4096).unwrap().share(Sealing::Content).unwrap())
    }

    fn gone(id: u64) -> Gone {
        let user = User::limited(8);
        Gone { id, path: PathBuf::new(), len_bytes: 4096, users: [user].into(), named_by: user }
    }

    fn ids(models: &[Gone]) -> Vec<u64> {
        models.iter().map(|gone| gone.id).collect()
    }

    #[test]
    fn memory_that_is_released_within_a_moment_is_not_reported_as_kept() {
        let (mut lingering, began) = (Lingering::new(), Instant::now());
        let (brief, kept) = (memory(), memory());
        lingering.give_up(Arc::clone(&brief), gone(1), began).unwrap();
        lingering.give_up(Arc::clone(&kept), gone(2), began).unwrap();
        lingering.wait_until_dropped();
        assert_eq!(lingering.next_time(), Some(began + REPORT_AFTER));
        assert!(lingering.take_unreported(Some(began)).is_empty());
        assert_eq!(lingering.iter().count(), 2, "both count against the limits");
        drop(brief);
        assert_eq!(ids(&lingering.take_free()), [1]);
        let later = Some(began + REPORT_AFTER);
        assert_eq!(ids(&lingering.take_unreported(later)), [2]);
        assert!(lingering.take_unreported(later).is_empty(), "reported once");
        assert_eq!(lingering.next_time(), None);
        assert_eq!(lingering.iter().count(), 1, "it counts on");
    }

    #[test]
    fn at_the_end_all_kept_memory_is_reported_at_once() {
        let (mut lingering, began) = (Lingering::new(), Instant::now());
        let kept = memory();
        lingering.give_up(Arc::clone(&kept), gone(1), began).unwrap();
        assert_eq!(ids(&lingering.take_unreported(None)), [1]);
    }

    #[test]
    fn memory_is_dropped_by_another_thread() {
        struct Dropped(Sender<thread::ThreadId>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                self.0.send(thread::current().id()).unwrap();
            }
        }
        let (dropped, by) = mpsc::channel();
        let mut lingering = Lingering::new();
        lingering.free_later(Dropped(dropped.clone()));
        lingering.wait_until_dropped();
        assert_ne!(by.try_recv().unwrap(), thread::current().id());
        lingering.free_later(Dropped(dropped));
        assert_eq!(by.try_recv().unwrap(), thread::current().id(), "there is no thread any more");
    }

    /// The kernel allows no watch in a user namespace whose limit is zero, which a child process sets.
    #[test]
    fn memory_that_cannot_be_watched_counts_until_it_can() {
        const CHILD: &str = "LONGSHORE_TEST_UNWATCHED";
        const LIMIT: &str = "/proc/sys/user/max_inotify_watches";
        if std::env::var_os(CHILD).is_none() {
            let name = thread::current().name().unwrap().to_owned();
            let program = std::env::current_exe().unwrap();
            let mut unshare = std::process::Command::new("unshare");
            unshare.args(["--user", "--map-root-user", "--"]).arg(program);
            let child = unshare.args([&name, "--exact", "--nocapture"]).env(CHILD, "1").output();
            match child {
                Ok(child) => {
                    let said = String::from_utf8_lossy(&child.stdout);
                    said.lines()
                        .filter(|line| line.contains("SKIPPED"))
                        .for_each(|l| println!("{l}"));
                    let why = String::from_utf8_lossy(&child.stderr);
                    let is_refused = why.contains("unshare");
                    assert!(child.status.success() || is_refused, "{said}{why}");
                    if is_refused {
                        println!("SKIPPED: {why}");
                    }
                }
                Err(error) => println!("SKIPPED: there is no program 'unshare': {error}"),
            }
            return;
        }
        if let Err(error) = std::fs::write(LIMIT, "0") {
            return println!("SKIPPED: {LIMIT}: {error}");
        }
        let (mut lingering, began) = (Lingering::new(), Instant::now());
        let client = memory();
        let refused = lingering.give_up(Arc::clone(&client), gone(1), began).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        let again = began + WATCH_AGAIN_AFTER;
        assert_eq!(lingering.next_time(), Some(again));
        lingering.watch_again(again);
        assert!(lingering.take_free().is_empty());
        assert_eq!(lingering.iter().count(), 1, "it counts though it is not watched");
        let unseen = Gone { users: BTreeSet::new(), ..gone(2) };
        lingering.give_up(memory(), unseen, again).unwrap();
        assert_eq!(ids(&lingering.take_free()), [2], "no client can keep it");

        std::fs::write(LIMIT, "100").unwrap();
        lingering.watch_again(again);
        assert_eq!(lingering.next_time(), Some(again + WATCH_AGAIN_AFTER), "not before its time");
        lingering.watch_again(again + WATCH_AGAIN_AFTER);
        lingering.wait_until_dropped();
        assert!(lingering.take_free().is_empty(), "the client has it");
        drop(client);
        assert_eq!(ids(&lingering.take_free()), [1]);
        assert_eq!(lingering.iter().count(), 0);
    }
}
