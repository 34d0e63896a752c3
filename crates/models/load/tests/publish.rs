//! Publishing models: files, access, errors, and publishers that disturb each other.

mod place;

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::thread;

use longshore_heap::{self as heap, Heap};
use longshore_load::{
    CancelToken, DigestKind, Error, Manifest, Outcome, PublishProblem, Published, Publisher,
};
use longshore_sys::directory;
use place::{names, safetensors, with_tmpfs};

const NOBODY: u32 = 65534;

fn reason(result: Result<Published, Error>) -> PublishProblem {
    match result.unwrap_err() {
        Error::Publish { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_directory_is_published_with_all_its_files() {
    with_tmpfs("size=64m,huge=always", |place| {
        let source = place.model();
        let mut steps = Vec::new();
        let published = place
            .publisher()
            .digest(DigestKind::Crc32c)
            .observe(|progress| steps.push((progress.done_bytes, progress.total_bytes)))
            .publish(&source)
            .unwrap();
        assert_eq!(published.outcome, Outcome::New);
        assert_eq!(published.path, place.tmpfs.join("model"));
        assert!(published.gives_huge_pages);
        assert_eq!(place.names(), ["model"]);
        let files = ["config.json", "empty", "model.safetensors", "onnx/model.onnx"];
        for (name, file) in files.iter().zip(&published.files) {
            assert_eq!(file.path, Path::new(name));
            assert_eq!(file.digests.len(), 1);
            let path = published.path.join(name);
            assert_eq!(fs::read(&path).unwrap(), fs::read(source.join(name)).unwrap());
            assert_eq!(mode(&path), 0o444, "{name}");
        }
        assert_eq!(mode(&published.path), 0o755);
        assert_eq!((published.mode, mode(&published.path.join("onnx"))), (0o755, 0o755));
        let total = published.content_bytes;
        assert!(steps.is_sorted() && steps.last() == Some(&(total, total)), "{steps:?}");

        // The small files do not take a huge page each.
        let blocks = |name: &str| published.path.join(name).metadata().unwrap().blocks() * 512;
        assert_eq!(blocks("config.json"), longshore_sys::page_size_bytes() as u64);

        let again = place.publisher().digest(DigestKind::Crc32c).publish(&source).unwrap();
        assert_eq!(again.outcome, Outcome::AlreadyPublished);
        assert_eq!(again.path, published.path);
        assert_eq!(again.files[2].digests, published.files[2].digests);
        // Its checksums of another kind are not known.
        let other = place.publisher().digest(DigestKind::Sha256).publish(&source);
        assert_eq!(reason(other), PublishProblem::NameExists);
    });
}

#[test]
fn a_changed_source_is_published_only_if_it_may_replace_the_old_one() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let first = place.publish(&source).unwrap();
        assert!(!first.gives_huge_pages);
        let held = File::open(first.path.join("config.json")).unwrap();
        place.write("model/config.json", b"{\"new\": 1}");
        assert_eq!(reason(place.publish(&source)), PublishProblem::NameExists);
        assert_eq!(fs::read(first.path.join("config.json")).unwrap(), b"{}");
        let second = place.publisher().replace(true).publish(&source).unwrap();
        assert_eq!((second.outcome, &second.path), (Outcome::Replaced, &first.path));
        assert_eq!(fs::read(second.path.join("config.json")).unwrap(), b"{\"new\": 1}");
        assert_eq!(std::io::read_to_string(held).unwrap(), "{}");
        assert_eq!(place.names(), ["model"]);

        // A published model without one of its files is not the same model.
        fs::remove_file(second.path.join("empty")).unwrap();
        assert_eq!(reason(place.publish(&source)), PublishProblem::NameExists);

        // Another entry is never replaced.
        fs::create_dir(place.tmpfs.join("data")).unwrap();
        fs::write(place.tmpfs.join("file"), "file").unwrap();
        symlink("data", place.tmpfs.join("link")).unwrap();
        for name in ["data", "file", "link"] {
            let refused = place.publisher().name(name).replace(true).publish(&source);
            assert_eq!(reason(refused), PublishProblem::NotAModel, "{name}");
        }
        assert_eq!(place.names(), ["data", "file", "link", "model"]);
        for name in ["", ".hidden", "a/b", "..", &"n".repeat(201)] {
            let refused = reason(place.publisher().name(name).publish(&source));
            assert!(matches!(refused, PublishProblem::InvalidName { .. }), "{name}");
        }
    });
}

