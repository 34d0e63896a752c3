//! Users of one server who may not read each other's files. No user gets the bytes of another, can replace
//! them, or learns anything about files that it cannot open.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use longshore_serve::protocol::{Reply, Request};
use longshore_serve::{Event, Keep, Options, Reason};
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::closing::is_child;
use crate::closing::sockets::without_sockets;
use crate::fuse::{Mounted, mount_hung};
use crate::rig::{PATIENCE, Raw, Rig, content, refused};

pub(crate) const ALICE: u32 = 2001;
pub(crate) const MALLORY: u32 = 2002;

/// Starts a server with a folder for each of them, and a socket that is open to all. Returns `None`, and
/// prints the reason, if this process is not root.
pub(crate) fn shared(options: Options, prepare: impl FnOnce(&Path)) -> Option<Rig> {
    shared_and_observed(options, |_, _| {}, prepare)
}

/// As [`shared`]; `observe` sees each event on the server's thread.
pub(crate) fn shared_and_observed(
    options: Options,
    observe: impl FnMut(&Event, &Path) + Send + 'static,
    prepare: impl FnOnce(&Path),
) -> Option<Rig> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can act as other users");
        return None;
    }
    if !is_child() {
        permit_descriptors();
    }
    let rig = Rig::prepared(options, observe, prepare).open_to_all();
    for (name, user) in [("alice", ALICE), ("mallory", MALLORY)] {
        fs::create_dir(rig.path(name)).unwrap();
        fs::set_permissions(rig.path(name), Permissions::from_mode(0o711)).unwrap();
        chown(rig.path(name), Some(user), Some(user)).unwrap();
    }
    Some(rig)
}

/// Lets a user have more descriptors in flight. Their limit is the number that this process may have open,
/// and all tests that run at once need more than the usual 1024.
fn permit_descriptors() {
    const WANTED: u64 = 1 << 16;
    let now = getrlimit(Resource::Nofile);
    let maximum = now.maximum.map(|maximum| maximum.max(WANTED));
    if now.current.is_some_and(|current| current < WANTED) {
        // Some containers refuse this; then the usual limit may be enough.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(WANTED), maximum });
    }
}

/// Runs `act` on a thread that has become another user; the other threads stay root.
pub(crate) fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
    use rustix::process::{Gid, Uid};
    let become_user = move || {
        let (uid, gid) = (Uid::from_raw(user), Gid::from_raw(user));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        act()
    };
    thread::scope(|scope| scope.spawn(become_user).join().unwrap())
}

/// Makes a file that only the calling user can read.
pub(crate) fn private(path: &Path, bytes: &[u8]) -> File {
    let mut options = OpenOptions::new();
    let mut file =
        options.create(true).truncate(true).read(true).write(true).mode(0o600).open(path).unwrap();
    file.write_all(bytes).unwrap();
    file
}

/// Attaches a file, and returns the connection with the bytes, or with the message of the refusal.
pub(crate) fn attach(rig: &Rig, path: &Path, shown: impl AsFd) -> (Raw, Result<Vec<u8>, String>) {
    attach_by(rig.raw().greeted(), path, shown)
}

/// As [`attach`], on a connection.
pub(crate) fn attach_by(
    client: Raw,
    path: &Path,
    shown: impl AsFd,
) -> (Raw, Result<Vec<u8>, String>) {
    client.attach(path, shown);
    let outcome = match client.receive_result() {
        Some((Reply::Attached { len_bytes, .. }, Some(memory))) => {
            let mut bytes = Vec::new();
            File::from(memory).take(len_bytes).read_to_end(&mut bytes).unwrap();
            Ok(bytes)
        }
        Some((Reply::Refused { message, .. }, None)) => Err(message),
        other => panic!("{other:?}"),
    };
    (client, outcome)
}

