//! Attacks by the owner of a source or of a published model on a process of root.

mod place;

use std::fs::{self, File, Permissions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::Path;

use longshore_load::{
    DigestKind, Error, Manifest, Outcome, PublishProblem, PublishedFile, PublishedModel,
    PublishedModels,
};
use place::{Place, with_tmpfs};
use serde_json::Value;

const NOBODY: u32 = 65534;

fn models(place: &Place) -> PublishedModels {
    PublishedModels::open(&place.tmpfs).unwrap()
}

fn find(place: &Place) -> Result<PublishedModel, Error> {
    models(place).find("model")
}

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> PublishProblem {
    match result.unwrap_err() {
        Error::Publish { reason, .. } => reason,
        other => panic!("{other}"),
    }
}

/// Gives a file or directory, with all in it, to another user.
fn give(path: &Path) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    if path.is_dir() {
        fs::read_dir(path).unwrap().for_each(|entry| give(&entry.unwrap().path()));
    }
}

/// Changes the record of the model.
fn change_record(place: &Place, change: impl FnOnce(&mut Value)) {
    let path = place.tmpfs.join("model/.longshore.json");
    let mut record: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    change(&mut record);
    fs::write(&path, record.to_string()).unwrap();
}

#[test]
fn checksums_in_a_record_of_another_user_are_not_believed() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let publisher = || place.publisher().digest(DigestKind::Sha256);
        let first = publisher().name("own").publish(&source).unwrap();
        let again = publisher().name("own").publish(&source).unwrap();
        assert_eq!(again.outcome, Outcome::AlreadyPublished);
        assert_eq!(again.files[2].digests, first.files[2].digests);
        let line =
            |file: &PublishedFile| format!("{}  {}\n", file.digests[0].1, file.path.display());
        let sums: String = first.files.iter().map(line).collect();
        let manifest = Manifest::open(place.write("model.sums", sums.as_bytes())).unwrap();

        give(&source);
        let publisher = || publisher().manifest(&manifest);
        assert_eq!(publisher().publish(&source).unwrap().outcome, Outcome::New);
        // Its owner changes a file, and not the record.
        let weights = place.tmpfs.join("model/model.safetensors");
        let content = fs::read(&weights).unwrap();
        let mut changed = content.clone();
        changed[1_000_000] ^= 1;
        fs::write(&weights, &changed).unwrap();
        assert_eq!(reason(publisher().publish(&source)), PublishProblem::NameExists);
        assert_eq!(fs::read(&weights).unwrap(), changed);
        let replaced = publisher().replace(true).publish(&source).unwrap();
        assert_eq!(replaced.outcome, Outcome::Replaced);
        assert_eq!(fs::read(&weights).unwrap(), content);
        // Without a requested checksum, those of the record are not reported.
        let again = place.publish(&source).unwrap();
        assert_eq!(again.outcome, Outcome::AlreadyPublished);
        assert!(again.files.iter().all(|file| file.digests.is_empty()));
    });
}

#[test]
fn names_of_another_user_do_not_lead_to_changes_of_other_files() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let secret = place.write("model/secret.bin", &[1; 4096]);
        let public = place.write("model/public.bin", &[2; 4096]);
        give(&source);
        for (file, mode) in [(&secret, 0o600), (&public, 0o644)] {
            chown(file, Some(NOBODY - 1), None).unwrap();
            fs::set_permissions(file, Permissions::from_mode(mode)).unwrap();
        }
        place.publish(&source).unwrap();
        // The owner of the directories exchanges two files of another user.
        let copy = |name: &str| place.tmpfs.join("model").join(name);
        fs::rename(copy("secret.bin"), copy("x")).unwrap();
        fs::rename(copy("public.bin"), copy("secret.bin")).unwrap();
        fs::rename(copy("x"), copy("public.bin")).unwrap();
        assert_eq!(reason(place.publish(&source)), PublishProblem::NameExists);
        let mode = |name: &str| copy(name).metadata().unwrap().mode() & 0o777;
        assert_eq!((mode("public.bin"), mode("secret.bin")), (0o400, 0o444), "as they were");
        assert_eq!(place.tmpfs.join("model").metadata().unwrap().mode() & 0o777, 0o755);
        let replaced = place.publisher().replace(true).publish(&source).unwrap();
        assert_eq!(replaced.outcome, Outcome::Replaced);
        assert_eq!((mode("public.bin"), mode("secret.bin")), (0o444, 0o400));
        // The record is a file of somebody else.
        fs::rename(copy("secret.bin"), copy(".longshore.json")).unwrap();
        assert!(place.publish(&source).is_err());
        assert_eq!(mode(".longshore.json"), 0o400);
    });
}