#[test]
fn files_and_sharded_models_are_published() {
    with_tmpfs("size=64m", |place| {
        let file = place.write("files/one.safetensors", &safetensors(100));
        let published = place.publish(&file).unwrap();
        assert_eq!(published.path, place.tmpfs.join("one/one.safetensors"));
        assert_eq!(fs::read(&published.path).unwrap(), fs::read(&file).unwrap());

        let index = r#"{"weight_map": {"t": "a-1.safetensors"}}"#;
        let index = place.write("files/a.safetensors.index.json", index.as_bytes());
        place.write("files/a-1.safetensors", &safetensors(10));
        let published = place.publish(&index).unwrap();
        assert_eq!(published.path, place.tmpfs.join("a/a.safetensors.index.json"));
        let expected = [".longshore.json", "a-1.safetensors", "a.safetensors.index.json"];
        assert_eq!(names(&published.directory), expected);

        let invalid = place.write("files/bad.safetensors", b"not a header");
        assert!(matches!(place.publish(&invalid), Err(Error::Format { .. })));
        let invalid = place.write("files/bad.gguf", b"not a header");
        assert!(matches!(place.publish(&invalid), Err(Error::Format { .. })));
        let missing = place.publish(&place.source("files/none")).unwrap_err();
        assert!(matches!(missing, Error::Open { .. }), "{missing}");
        fs::create_dir(place.source("nothing")).unwrap();
        assert_eq!(reason(place.publish(&place.source("nothing"))), PublishProblem::Empty);
        assert_eq!(place.names(), ["a", "one"]);
    });
}

#[test]
fn links_stay_in_the_model() {
    with_tmpfs("size=64m", |place| {
        // The cache of the Hugging Face Hub.
        place.write("models--o--m/blobs/0123", &safetensors(10));
        fs::create_dir_all(place.source("models--o--m/snapshots/abc")).unwrap();
        let snapshot = place.source("models--o--m/snapshots/abc");
        symlink("../../blobs/0123", snapshot.join("model.safetensors")).unwrap();
        let published = place.publish(&snapshot).unwrap();
        assert_eq!(published.path, place.tmpfs.join("o--m"));
        let file = published.path.join("model.safetensors");
        assert!(file.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read(file).unwrap(), safetensors(10));

        place.write("secret", b"secret");
        fs::create_dir_all(place.source("out/sub")).unwrap();
        place.write("out/file", b"file");
        for (target, expected) in [
            ("../secret", PublishProblem::LeavesModel),
            ("/etc/passwd", PublishProblem::LeavesModel),
            ("sub", PublishProblem::NotADirectory),
        ] {
            symlink(target, place.source("out/link")).unwrap();
            assert_eq!(reason(place.publish(&place.source("out"))), expected, "{target}");
            fs::remove_file(place.source("out/link")).unwrap();
        }
        symlink("file", place.source("out/link")).unwrap();
        let published = place.publish(&place.source("out")).unwrap();
        assert_eq!(fs::read(published.path.join("link")).unwrap(), b"file");

        for (name, kind) in [
            ("fifo", rustix::fs::FileType::Fifo),
            ("socket", rustix::fs::FileType::Socket),
            ("device", rustix::fs::FileType::CharacterDevice),
        ] {
            let path = place.write(&format!("{name}/file"), b"").with_file_name("other");
            let mode = rustix::fs::Mode::RUSR;
            if rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).is_err() {
                println!("SKIPPED: a {name} cannot be made");
                continue;
            }
            let refused = place.publish(&place.source(name)).unwrap_err();
            assert!(matches!(refused, Error::NotRegular { .. }), "{name}: {refused}");
        }
        assert_eq!(place.names(), ["o--m", "out"]);
    });
}