/// Mounts a new ext4, which gives the number of a deleted inode to the next file.
fn mount_ext4(at: &Path) -> Option<Mounted> {
    let image = at.with_file_name("image");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let run = |program: &str, arguments: &[&Path]| {
        let outcome = without_sockets(|| Command::new(program).args(arguments).output());
        outcome.map_err(|error| error.to_string()).and_then(|outcome| {
            match outcome.status.success() {
                true => Ok(()),
                false => Err(String::from_utf8_lossy(&outcome.stderr).into_owned()),
            }
        })
    };
    let mounted = run("mkfs.ext4", &[Path::new("-qF"), &image])
        .and_then(|()| run("mount", &[Path::new("-o"), Path::new("loop"), &image, at]));
    if let Err(why) = mounted {
        println!("SKIPPED: ext4 cannot be mounted: {}", why.trim());
        return None;
    }
    Some(Mounted(at.to_owned()))
}

/// Makes files until one has the inode number of `like`, and gives it the same length and modification
/// time.
fn take_number(folder: &Path, like: &fs::Metadata, bytes: &[u8]) -> Option<PathBuf> {
    for attempt in 0..32 {
        let path = folder.join(format!("x{attempt}"));
        let file = private(&path, &[]);
        if file.metadata().unwrap().ino() == like.ino() {
            (&file).write_all(bytes).unwrap();
            file.set_times(FileTimes::new().set_modified(like.modified().unwrap())).unwrap();
            return Some(path);
        }
    }
    (0..32).for_each(|attempt| fs::remove_file(folder.join(format!("x{attempt}"))).unwrap());
    None
}

