//! Models on servers, by an access that waits until the test lets it go on.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use longshore_formats::directory::ModelFilter;
use longshore_load::{
    CancelToken, Error, FormatChoice, Object, ObjectError, ReadControl, Result, SourceFile,
};
use longshore_mem::VolatileSliceMut;
use longshore_serve::protocol::{Reply, Request, Target};
use longshore_serve::{Keep, Options, Reason, RemoteAccess, RemoteOptions, RemoteSession, Wanted};

use crate::rig::{PATIENCE, Raw, Rig, content, refused};

const NAME: &str = "s3://bucket/models/m.bin";

/// An access to files whose content is their name.
#[derive(Debug, Default)]
struct Access {
    is_open: Arc<(Mutex<bool>, Condvar)>,
    sessions: AtomicUsize,
    /// `true` once requests were cancelled.
    was_cancelled: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Gated {
    is_open: Arc<(Mutex<bool>, Condvar)>,
    cancel: CancelToken,
    was_cancelled: Arc<AtomicBool>,
}

#[derive(Debug)]
struct Named(Vec<u8>);

impl Access {
    fn open(&self) {
        *self.is_open.0.lock().unwrap() = true;
        self.is_open.1.notify_all();
    }

    fn sessions(&self) -> usize {
        self.sessions.load(Ordering::SeqCst)
    }