#[test]
fn a_tmpfs_without_room_is_an_error() {
    with_tmpfs("size=4m,huge=always", |place| {
        let source = place.model();
        let refused = reason(place.publish(&source));
        assert!(matches!(refused, PublishProblem::NoRoom { .. }), "{refused}");
        assert!(place.names().is_empty());
        // A file that is not valid is refused before its room is checked: a server would evict other models.
        let damaged = place.write("damaged.safetensors", b"");
        File::options().write(true).open(&damaged).unwrap().set_len(200 << 20).unwrap();
        let refused = place.publish(&damaged).unwrap_err();
        assert!(matches!(refused, Error::Format { .. }), "{refused}");

        // The room is gone only after both have checked it.
        let heap = Heap::Tmpfs(place.tmpfs.clone());
        let (one, other) = (heap.reserve(3 << 20).unwrap(), heap.reserve(3 << 20).unwrap());
        one.populate(0..3 << 20).unwrap();
        let full = other.populate(0..3 << 20).unwrap_err();
        assert!(matches!(full, heap::Error::TmpfsFull { .. }), "{full}");
        let full = heap.reserve(3 << 20).unwrap_err();
        assert!(matches!(full, heap::Error::TmpfsFull { free_bytes: Some(_), .. }), "{full}");
        // Buffers below 2 MiB are prefaulted in another way.
        let small: Vec<_> = (0..8).map(|_| heap.reserve(600_000)).collect();
        let failed = small.iter().flatten().map(|it| it.populate(0..600_000)).find(Result::is_err);
        if let Some(Err(full)) = failed {
            assert!(matches!(full, heap::Error::TmpfsFull { .. }), "{full}");
        }
    });
    with_tmpfs("size=64m,nr_inodes=6", |place| {
        let refused = reason(place.publish(&place.model()));
        assert_eq!(refused, PublishProblem::NoInodes { needed: 9, free: 4 });
        assert!(place.names().is_empty());
    });
}

#[test]
fn a_source_that_changes_is_not_published() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let change = |how: &dyn Fn()| {
            let changed = place.publisher().observe(|_| how()).publish(&source).unwrap_err();
            assert!(matches!(changed, Error::Changed { .. }), "{changed}");
            assert!(place.names().is_empty());
        };
        // A file that was read already, one that follows, a new one, and one that disappears.
        change(&|| fs::write(source.join("config.json"), "{\"other\": 1}").unwrap());
        change(&|| {
            fs::write(source.join("new"), "[1, 2]").unwrap();
            fs::rename(source.join("new"), source.join("onnx/model.onnx")).unwrap();
        });
        change(&|| fs::write(source.join("more"), "").unwrap());
        place.publish(&source).unwrap();
    });
}

#[test]
fn a_failed_publication_leaves_nothing_behind() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let sum = "0".repeat(64);
        let sums = place.write("sums", format!("{sum}  model/model.safetensors\n").as_bytes());
        let manifest = Manifest::open(&sums).unwrap();
        let refused = place.publisher().manifest(&manifest).publish(&source).unwrap_err();
        assert!(matches!(refused, Error::Mismatch { .. }), "{refused}");
        let sums = place.write("sums", format!("{sum}  other.safetensors\n").as_bytes());
        let manifest = Manifest::open(&sums).unwrap();
        let refused = place.publisher().manifest(&manifest).publish(&source).unwrap_err();
        assert!(matches!(refused, Error::Manifest { .. }), "{refused}");
        let token = CancelToken::new();
        let stop = token.clone();
        let cancelled =
            place.publisher().cancel(&token).observe(move |_| stop.cancel()).publish(&source);
        assert!(matches!(cancelled, Err(Error::Cancelled { .. })), "{cancelled:?}");
        assert!(place.names().is_empty());

        // A right checksum of the weights is enough.
        let found = place.publisher().digest(DigestKind::Sha256).name("x").publish(&source);
        let digest = found.unwrap().files[2].digests[0].1.clone();
        let sums = place.write("sums", format!("{digest}  model/model.safetensors\n").as_bytes());
        let manifest = Manifest::open(&sums).unwrap();
        place.publisher().manifest(&manifest).publish(&source).unwrap();
        let again = place.publisher().manifest(&manifest).publish(&source).unwrap();
        assert_eq!(again.outcome, Outcome::AlreadyPublished);
    });
}