/// Unmounts a file system of which no descriptor is open any more.
fn unmount(mounted: &Mounted) {
    let deadline = Instant::now() + PATIENCE;
    // A thread of the server can close the last descriptor after the server's end.
    while let Err(error) = rustix::mount::unmount(&mounted.0, UnmountFlags::empty()) {
        let is_patient = error == rustix::io::Errno::BUSY && Instant::now() < deadline;
        assert!(is_patient, "the file system stays mounted: {error}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns `true` if one of the next files in this folder gets the number of a deleted one.
fn reuses_numbers(folder: &Path) -> bool {
    let path = folder.join("first");
    let like = private(&path, &[]).metadata().unwrap();
    fs::remove_file(&path).unwrap();
    let taken = take_number(folder, &like, &[]);
    for entry in fs::read_dir(folder).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    taken.is_some()
}

#[test]
fn a_file_with_the_inode_number_of_a_deleted_file_is_another_model() {
    /// The server looks for deleted files at this interval, and when a client requests a list.
    const SWEEP_EVERY: Duration = Duration::from_secs(10);
    for keep in [Keep::Always, Keep::Attached] {
        // The first user's memory must not reach the second, and the other way round.
        for (first, second) in [("alice", "mallory"), ("mallory", "alice")] {
            let (mut mounted, began) = (None, Instant::now());
            let options = Options::new().keep(keep);
            let Some(mut rig) = shared(options, |root| mounted = mount_ext4(root)) else { return };
            // Unmounted before the server's folder is removed.
            let Some(mounted) = mounted else { return };
            let user = |name| if name == "alice" { ALICE } else { MALLORY };
            let theirs = content(50_000, 1);
            let own = content(50_000, 2);
            let path = rig.path(first).canonicalize().unwrap().join("model.bin");
            let folder = rig.path(second).canonicalize().unwrap();
            if !as_user(user(second), || reuses_numbers(&folder)) {
                return println!(
                    "SKIPPED: this ext4 does not reuse the inode number of a deleted file"
                );
            }
            let (like, holder) = as_user(user(first), || {
                let file = private(&path, &theirs);
                let (holder, attached) = attach(&rig, &path, &file);
                assert!(attached.unwrap() == theirs);
                let like = file.metadata().unwrap();
                fs::remove_file(&path).unwrap();
                (like, holder)
            });
            let mut holder = Some(holder);
            if keep == Keep::Always {
                // The model is held without an attachment.
                holder = None;
                rig.wait(|event| matches!(event, Event::Released { .. }).then_some(()));
            }
            let attach_own = || {
                let path = take_number(&folder, &like, &own)?;
                let file = File::open(&path).unwrap();
                Some(attach(&rig, &path, file).1)
            };
            // At first the server keeps the number in use.
            match as_user(user(second), attach_own) {
                Some(_) if began.elapsed() < SWEEP_EVERY => panic!("the number is given again"),
                // On a slow machine, the server has noticed already that the file is deleted.
                Some(got) => assert!(got.unwrap() == own, "{second} has the bytes of {first}"),
                None => {}
            }
            // Then it notices that the file is deleted, and gives up the number and the disk's blocks.
            let held = rig.list().held;
            assert!(held.iter().all(|held| held.is_stale), "{held:?}");
            let deadline = Instant::now() + Duration::from_secs(60);
            let got = loop {
                match as_user(user(second), attach_own) {
                    Some(got) => break got,
                    None => assert!(Instant::now() < deadline, "the number is never given up"),
                }
            };
            assert!(got.unwrap() == own, "{second} has the bytes of {first}");
            drop(holder);
            rig.stop();
            unmount(&mounted);
        }
    }
}

#[test]
fn a_model_is_not_listed_under_the_path_of_another_user() {
    let options = Options::new().keep(Keep::Always);
    let Some(rig) = shared(options, |_| {}) else { return };
    let public = rig.file("model.raw", &content(5000, 1)).canonicalize().unwrap();
    let link = rig.path("mallory").canonicalize().unwrap().join("x.bin");
    let attach_named = |client: &Raw, path: &Path| {
        client.attach(path, File::open(path).unwrap());
        let id = match client.receive_result() {
            Some((Reply::Attached { id, .. }, Some(_))) => id,
            other => panic!("{}: {other:?}", path.display()),
        };
        match client.receive() {
            Some(Reply::File { path, .. }) => (id, path),
            other => panic!("{other:?}"),
        }
    };
    let release = |client: &Raw| {
        client.send(&Request::Release, None);
        assert_eq!(client.receive(), Some(Reply::Released));
    };
    let mallory = as_user(MALLORY, || {
        symlink("../model.raw", &link).unwrap();
        let client = rig.raw().greeted();
        assert_eq!(attach_named(&client, &link), (1, link.clone()));
        client
    });
    let alice = as_user(ALICE, || {
        let client = rig.raw().greeted();
        assert_eq!(attach_named(&client, &public), (1, public.clone()));
        client
    });
    // The path leads to another file, which is attached, or to none.
    for is_other_file in [true, false] {
        as_user(MALLORY, || {
            release(&mallory);
            fs::remove_file(&link).unwrap();
            if is_other_file {
                fs::write(&link, b"of mallory").unwrap();
                assert_eq!(attach_named(&mallory, &link), (2, link.clone()));
                release(&mallory);
                fs::remove_file(&link).unwrap();
                symlink("../model.raw", &link).unwrap();
                assert_eq!(attach_named(&mallory, &link), (1, link.clone()));
            }
        });
        let held = rig.list().held.into_iter().find(|held| held.id == 1).unwrap();
        assert_eq!((held.is_stale, held.path), (false, public.clone()));
    }
    release(&alice);
    assert_eq!(attach_named(&alice, &public), (1, public), "it was kept");
}

/// Detects that a file is opened or read.
pub(crate) struct Opens(rustix::fd::OwnedFd);

impl Opens {
    pub(crate) fn of(paths: &[&Path]) -> Self {
        let queue = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
        for path in paths {
            inotify::add_watch(&queue, *path, WatchFlags::OPEN | WatchFlags::ACCESS).unwrap();
        }
        Self(queue)
    }

    /// Returns `true` if no file was opened or read.
    pub(crate) fn is_none(&self) -> bool {
        let mut space = [MaybeUninit::uninit(); 4096];
        let mut events = inotify::Reader::new(&self.0, &mut space);
        matches!(events.next(), Err(rustix::io::Errno::AGAIN))
    }
}

/// A split of a GGUF model without tensors.
fn split(number: u16, count: u16) -> Vec<u8> {
    const U16: u32 = 2;
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(0u64.to_le_bytes());
    bytes.extend(2u64.to_le_bytes());
    for (key, value) in [("split.no", number), ("split.count", count)] {
        bytes.extend((key.len() as u64).to_le_bytes());
        bytes.extend(key.as_bytes());
        bytes.extend(U16.to_le_bytes());
        bytes.extend(value.to_le_bytes());
    }
    bytes
}

#[test]
fn an_index_reveals_nothing_about_files_that_its_user_cannot_open() {
    let Some(rig) = shared(Options::default(), |_| {}) else { return };
    let alice = rig.path("alice").canonicalize().unwrap();
    let header = r#"{"secret.weight":{"dtype":"BF16","shape":[16,4],"data_offsets":[0,128]}}"#;
    let model = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 128]].concat();
    let files: [(&str, &[u8]); 4] = [
        ("token.txt", b"hf_SeCrEtToKeN1234567890 and so on\n"),
        ("model.safetensors", &model),
        ("second.gguf", &split(1, 2)),
        ("small.json", b"\x10\0\0\0\0\0\0\0{\"password\":\"x\"}"),
    ];
    let paths = files.map(|(name, _)| alice.join(name));
    as_user(ALICE, || {
        for (path, (_, bytes)) in paths.iter().zip(files) {
            private(path, bytes);
        }
        fs::create_dir(alice.join("folder")).unwrap();
    });
    let opens = Opens::of(&paths.each_ref().map(PathBuf::as_path));
    let mallory = rig.path("mallory").canonicalize().unwrap();
    let index = mallory.join("m.safetensors.index.json");
    let first = mallory.join("g-00001-of-00002.gguf");
    let refusals: Vec<(Reason, String)> = as_user(MALLORY, || {
        private(&index, br#"{"weight_map":{"t":"s"}}"#);
        private(&first, &split(0, 2));
        let shard = [mallory.join("s"), mallory.join("g-00002-of-00002.gguf")];
        let mut refusals = Vec::new();
        for name in files.map(|(name, _)| name).iter().chain(&["folder", "nothing", "../.."]) {
            for (named, other) in [&index, &first].into_iter().zip(&shard) {
                let _ = fs::remove_file(other);
                symlink(format!("../alice/{name}"), other).unwrap();
                let own = File::open(named).unwrap();
                let client = rig.raw().greeted();
                client.attach(named, &own);
                // The server requests a proof before it looks at the other file.
                assert_eq!(client.receive(), Some(Reply::Prove { path: other.clone() }), "{name}");
                client.send(&Request::Proof, Some(own.as_fd()));
                let (reason, message) = client.receive_refusal();
                refusals.push((reason, message.replace(&*other.to_string_lossy(), "")));
            }
        }
        refusals
    });
    let mut different = refusals.clone();
    different.dedup();
    assert_eq!(different.len(), 1, "the refusals differ: {different:?}");
    assert_eq!((refusals.len(), refusals[0].0), (14, Reason::NotServed));
    assert!(opens.is_none(), "none of them was opened");
}

/// Makes a node of `/dev/null`, and checks that [`Opens`] detects when it is opened.
fn make_device(path: &Path) -> Result<(), String> {
    let (mode, null) = (Mode::from(0o600), rustix::fs::makedev(1, 3));
    mknodat(CWD, path, FileType::CharacterDevice, mode, null).map_err(|error| error.to_string())?;
    let opens = Opens::of(&[path]);
    // It cannot be opened in a file system that is mounted with `nodev`.
    File::open(path).map_err(|error| error.to_string())?;
    assert!(!opens.is_none());
    Ok(())
}

#[test]
fn files_that_the_client_has_not_opened_are_not_opened() {
    let Some(rig) = shared(Options::default(), |_| {}) else { return };
    let alice = rig.path("alice").canonicalize().unwrap();
    let [pipe, file, device] = ["pipe", "model.bin", "device"].map(|name| alice.join(name));
    mknodat(CWD, &pipe, FileType::Fifo, Mode::from(0o600), 0).unwrap();
    private(&file, b"of alice");
    let mut special = vec![(pipe.as_path(), "a FIFO")];
    match make_device(&device) {
        Ok(()) => special.push((&device, "a device")),
        Err(why) => println!("SKIPPED: a device node cannot be made and opened: {why}"),
    }
    let present: Vec<&Path> = special.iter().map(|(path, _)| *path).chain([&*file]).collect();
    let opens = Opens::of(&present);
    as_user(MALLORY, || {
        let own = private(&rig.path("mallory").join("own"), b"of mallory");
        let refusal = |path: &Path| {
            let refused = attach(&rig, path, &own).1.unwrap_err();
            refused.replace(&*path.to_string_lossy(), "")
        };
        let absent = refusal(&alice.join("absent"));
        for path in &present {
            assert_eq!(refusal(path), absent, "{}", path.display());
        }
    });
    assert!(opens.is_none(), "a writer of the FIFO would have seen a reader");
    // If the client has sent a descriptor of it, it is not opened either, because it is not a regular file.
    for (path, kind) in special {
        let mut options = OpenOptions::new();
        let shown = options.read(true).custom_flags(libc::O_NONBLOCK).open(path).unwrap();
        let opens = Opens::of(&[path]);
        let refused = attach(&rig, path, shown).1.unwrap_err();
        assert!(refused.contains(&format!("{kind}, not a regular file")), "{refused}");
        assert!(opens.is_none(), "{kind}");
    }
}

#[test]
fn a_path_does_not_reveal_directories_in_an_unsearchable_one() {
    let Some(rig) = shared(Options::default(), |_| {}) else { return };
    let alice = rig.path("alice").canonicalize().unwrap();
    as_user(ALICE, || {
        fs::create_dir(alice.join("private")).unwrap();
        fs::set_permissions(alice.join("private"), Permissions::from_mode(0o700)).unwrap();
        fs::create_dir(alice.join("private/secret")).unwrap();
        // A link in the private directory leads as far as a directory.
        symlink("secret", alice.join("private/link")).unwrap();
    });
    let mallory = rig.path("mallory").canonicalize().unwrap();
    let index = mallory.join("m.safetensors.index.json");
    as_user(MALLORY, || {
        let own = private(&mallory.join("own"), b"of mallory");
        assert!(fs::metadata(alice.join("private/secret")).is_err());
        private(&index, br#"{"weight_map":{"t":"d/own"}}"#);
        let probe = |name: &str| {
            let back = format!("../alice/private/{name}/../../../mallory");
            let folder = mallory.join("d");
            let link = mallory.join("f");
            for (link, target) in [(&folder, back.clone()), (&link, format!("{back}/own"))] {
                let _ = fs::remove_file(link);
                symlink(target, link).unwrap();
            }
            let mut messages: Vec<String> =
                [mallory.join(&back).join("own"), link, folder.join("own")]
                    .iter()
                    .map(|path| {
                        let refused = attach(&rig, path, &own).1.unwrap_err();
                        refused.replace(&*path.to_string_lossy(), "")
                    })
                    .collect();
            let client = rig.raw().greeted();
            client.attach(&index, File::open(&index).unwrap());
            let shard = folder.join("own");
            assert_eq!(client.receive(), Some(Reply::Prove { path: shard.clone() }));
            client.send(&Request::Proof, Some(own.as_fd()));
            let (reason, message) = client.receive_refusal();
            assert_eq!(reason, Reason::NotServed);
            messages.push(message.replace(&*shard.to_string_lossy(), ""));
            messages
        };
        let absent = probe("absent");
        assert_eq!(absent.len(), 4);
        assert_eq!(probe("secret"), absent);
        assert_eq!(probe("link"), absent);
    });
}

#[test]
fn a_link_to_the_file_is_followed_as_in_a_hugging_face_cache() {
    let Some(rig) = shared(Options::default(), |_| {}) else { return };
    let alice = rig.path("alice").canonicalize().unwrap();
    let header = br#"{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    let shard = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    as_user(ALICE, || {
        fs::create_dir_all(alice.join("snapshots/1")).unwrap();
        fs::create_dir(alice.join("blobs")).unwrap();
        private(&alice.join("blobs/aa"), &shard);
        private(&alice.join("blobs/bb"), br#"{"weight_map":{"x":"model.safetensors"}}"#);
        let snapshot = alice.join("snapshots/1");
        symlink("../../blobs/aa", snapshot.join("model.safetensors")).unwrap();
        symlink("../../blobs/bb", snapshot.join("model.safetensors.index.json")).unwrap();
        symlink("1", alice.join("snapshots/main")).unwrap();
        // The client resolves the directory, so that it may be a link.
        for folder in ["snapshots/1", "snapshots/main"] {
            for name in ["model.safetensors", "model.safetensors.index.json"] {
                let attached = rig.attach_path(&alice.join(folder).join(name)).unwrap();
                assert!(attached.as_slice() == shard, "{folder}/{name}");
                attached.release().unwrap();
            }
        }
    });
}

#[test]
fn a_mount_beneath_a_root_is_served_if_it_is_a_root_of_its_own() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let outer = dir.path().canonicalize().unwrap();
    let inner = outer.join("inner");
    fs::create_dir(&inner).unwrap();
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    if let Err(error) = rustix::mount::mount("inner", &inner, "tmpfs", flags, None) {
        return println!("SKIPPED: no file system can be mounted: {error}");
    }
    let _mounted = Mounted(inner.clone());
    let paths = [outer.join("model.bin"), inner.join("model.bin")];
    paths.iter().for_each(|path| fs::write(path, path.as_os_str().as_encoded_bytes()).unwrap());
    for [first, second] in [[&outer, &inner], [&inner, &outer]] {
        let mut rig = Rig::new(Options::new().root(first).root(second));
        for path in &paths {
            let attached = rig.attach_path(path).unwrap();
            assert_eq!(attached.as_slice(), path.as_os_str().as_encoded_bytes());
        }
        rig.stop();
    }
    let rig = Rig::new(Options::new().root(&outer));
    rig.attach_path(&paths[0]).unwrap().release().unwrap();
    assert_eq!(refused(rig.attach_path(&paths[1])), Reason::NotServed);
}

#[test]
fn a_mount_beneath_a_root_that_hangs_is_not_entered() {
    let Some(mut rig) = shared(Options::default(), |_| {}) else { return };
    fs::create_dir(rig.path("hung")).unwrap();
    let hung = rig.path("hung").canonicalize().unwrap();
    let Some((mounted, device)) = mount_hung(&hung) else { return };
    as_user(MALLORY, || {
        let own = private(&rig.path("mallory").join("own"), b"of mallory");
        let clients: Vec<Raw> = (0..16)
            .map(|number| {
                let client = rig.raw().greeted();
                client.attach(&hung.join(format!("x{number}")), &own);
                client
            })
            .collect();
        for client in &clients {
            let (reason, message) = client.receive_refusal();
            assert_eq!(reason, Reason::NotServed);
            assert!(message.contains("is not served, or not to you"), "{message}");
            assert!(!message.contains("mount"), "only the log names the mount: {message}");
        }
    });
    let logged = rig.wait(|event| match event {
        Event::Refused { message, .. } => Some(message.clone()),
        _ => None,
    });
    assert!(logged.contains("hung/x") && logged.contains("mount point with --root"), "{logged}");
    as_user(ALICE, || {
        let path = rig.path("alice").canonicalize().unwrap().join("model.bin");
        let file = private(&path, b"of alice");
        assert_eq!(attach(&rig, &path, file).1.unwrap(), b"of alice");
    });
    assert_eq!(rig.list().roots.len(), 1);
    rig.stop();
    drop((mounted, device));
}