#[test]
fn lengths_in_a_record_do_not_change_the_memory_of_a_model() {
    with_tmpfs("size=64m", |place| {
        place.publish(&place.model()).unwrap();
        let weights = place.tmpfs.join("model/onnx/model.onnx");
        fs::hard_link(place.tmpfs.join("model/config.json"), place.tmpfs.join("other name"))
            .unwrap();
        let allocated_bytes = find(place).unwrap().allocated_bytes();
        assert!((5_000_000 + 4096..6_000_000).contains(&allocated_bytes), "{allocated_bytes}");
        fs::set_permissions(&weights, Permissions::from_mode(0o600)).unwrap();
        File::options().write(true).open(&weights).unwrap().set_len(1 << 40).unwrap();
        change_record(place, |record| record["files"][3]["bytes"] = (1_u64 << 40).into());
        let model = find(place).unwrap();
        assert!(model.content_bytes > 1 << 40);
        assert_eq!(model.allocated_bytes(), allocated_bytes);
    });
}

#[test]
fn a_record_that_takes_long_to_check_is_not_valid() {
    with_tmpfs("size=64m", |place| {
        place.publish(&place.model()).unwrap();
        let deep = "d/".repeat(17) + "file";
        for path in [&deep, "../model/empty", "/etc/passwd", "onnx/./../empty"] {
            change_record(place, |record| record["files"][0]["path"] = path.into());
            assert_eq!(reason(find(place)), PublishProblem::NotPublished, "{path}");
        }
        // A path that is listed twice.
        change_record(place, |record| record["files"][0] = record["files"][1].clone());
        assert_eq!(reason(find(place)), PublishProblem::NotPublished);
        change_record(place, |record| record["files"][0]["path"] = "a link".into());
        symlink("empty", place.tmpfs.join("model/a link")).unwrap();
        assert!(!find(place).unwrap().is_complete, "links are not followed");
    });
}

#[test]
fn a_model_that_its_owner_has_damaged_is_replaced() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        give(&source);
        place.publish(&source).unwrap();
        let record = place.tmpfs.join("model/.longshore.json");
        fs::remove_file(&record).unwrap();
        assert_eq!(reason(place.publish(&source)), PublishProblem::NotAModel);
        let replace = || place.publisher().replace(true).publish(&source);
        assert_eq!(replace().unwrap().outcome, Outcome::Replaced);
        // The model of another user, who is not the owner of the source.
        let other = place.tmpfs.join("other");
        fs::create_dir(&other).unwrap();
        give(&other);
        chown(&other, Some(NOBODY - 1), None).unwrap();
        let refused = place.publisher().name("other").replace(true).publish(&source);
        assert_eq!(reason(refused), PublishProblem::NotAModel);
        // The source has another owner now, who is also the owner of the next version.
        let folder = place.tmpfs.join("model");
        chown(&source, Some(NOBODY - 1), None).unwrap();
        assert_eq!(reason(place.publish(&source)), PublishProblem::NameExists);
        assert_eq!(replace().unwrap().outcome, Outcome::Replaced);
        assert_eq!(folder.metadata().unwrap().uid(), NOBODY - 1);
        // A directory of root is not a damaged model.
        fs::create_dir(place.tmpfs.join("kept")).unwrap();
        let refused = place.publisher().name("kept").replace(true).publish(&source);
        assert_eq!(reason(refused), PublishProblem::NotAModel);
    });
}

#[test]
fn a_model_that_cannot_be_changed_is_closed_until_there_is_room_for_a_copy() {
    with_tmpfs("size=8m", |place| {
        let source = place.model();
        give(&source);
        place.publish(&source).unwrap();
        let folder = place.tmpfs.join("model");
        let mode = || folder.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(), 0o755);
        fs::set_permissions(source.join("empty"), Permissions::from_mode(0o600)).unwrap();
        let refused = place.publisher().replace(true).publish(&source);
        assert!(matches!(reason(refused), PublishProblem::NoRoom { .. }));
        assert_eq!(mode(), 0o700);
    });
}