#[test]
fn leftovers_without_a_publisher_are_removed() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let leftover = place.tmpfs.join(".model.0123456789abcdef.partial");
        fs::create_dir_all(leftover.join("onnx")).unwrap();
        fs::write(leftover.join("onnx/model.onnx"), "half").unwrap();
        fs::set_permissions(&leftover, Permissions::from_mode(0o000)).unwrap();
        let locked = place.tmpfs.join(".other.456789abcdef0123.partial");
        fs::create_dir(&locked).unwrap();
        let tmpfs = directory::open(&place.tmpfs).unwrap();
        let name = Path::new(".other.456789abcdef0123.lock");
        let lock = directory::open_lock_in(&tmpfs, name).unwrap();
        assert!(directory::try_lock(&lock).unwrap());
        // A lock of the directory itself, which other users can take, does not matter.
        let replaced = place.tmpfs.join(".old.456789abcdef0123.partial");
        fs::create_dir(&replaced).unwrap();
        let held = directory::open(&replaced).unwrap();
        assert!(directory::try_lock(&held).unwrap());
        symlink("/etc", place.tmpfs.join(".link.89abcdef01234567.partial")).unwrap();
        place.publish(&source).unwrap();
        assert_eq!(
            place.names(),
            [
                ".link.89abcdef01234567.partial",
                ".other.456789abcdef0123.lock",
                ".other.456789abcdef0123.partial",
                "model"
            ]
        );
        drop(lock);
        place.publish(&source).unwrap();
        assert_eq!(place.names(), [".link.89abcdef01234567.partial", "model"]);
    });
}

#[test]
fn a_directory_that_others_control_is_refused() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let publish = |path: &Path| reason(Publisher::new(path).publish(&source));
        assert_eq!(publish(&place.source("model")), PublishProblem::NotTmpfs);
        let inner = place.tmpfs.join("inner");
        fs::create_dir(&inner).unwrap();
        fs::set_permissions(&inner, Permissions::from_mode(0o777)).unwrap();
        assert_eq!(publish(&inner), PublishProblem::WritableByOthers);
        fs::set_permissions(&inner, Permissions::from_mode(0o1777)).unwrap();
        Publisher::new(&inner).publish(&source).unwrap();
        symlink("inner", place.tmpfs.join("link")).unwrap();
        assert_eq!(publish(&place.tmpfs.join("link")), PublishProblem::Link);
        // A user has made an entry with the name of the model in a directory for all.
        let foreign = inner.join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::copy(inner.join("model/.longshore.json"), foreign.join(".longshore.json")).unwrap();
        std::os::unix::fs::chown(&foreign, Some(NOBODY), None).unwrap();
        let refused = Publisher::new(&inner).name("foreign").replace(true).publish(&source);
        assert_eq!(reason(refused), PublishProblem::NotAModel);
        std::os::unix::fs::chown(&inner, Some(NOBODY), None).unwrap();
        assert_eq!(publish(&inner), PublishProblem::OtherOwner { uid: NOBODY });
    });
}

/// Returns `true` if another user can read the file.
fn nobody_reads(path: &Path) -> bool {
    reads(path, NOBODY, NOBODY)
}

fn reads(path: &Path, user: u32, group: u32) -> bool {
    let mut command = Command::new("cat");
    command.arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    // As root, this also drops the supplementary groups.
    command.uid(user).gid(group).status().unwrap().success()
}

