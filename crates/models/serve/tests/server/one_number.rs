//! Files of two users with the same inode number. virtiofs and FUSE file systems can have such files.

use std::ffi::CString;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::thread;

use longshore_serve::{Keep, Options};
use rustix::mount::MountFlags;

use crate::fuse::Mounted;
use crate::others::{ALICE, MALLORY, as_user, attach, shared};

/// Contents of the same length; the files also have the same modification time and inode number.
const SECRET: &[u8] = b"the weights of alice";
const OWN: &[u8] = b"a file of mallory's.";

/// The node ids of the root, of the two directories in it, and of the two files.
const ROOT: u64 = 1;
const ALICES: u64 = 2;
const MALLORYS: u64 = 3;
const SECRET_FILE: u64 = 4;
const OWN_FILE: u64 = 5;

/// Returns the mode, the owner, the inode number and the content of a node.
fn node(id: u64) -> (u32, u32, u64, &'static [u8]) {
    match id {
        ALICES => (0o040_700, ALICE, 20, b""),
        MALLORYS => (0o040_755, MALLORY, 30, b""),
        SECRET_FILE => (0o100_600, ALICE, 4711, SECRET),
        OWN_FILE => (0o100_644, MALLORY, 4711, OWN),
        _ => (0o040_755, 0, 1, b""),
    }
}

/// Returns a structure of the protocol: `len` bytes with these values at these offsets.
fn answer(len: usize, values: &[(usize, u64)]) -> Vec<u8> {
    let mut answer = vec![0; len];
    for (at, value) in values {
        answer[*at..*at + 4].copy_from_slice(&(*value as u32).to_le_bytes());
    }
    answer
}

/// Returns a `struct fuse_attr`; all times are 0.
fn attributes(id: u64) -> Vec<u8> {
    let (mode, user, inode, content) = node(id);
    let (mode, user, len) = (mode.into(), user.into(), content.len() as u64);
    answer(88, &[(0, inode), (8, len), (60, mode), (64, 1), (68, user), (72, user), (80, 4096)])
}

/// Answers the requests of the kernel until the file system is unmounted.
fn answer_requests(mut device: File) {
    let mut request = vec![0; 1 << 17];
    while let Ok(len) = device.read(&mut request) {
        let number = |at: usize| u32::from_le_bytes(request[at..at + 4].try_into().unwrap());
        let id = u64::from(number(16));
        let body = match number(4) {
            // FUSE_INIT: version 7.31.
            26 => Ok(answer(64, &[(0, 7), (4, 31), (8, 1 << 16), (20, 4096), (24, 1)])),
            // FUSE_LOOKUP
            1 => {
                let found = match (id, request[40..len].trim_ascii_end()) {
                    (ROOT, b"alice\0") => Some(ALICES),
                    (ROOT, b"mallory\0") => Some(MALLORYS),
                    (ALICES, b"secret\0") => Some(SECRET_FILE),
                    (MALLORYS, b"own\0") => Some(OWN_FILE),
                    _ => None,
                };
                let entry = |id| [answer(40, &[(0, id), (8, 1)]), attributes(id)].concat();
                found.map(entry).ok_or(libc::ENOENT)
            }
            // FUSE_GETATTR
            3 => Ok([answer(16, &[]), attributes(id)].concat()),
            // FUSE_OPEN, FUSE_OPENDIR
            14 | 27 => Ok(answer(16, &[])),
            // FUSE_READ
            15 => {
                let content = node(id).3;
                let begin = content.len().min(number(48) as usize);
                let end = content.len().min(begin + number(56) as usize);
                Ok(content[begin..end].to_vec())
            }
            // FUSE_STATFS
            17 => Ok(answer(80, &[(40, 4096), (44, 255), (48, 4096)])),
            // FUSE_RELEASE, FUSE_FLUSH, FUSE_RELEASEDIR
            18 | 25 | 29 => Ok(Vec::new()),
            // FUSE_FORGET, FUSE_INTERRUPT, FUSE_BATCH_FORGET have no answer.
            2 | 36 | 42 => continue,
            _ => Err(libc::ENOSYS),
        };
        let (error, body) = body.map_or_else(|error| (-error, Vec::new()), |body| (0, body));
        let mut reply = answer(16, &[(0, 16 + body.len() as u64)]);
        reply[4..8].copy_from_slice(&error.to_le_bytes());
        reply[8..16].copy_from_slice(&request[8..16]);
        reply.extend(body);
        // The kernel does not wait for a request that was interrupted.
        let _ = device.write_all(&reply);
    }
}

/// Mounts the file system, and starts a thread that answers its requests.
fn mount(at: &Path) -> Option<Mounted> {
    let mounted = OpenOptions::new().read(true).write(true).open("/dev/fuse").and_then(|device| {
        let fd = device.as_raw_fd();
        let options =
            format!("fd={fd},rootmode=40755,user_id=0,group_id=0,allow_other,default_permissions");
        let options = CString::new(options).unwrap();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount("disks", at, "fuse", flags, options.as_c_str())?;
        thread::spawn(|| answer_requests(device));
        Ok(Mounted(at.to_owned()))
    });
    mounted.inspect_err(|error| println!("SKIPPED: FUSE cannot be mounted: {error}")).ok()
}

#[test]
fn a_file_with_the_inode_number_of_another_users_file_reveals_nothing_of_it() {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let root = dir.path().canonicalize().unwrap().join("disks");
    fs::create_dir(&root).unwrap();
    let options = Options::new().root(&root).keep(Keep::Always);
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can act as other users");
        return;
    }
    let Some(mounted) = mount(&root) else { return };
    let Some(mut rig) = shared(options, |_| {}) else { return };
    let (secret, own) = (root.join("alice/secret"), root.join("mallory/own"));
    let state = |path: &Path| {
        let found = fs::metadata(path).unwrap();
        (found.dev(), found.ino(), found.len(), found.mtime(), found.mtime_nsec())
    };
    assert_eq!(state(&secret), state(&own));
    let attached = |shown: &Path, path: &Path| attach(&rig, path, File::open(shown).unwrap()).1;
    as_user(MALLORY, || {
        assert!(File::open(&secret).is_err());
        let refused = attached(&own, &secret).unwrap_err();
        assert!(refused.contains("is not served, or not to you"), "{refused}");
    });
    as_user(ALICE, || assert_eq!(attached(&secret, &secret).unwrap(), SECRET));
    // While the model is held, a file with the same attributes is another model.
    as_user(MALLORY, || {
        for _ in 0..2 {
            assert_eq!(attached(&own, &own).unwrap(), OWN);
        }
    });
    assert_eq!(rig.list().held.len(), 2);
    // Both are held, and the first one is found again.
    as_user(ALICE, || assert_eq!(attached(&secret, &secret).unwrap(), SECRET));
    assert_eq!(rig.list().held.len(), 2);
    rig.stop();
    drop((mounted, dir));
}