    fn wait_for_session(&self) {
        wait_until(|| self.sessions() > 0);
    }
}

fn wait_until(is_it: impl Fn() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_it() {
        assert!(Instant::now() < deadline, "it never is");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[derive(Debug)]
struct Shared(Arc<Access>);

impl RemoteAccess for Shared {
    fn session(&self, cancel: &CancelToken, _: Option<Duration>) -> Box<dyn RemoteSession> {
        let Access { is_open, sessions, was_cancelled } = &*self.0;
        sessions.fetch_add(1, Ordering::SeqCst);
        let (is_open, was_cancelled) = (Arc::clone(is_open), Arc::clone(was_cancelled));
        Box::new(Gated { is_open, cancel: cancel.clone(), was_cancelled })
    }
}

impl RemoteSession for Gated {
    fn find_files(&self, source: &Path, _: FormatChoice, _: &ModelFilter) -> Result<Vec<PathBuf>> {
        let (is_open, changed) = &*self.is_open;
        let mut open = is_open.lock().unwrap();
        while !*open {
            if self.cancel.is_cancelled() {
                self.was_cancelled.store(true, Ordering::SeqCst);
                return Err(Error::Cancelled { done_bytes: 0, total_bytes: 0 });
            }
            open = changed.wait_timeout(open, Duration::from_millis(5)).unwrap().0;
        }
        Ok(vec![source.to_owned()])
    }

    fn open(&self, path: &Path) -> Result<SourceFile> {
        let object = Arc::new(Named(path.to_str().unwrap().into()));
        Ok(SourceFile::from_object(path, object))
    }
}

impl Object for Named {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn version(&self) -> Option<&str> {
        Some("1")
    }

    fn read(
        &self,
        memory: &mut VolatileSliceMut<'_>,
        offset: u64,
        _: &dyn ReadControl,
    ) -> std::result::Result<(), ObjectError> {
        let at = offset as usize;
        memory.write(0, &self.0[at..at + memory.len()]).unwrap();
        Ok(())
    }
}

/// A server of `s3://bucket/models/`.
fn rig(options: Options) -> (Arc<Access>, Rig) {
    let access = Arc::new(Access::default());
    let remote = RemoteOptions::new(Arc::new(Shared(Arc::clone(&access))));
    let options = options.keep(Keep::Always).remote(remote.root("s3://bucket/models/"));
    (access, Rig::new(options))
}

fn attach(client: &Raw, target: Target) {
    let request = Request::Attach { target, format: "auto".to_owned(), align_bytes: 0 };
    client.send(&request, None);
}

/// A client that waits for the model.
fn waiting(rig: &Rig) -> Raw {
    let client = rig.raw().greeted();
    attach(&client, Target::Remote(NAME.to_owned()));
    // The server has read the request once it has answered this one.
    rig.list();
    client
}

#[test]
fn clients_that_wait_share_a_lookup() {
    let (access, rig) = rig(Options::new());
    let first = waiting(&rig);
    access.wait_for_session();
    let others: Vec<Raw> = (0..8).map(|_| waiting(&rig)).collect();
    assert_eq!(access.sessions(), 1);
    access.open();
    for client in [first].iter().chain(&others) {
        let (reply, memory) = client.receive_result().unwrap();
        assert!(matches!(reply, Reply::Attached { id: 1, .. }) && memory.is_some(), "{reply:?}");
    }
    // The first lookup, one for all that came after it began, and the load.
    assert_eq!(access.sessions(), 3);
    assert_eq!(rig.list().held[0].path, Path::new(NAME));
}

#[test]
fn a_lookup_ends_when_the_last_of_its_clients_goes() {
    let (access, rig) = rig(Options::new());
    let first = waiting(&rig);
    access.wait_for_session();
    let others = [waiting(&rig), waiting(&rig)];
    drop(first);
    wait_until(|| access.was_cancelled.swap(false, Ordering::SeqCst));
    // The others share the next lookup.
    wait_until(|| access.sessions() == 2);
    let [second, third] = others;
    drop(second);
    rig.list();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!access.was_cancelled.load(Ordering::SeqCst), "another client waits for it");
    drop(third);
    wait_until(|| access.was_cancelled.load(Ordering::SeqCst));
}

#[test]
fn the_end_of_the_server_ends_lookups() {
    let (access, mut rig) = rig(Options::new());
    let client = waiting(&rig);
    access.wait_for_session();
    rig.stop();
    assert!(matches!(client.receive(), Some(Reply::Closing)));
    wait_until(|| access.was_cancelled.load(Ordering::SeqCst));
}

#[test]
fn clients_that_wait_for_a_lookup_count_as_attachments() {
    let (access, rig) = rig(Options::new().attachments_max(2));
    let clients = [waiting(&rig), waiting(&rig)];
    let third = rig.raw().greeted();
    attach(&third, Target::Remote(NAME.to_owned()));
    assert_eq!(third.receive_refusal().0, Reason::TooMany);
    access.open();
    for client in &clients {
        assert!(matches!(client.receive_result(), Some((Reply::Attached { .. }, Some(_)))));
    }
}

#[test]
fn a_file_of_this_machine_is_not_attached_by_a_request_for_a_server() {
    let (access, rig) = rig(Options::new());
    access.open();
    let path = rig.file("secret.bin", &content(100, 1));
    let held = rig.attach_path(&path).unwrap();
    let client = rig.raw().greeted();
    attach(&client, Target::RemoteId(held.id()));
    assert_eq!(client.receive_refusal().0, Reason::NotHeld);
    let text = path.to_str().unwrap().to_owned();
    for name in [text.clone(), format!("file://{text}"), format!("s3://bucket/models/..{text}")] {
        attach(&client, Target::Remote(name));
        assert_eq!(client.receive_refusal().0, Reason::NotServed);
    }
    assert_eq!(access.sessions(), 0);
    // And a model on a server needs no file, but no file makes it one of this machine.
    let remote = rig.attach(&Wanted::Word(NAME.into())).unwrap();
    assert_eq!(remote.as_slice(), NAME.as_bytes());
    let (target, format) = (Target::Id(remote.id()), "auto".to_owned());
    let request = Request::Attach { target, format, align_bytes: 0 };
    client.send(&request, Some(std::os::fd::AsFd::as_fd(&File::open(&path).unwrap())));
    assert_eq!(client.receive_refusal().0, Reason::NotServed);
    assert_eq!(rig.attach(&Wanted::Id(remote.id())).unwrap().id(), remote.id());
}

#[test]
fn a_server_without_roots_on_servers_refuses_their_names() {
    let rig = Rig::new(Options::new());
    assert_eq!(refused(rig.attach(&Wanted::Word(NAME.into()))), Reason::NotServed);
    assert_eq!(refused(rig.attach(&Wanted::Path(NAME.into()))), Reason::NotServed);
}

#[test]
fn the_longest_names_are_refused_and_the_server_goes_on() {
    let (access, rig) = rig(Options::new());
    for name in
        ["s3://bucket/models/".to_owned() + &"x".repeat(4077), "%".repeat(4096), String::new()]
    {
        let client = rig.raw().greeted();
        attach(&client, Target::Remote(name.clone()));
        // The first one is beneath the root.
        if name.starts_with("s3") {
            access.wait_for_session();
        } else {
            assert_eq!(client.receive_refusal().0, Reason::NotServed);
        }
    }
    let long = format!("s3://bucket/models/{}", "x".repeat(5000));
    rig.attach(&Wanted::Word(long.into())).unwrap_err();
    assert_eq!(access.sessions(), 1);
}

#[test]
fn the_memory_of_one_user_is_limited() {
    const MALLORY: u32 = 4002;
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can act as other users");
        return;
    }
    // Each model takes a page.
    let (access, rig) = rig(Options::new().memory_per_user(5000));
    let rig = rig.open_to_all();
    access.open();
    let (first, second) = (rig.raw_of(MALLORY).greeted(), rig.raw_of(MALLORY).greeted());
    attach(&first, Target::Remote(NAME.to_owned()));
    let (reply, memory) = first.receive_result().unwrap();
    assert!(matches!(reply, Reply::Attached { .. }) && memory.is_some(), "{reply:?}");
    let other = NAME.replace("m.bin", "n.bin");
    attach(&second, Target::Remote(other.clone()));
    let (reason, message) = second.receive_refusal();
    assert!(reason == Reason::TooMany && message.contains("per-user"), "{reason:?}: {message}");
    // The same model takes no more memory, and the limit is not that of the server's own user.
    attach(&second, Target::Remote(NAME.to_owned()));
    assert!(matches!(second.receive_result(), Some((Reply::Attached { .. }, Some(_)))));
    assert_eq!(rig.attach(&Wanted::Word(other.into())).unwrap().len(), 24);
}