#[test]
fn a_private_model_stays_private() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let weights = |published: &Published| published.path.join("model.safetensors");
        let publish = |name: &str| place.publisher().name(name).publish(&source).unwrap();
        let set = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        assert!(nobody_reads(&weights(&publish("public"))));

        set(&source.join("model.safetensors"), 0o640);
        let published = publish("private-file");
        assert_eq!(mode(&weights(&published)), 0o440);
        assert!(!nobody_reads(&weights(&published)));
        assert!(nobody_reads(&published.path.join("config.json")));
        set(&source.join("model.safetensors"), 0o644);

        // A directory above the source keeps others out.
        for private in [source.as_path(), place.disk.path()] {
            set(private, 0o700);
            let published =
                publish(&format!("private-{}", mode(private) + u32::from(private == source)));
            set(private, 0o755);
            assert_eq!(mode(&published.path), 0o700);
            assert_eq!(mode(&weights(&published)), 0o400);
            assert!(!nobody_reads(&weights(&published)));
        }

        set(&source, 0o700);
        let shared = place.publisher().name("shared").mode(0o666).publish(&source).unwrap();
        assert_eq!((mode(&shared.path), mode(&weights(&shared))), (0o755, 0o444));
        assert!(nobody_reads(&weights(&shared)));
        set(&source, 0o755);

        // The group is carried over. The copy belongs to root, but the owner of the source may read it.
        for file in ["model.safetensors", ""] {
            let path = source.join(file);
            std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
        set(&source.join("model.safetensors"), 0o600);
        let published = publish("owned");
        let found = weights(&published).metadata().unwrap();
        // The bits of the group are the mask of an access control list.
        assert_eq!((found.uid(), found.gid(), found.mode() & 0o777), (0, NOBODY, 0o440));
        assert_eq!(published.path.metadata().unwrap().uid(), 0);
        assert!(nobody_reads(&weights(&published)));
        assert!(!reads(&weights(&published), NOBODY - 1, NOBODY), "a member of the group");
        assert_eq!(publish("owned").outcome, Outcome::AlreadyPublished);
    });
}