#[test]
fn links_in_the_place_of_directories_do_not_keep_permissions() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        fs::create_dir(source.join("e")).unwrap();
        place.publish(&source).unwrap();
        let empty = place.tmpfs.join("model/e");
        fs::remove_dir(&empty).unwrap();
        symlink("/nowhere", &empty).unwrap();
        fs::set_permissions(source.join("empty"), Permissions::from_mode(0o600)).unwrap();
        assert_eq!(reason(place.publish(&source)), PublishProblem::NameExists);
        let replaced = place.publisher().replace(true).publish(&source).unwrap();
        assert_eq!(replaced.outcome, Outcome::Replaced);
        let copy = place.tmpfs.join("model/empty").metadata().unwrap();
        assert_eq!(copy.mode() & 0o777, 0o400);
    });
}

#[test]
fn a_model_may_have_the_name_of_this_project() {
    with_tmpfs("size=64m", |place| {
        let lock = models(place).lock().unwrap();
        let source = place.model();
        place.publisher().name("longshore").publish(&source).unwrap();
        models(place).remove_leftovers();
        assert!(matches!(reason(models(place).lock()), PublishProblem::Managed));
        drop(lock);
    });
}

#[test]
fn links_in_a_cache_lead_to_its_own_files_only() {
    with_tmpfs("size=64m", |place| {
        // As in the cache of the Hugging Face Hub, but beside a file of another user.
        let secret = place.write("g/private/key", b"secret");
        let blob = place.write("g/blobs/0123", b"{}");
        let snapshot = place.source("g/snapshots/x");
        fs::create_dir_all(&snapshot).unwrap();
        symlink("../../blobs/0123", snapshot.join("config.json")).unwrap();
        let publish = || place.publisher().mode(0o444).replace(true).publish(&snapshot);
        let published = publish().unwrap();
        assert_eq!(fs::read(published.path.join("config.json")).unwrap(), fs::read(&blob).unwrap());
        symlink("../../private/key", snapshot.join("w.bin")).unwrap();
        assert_eq!(reason(publish()), PublishProblem::LeavesModel);
        fs::remove_file(snapshot.join("w.bin")).unwrap();
        // The directory of files is itself a link.
        fs::rename(place.source("g/blobs"), place.source("g/moved")).unwrap();
        symlink("private", place.source("g/blobs")).unwrap();
        symlink("../../blobs/key", snapshot.join("w.bin")).unwrap();
        fs::remove_file(snapshot.join("config.json")).unwrap();
        assert!(publish().is_err());
        assert_eq!(fs::read(secret).unwrap(), b"secret");
    });
}

#[test]
fn a_server_needs_a_path_that_other_users_do_not_control() {
    with_tmpfs("size=64m", |place| {
        let inner = place.tmpfs.join("above/models");
        fs::create_dir_all(&inner).unwrap();
        let open = || PublishedModels::open(&inner).unwrap();
        drop(open().lock().unwrap());
        let above = inner.parent().unwrap();
        let set = |mode| fs::set_permissions(above, Permissions::from_mode(mode)).unwrap();
        set(0o777);
        assert_eq!(reason(open().lock()), PublishProblem::UnsafePath);
        set(0o1777);
        drop(open().lock().unwrap());
        chown(above, Some(NOBODY), None).unwrap();
        assert_eq!(reason(open().lock()), PublishProblem::UnsafePath);
        let models = open();
        assert!(models.has_path());
        fs::rename(&inner, place.tmpfs.join("away")).unwrap();
        assert!(!models.has_path());
        fs::create_dir(&inner).unwrap();
        assert!(!models.has_path());
    });
}

#[test]
fn a_process_that_is_killed_while_it_removes_a_model_leaves_nothing() {
    with_tmpfs("size=64m", |place| {
        place.publish(&place.model()).unwrap();
        let hidden = place.tmpfs.join(".model.0123456789abcdef.partial");
        fs::rename(place.tmpfs.join("model"), &hidden).unwrap();
        File::create(place.tmpfs.join(".model.0123456789abcdef.lock")).unwrap();
        // A user who may read the model keeps it open, and locks it.
        let held = File::open(&hidden).unwrap();
        held.lock().unwrap();
        let mut file = File::open(hidden.join("config.json")).unwrap();
        models(place).remove_leftovers();
        assert!(place.names().is_empty(), "{:?}", place.names());
        let mut content = String::new();
        file.read_to_string(&mut content).unwrap();
        assert_eq!(content, "{}");
    });
}