/// Returns an access control list by which the user [`NOBODY`] may read, in the kernel's format
/// (`include/uapi/linux/posix_acl_xattr.h`).
fn access_list_for_nobody() -> Vec<u8> {
    let (user_obj, user, group_obj, mask, other) = (0x01, 0x02, 0x04, 0x10, 0x20);
    let entries: [(u16, u16, u32); 5] = [
        (user_obj, 6, u32::MAX),
        (user, 5, NOBODY),
        (group_obj, 5, u32::MAX),
        (mask, 5, u32::MAX),
        (other, 0, u32::MAX),
    ];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, bits, id) in entries {
        list.extend([tag.to_le_bytes(), bits.to_le_bytes()].as_flattened());
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn access_control_lists_give_no_access_to_a_copy() {
    with_tmpfs("size=64m", |place| {
        let none = rustix::fs::XattrFlags::empty();
        let source = place.model();
        let weights = source.join("model.safetensors");
        fs::set_permissions(&weights, Permissions::from_mode(0o640)).unwrap();
        let list = access_list_for_nobody();
        // Of the directory that the models are published in.
        rustix::fs::setxattr(&place.tmpfs, "system.posix_acl_default", &list, none).unwrap();
        let copy = |name| place.tmpfs.join(name).join("model.safetensors");
        place.publisher().name("a").publish(&source).unwrap();
        assert!(nobody_reads(&copy("a").with_file_name("config.json")));
        assert_eq!((mode(&copy("a")), nobody_reads(&copy("a"))), (0o440, false));
        // Of the source: the owner alone has access, because the list is not carried over.
        rustix::fs::setxattr(&weights, "system.posix_acl_access", &list, none).unwrap();
        assert!(nobody_reads(&weights));
        place.publisher().name("b").publish(&source).unwrap();
        assert_eq!((mode(&copy("b")), nobody_reads(&copy("b"))), (0o400, false));
        assert_eq!(place.publisher().name("a").publish(&source).unwrap().mode, 0o755);
        assert_eq!(mode(&copy("a")), 0o400, "the access to a published model follows");
        // Of a directory above it.
        rustix::fs::removexattr(&weights, "system.posix_acl_access").unwrap();
        rustix::fs::setxattr(place.disk.path(), "system.posix_acl_access", &list, none).unwrap();
        place.publisher().name("c").publish(&source).unwrap();
        assert_eq!((mode(&copy("c")), nobody_reads(&copy("c"))), (0o400, false));
    });
}

#[test]
fn permissions_follow_those_of_the_source() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let weights = source.join("model.safetensors");
        let copy = place.tmpfs.join("model/model.safetensors");
        let set = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let outcome = || place.publish(&source).unwrap().outcome;
        assert_eq!(outcome(), Outcome::New);
        let inode = copy.metadata().unwrap().ino();
        let expect = |changed: &dyn Fn(), mode_of_copy: u32, others_read: bool| {
            changed();
            assert_eq!(outcome(), Outcome::AccessChanged);
            assert_eq!(outcome(), Outcome::AlreadyPublished);
            assert_eq!((mode(&copy), nobody_reads(&copy)), (mode_of_copy, others_read));
            let record = place.tmpfs.join("model/.longshore.json");
            let of_record = if mode_of_copy & 0o004 > 0 { 0o444 } else { 0o400 };
            assert_eq!(mode(&record), of_record);
        };
        expect(&|| set(&weights, 0o640), 0o440, false);
        expect(&|| set(&weights, 0o644), 0o444, true);
        expect(&|| set(&source, 0o700), 0o400, false);
        expect(&|| set(&source, 0o755), 0o444, true);
        // A directory above the source.
        expect(&|| set(place.disk.path(), 0o700), 0o400, false);
        expect(&|| set(place.disk.path(), 0o755), 0o444, true);
        let chown = |owner, group| std::os::unix::fs::chown(&weights, owner, group).unwrap();
        expect(&|| (chown(None, Some(NOBODY)), set(&weights, 0o640)).1, 0o440, true);
        // The mode of a file with an access control list has the mask in place of the group's bits.
        chown(Some(NOBODY), Some(0));
        expect(&|| set(&weights, 0o600), 0o440, true);
        expect(&|| set(&weights, 0o040), 0o440, false);
        assert!(reads(&copy, NOBODY - 1, 0), "a member of the group");
        expect(&|| set(&weights, 0o640), 0o440, true);
        expect(&|| set(&weights, 0o000), 0o400, false);
        chown(Some(0), None);
        expect(&|| set(&weights, 0o644), 0o444, true);
        assert_eq!(copy.metadata().unwrap().ino(), inode, "nothing was copied");
    });
}

#[test]
fn withdrawn_permissions_are_followed_if_there_is_no_room_for_a_new_version() {
    with_tmpfs("size=8m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        let copy = |name: &str| place.tmpfs.join("model").join(name);
        let set = |path: &Path, mode| {
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        };
        let changed = place.write("model/model.safetensors", &safetensors(6_000_000));
        set(&changed, 0o600);
        set(&place.write("model/config.json", b"{ }"), 0o644);
        set(&source.join("onnx"), 0o700);
        let refused = place.publisher().replace(true).publish(&source);
        assert!(matches!(reason(refused), PublishProblem::NoRoom { .. }));
        assert!(!nobody_reads(&copy("model.safetensors")) && nobody_reads(&copy("config.json")));
        assert!(!nobody_reads(&copy("onnx/model.onnx")));
        // Permissions that are given are those of the new version.
        set(&changed, 0o644);
        assert!(place.publisher().replace(true).publish(&source).is_err());
        assert!(!nobody_reads(&copy("model.safetensors")));
    });
}

#[test]
fn withdrawn_permissions_are_followed_if_a_new_version_may_not_replace_the_old_one() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        let copy = place.tmpfs.join("model/model.safetensors");
        let len_bytes = copy.metadata().unwrap().len();
        let changed = place.write("model/model.safetensors", &safetensors(6_000_000));
        fs::set_permissions(changed, Permissions::from_mode(0o600)).unwrap();
        // Another model of this name does not affect the access to this one.
        let other = place.write("other/model.safetensors", &safetensors(1_000));
        fs::set_permissions(other, Permissions::from_mode(0o600)).unwrap();
        let refused = place.publisher().name("model").publish(&place.source("other"));
        assert!(matches!(reason(refused), PublishProblem::NameExists));
        assert!(nobody_reads(&copy));
        assert!(matches!(reason(place.publish(&source)), PublishProblem::NameExists));
        assert!(!nobody_reads(&copy));
        assert_eq!(copy.metadata().unwrap().len(), len_bytes, "the old version stays");
    });
}

#[test]
fn permissions_follow_also_if_the_manifest_differs() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let publish = |manifest: &Path| {
            let manifest = Manifest::open(manifest).unwrap();
            place.publisher().replace(true).manifest(&manifest).publish(&source)
        };
        let sums = |name: &str, digest: &str| {
            place.write(name, format!("{digest}  model.safetensors\n").as_bytes())
        };
        let digests = place.publisher().digest(DigestKind::Xxh3).publish(&source).unwrap().files;
        let weights = digests.iter().find(|it| it.path.ends_with("model.safetensors")).unwrap();
        publish(&sums("good", &weights.digests[0].1)).unwrap();
        fs::set_permissions(&source, Permissions::from_mode(0o700)).unwrap();
        let refused = publish(&sums("bad", "0123456789abcdef")).unwrap_err();
        assert!(matches!(refused, Error::Mismatch { .. }), "{refused}");
        assert_eq!(mode(&place.tmpfs.join("model")), 0o700);
    });
}

#[test]
fn publishers_do_not_disturb_each_other() {
    with_tmpfs("size=512m", |place| {
        let source = place.model();
        for round in 0..8 {
            let name = format!("model-{round}");
            let barrier = Barrier::new(4);
            let outcomes: Vec<Outcome> = thread::scope(|scope| {
                let threads: Vec<_> = (0..4)
                    .map(|thread| {
                        let (name, barrier, source) = (&name, &barrier, &source);
                        scope.spawn(move || {
                            barrier.wait();
                            let publisher = place.publisher().replace(thread == 3);
                            publisher.name(name).publish(source).unwrap().outcome
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let new = outcomes.iter().filter(|outcome| **outcome == Outcome::New).count();
            assert_eq!(new, 1, "{outcomes:?}");
            assert!(!outcomes.contains(&Outcome::Replaced), "{outcomes:?}");
        }
        let expected: Vec<_> = (0..8).map(|round| format!("model-{round}")).collect();
        assert_eq!(place.names(), expected);
    });
}

#[test]
fn the_limits_on_a_model_are_enforced() {
    with_tmpfs("size=64m", |place| {
        let deep = (0..20).map(|_| "d").collect::<PathBuf>();
        fs::create_dir_all(place.source("deep").join(deep)).unwrap();
        place.write("deep/file", b"x");
        let refused = reason(place.publish(&place.source("deep")));
        assert!(matches!(refused, PublishProblem::TooDeep { .. }), "{refused}");
        let many = place.tmpfs.join("many");
        fs::create_dir(&many).unwrap();
        for number in 0..10_001 {
            File::create(many.join(number.to_string())).unwrap();
        }
        let refused = reason(place.publish(&many));
        assert!(matches!(refused, PublishProblem::TooMany { .. }), "{refused}");
        let missing = Publisher::new("/no/such").publish(&many).unwrap_err();
        let Error::Open { source, .. } = missing else { panic!("{missing}") };
        assert_eq!(source.kind(), ErrorKind::NotFound);
        assert_eq!(place.names(), ["many"]);
    });
}
