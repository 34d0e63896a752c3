//! Attacks by the owner of a source or of a published model on a process of root.

mod place;

use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use longshore_load::{Error, Outcome, PublishProblem, PublishedModel, PublishedModels};
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
fn a_copy_belongs_to_the_publisher_alone() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        give(&source);
        fs::set_permissions(&source, Permissions::from_mode(0o700)).unwrap();
        let path = place.publish(&source).unwrap().path;
        // The owner of the source may read the copy, and change nothing of it.
        let run = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(&path).stderr(Stdio::null());
            command.uid(NOBODY).gid(NOBODY).status().unwrap().success()
        };
        assert!(run("cat \"$0\"/*.json \"$0\"/onnx/* > /dev/null"));
        for script in [
            "mv \"$0/config.json\" \"$0/x\"",
            "rm -f \"$0/empty\"",
            "> \"$0/config.json\"",
            "> \"$0/new\"",
            "> \"$0/onnx/new\"",
            "mkdir \"$0/new\"",
            "chmod 755 \"$0\"",
            "chmod 644 \"$0/.longshore.json\"",
            "mv \"$0\" \"$0.old\"",
        ] {
            assert!(!run(script), "{script}");
        }
        assert_eq!(place.publish(&source).unwrap().outcome, Outcome::AlreadyPublished);
    });
}

#[test]
fn an_owner_reads_the_copy_if_it_can_read_the_source() {
    with_tmpfs("size=64m", |place| {
        let (a, team) = (NOBODY - 2, NOBODY - 3);
        let team_folder = place.source("team");
        let source = team_folder.join("model");
        fs::create_dir_all(&team_folder).unwrap();
        fs::rename(place.model(), &source).unwrap();
        let set = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
        for path in [source.clone(), source.join("onnx")] {
            chown(&path, Some(a), Some(team)).unwrap();
            set(&path, 0o750).unwrap();
        }
        for file in ["model.safetensors", "config.json", "empty", "onnx/model.onnx"] {
            chown(source.join(file), Some(a), Some(team)).unwrap();
            set(&source.join(file), 0o640).unwrap();
        }
        let reads = |path: &Path, user, group| {
            let mut command = Command::new("cat");
            command.arg(path.join("config.json")).stdout(Stdio::null()).stderr(Stdio::null());
            command.uid(user).gid(group).status().unwrap().success()
        };
        let check = |owner_reads: bool| {
            let copy = place.publish(&source).unwrap().path;
            for (user, group) in [(a, team), (NOBODY, team), (NOBODY, NOBODY), (a, a)] {
                let expected = reads(&source, user, group);
                assert_eq!(reads(&copy, user, group), expected, "{user} {group}");
            }
            assert_eq!(reads(&copy, a, team), owner_reads);
        };
        // A directory of root and the team above the model.
        chown(&team_folder, Some(0), Some(team)).unwrap();
        set(&team_folder, 0o750).unwrap();
        check(true);
        set(&team_folder, 0o700).unwrap();
        check(false);
        // A directory of the owner.
        chown(&team_folder, Some(a), None).unwrap();
        check(true);
        // With an access control list, which gives others nothing.
        longshore_sys::directory::set_access(
            File::open(&team_folder).unwrap(),
            0o700,
            Some((NOBODY - 9, 5)),
        )
        .unwrap();
        check(true);
    });
}

#[test]
fn permissions_are_followed_also_if_a_model_cannot_be_published() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        give(&source);
        place.publish(&source).unwrap();
        let copy = place.tmpfs.join("model");
        let mode = |name: &str| copy.join(name).metadata().unwrap().permissions().mode() & 0o777;
        let reads = |name: &str, user, group| {
            let mut command = Command::new("cat");
            command.arg(copy.join(name)).stdout(Stdio::null()).stderr(Stdio::null());
            command.uid(user).gid(group).status().unwrap().success()
        };
        // Another user makes a file in the source.
        chown(place.write("model/other", b"x"), Some(NOBODY - 1), None).unwrap();
        let set = |name: &str, mode| {
            fs::set_permissions(source.join(name), Permissions::from_mode(mode)).unwrap();
        };
        set("model.safetensors", 0o600);
        let refused = place.publisher().replace(true).publish(&source);
        assert!(matches!(reason(refused), PublishProblem::SeveralOwners { .. }));
        assert_eq!(mode("model.safetensors") & 0o007, 0);
        set("config.json", 0o600);
        // A file that the next version does not have.
        fs::rename(source.join("empty"), source.join("renamed")).unwrap();
        place.publisher().update_access(&source).unwrap();
        assert_eq!((mode("config.json") & 0o007, mode("empty")), (0, 0o400));
        // The owner of the source may read it as before.
        assert!(reads("config.json", NOBODY, NOBODY) && !reads("empty", NOBODY, NOBODY));
        // The members of a new group have no more access than to the source.
        fs::remove_file(source.join("other")).unwrap();
        chown(source.join("onnx/model.onnx"), None, Some(NOBODY - 7)).unwrap();
        set("onnx/model.onnx", 0o604);
        place.publisher().update_access(&source).unwrap();
        assert!(!reads("onnx/model.onnx", NOBODY - 8, NOBODY - 7));
        assert!(!reads("onnx/model.onnx", NOBODY - 8, NOBODY - 8));
        assert!(reads("onnx/model.onnx", NOBODY, NOBODY - 7));
    });
}

#[test]
fn only_users_who_may_read_all_files_read_the_record() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let weights = source.join("model.safetensors");
        for (mode, of_record) in [(0o644, 0o444), (0o604, 0o400), (0o640, 0o400), (0o644, 0o444)] {
            fs::set_permissions(&weights, Permissions::from_mode(mode)).unwrap();
            let copy = place.publish(&source).unwrap().path;
            let record = copy.join(".longshore.json").metadata().unwrap();
            assert_eq!(record.permissions().mode() & 0o777, of_record, "{mode:o}");
        }
    });
}

#[test]
fn files_of_several_users_are_not_published_by_root() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        give(&source);
        chown(source.join("empty"), Some(0), None).unwrap();
        place.publish(&source).unwrap();
        for path in ["empty", "onnx"] {
            chown(source.join(path), Some(NOBODY - 1), None).unwrap();
            let refused = place.publisher().replace(true).publish(&source);
            assert!(matches!(reason(refused), PublishProblem::SeveralOwners { .. }), "{path}");
            chown(source.join(path), Some(NOBODY), None).unwrap();
        }
        assert_eq!(place.publish(&source).unwrap().outcome, Outcome::AlreadyPublished);
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
fn only_a_model_is_replaced() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        let replace = |name| place.publisher().name(name).replace(true).publish(&source);
        fs::create_dir(place.tmpfs.join("kept")).unwrap();
        assert_eq!(reason(replace("kept")), PublishProblem::NotAModel);
        // A model of another user.
        let other = replace("other").unwrap().path;
        give(&other);
        assert_eq!(reason(replace("other")), PublishProblem::NotAModel);
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

#[test]
fn links_to_files_of_other_processes_are_refused() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        // By such a link, a user could lead root into a file system of its own namespace.
        let magic = Path::new("/proc/self/root").join(source.strip_prefix("/").unwrap());
        let link = place.source("link");
        symlink(&magic, &link).unwrap();
        for path in [&magic, &link] {
            assert!(matches!(reason(place.publish(path)), PublishProblem::Link), "{path:?}");
        }
        let plain = place.source("plain");
        symlink(&source, &plain).unwrap();
        let refused = place.publisher().refuse_links().publish(&plain);
        assert!(matches!(reason(refused), PublishProblem::Link));
        // Not the cache of the Hugging Face Hub: `blobs` is a link.
        fs::create_dir(place.source("repository")).unwrap();
        fs::create_dir(place.source("repository/snapshots")).unwrap();
        symlink(&source, place.source("repository/blobs")).unwrap();
        let revision = place.source("repository/snapshots/one");
        fs::rename(&source, &revision).unwrap();
        place.publish(&revision).unwrap();
    });
}

#[test]
fn a_file_that_is_written_to_loses_withdrawn_permissions() {
    with_tmpfs("size=64m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        let copy = place.tmpfs.join("model/config.json");
        let weights = source.join("config.json");
        let mut writer = fs::OpenOptions::new().append(true).open(&weights).unwrap();
        fs::set_permissions(&weights, Permissions::from_mode(0o600)).unwrap();
        std::thread::scope(|scope| {
            let (end, ended) = std::sync::mpsc::channel::<()>();
            scope.spawn(move || {
                while ended.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                    writer.write_all(b" ").unwrap();
                }
            });
            let _ = place.publisher().replace(true).publish(&source);
            assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o400);
            drop(end);
        });
    });
}

#[test]
fn an_owner_in_a_group_that_may_not_pass_has_no_access() {
    with_tmpfs("size=64m", |place| {
        let (owner, team) = (NOBODY - 2, NOBODY - 3);
        let denied = place.source("denied");
        let source = denied.join("model");
        fs::create_dir(&denied).unwrap();
        fs::rename(place.model(), &source).unwrap();
        chown(&denied, Some(0), Some(team)).unwrap();
        for path in [&source, &source.join("config.json")] {
            chown(path, Some(owner), Some(owner)).unwrap();
            let mode = if path.is_dir() { 0o700 } else { 0o600 };
            fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
        }
        let reads = |path: &Path, group| {
            let mut command = Command::new("cat");
            command.arg(path.join("config.json")).stdout(Stdio::null()).stderr(Stdio::null());
            command.uid(owner).gid(group).status().unwrap().success()
        };
        fs::set_permissions(&denied, Permissions::from_mode(0o705)).unwrap();
        let copy = place.publish(&source).unwrap().path;
        // The group of the directory has less access than others.
        assert!(!reads(&source, team) && !reads(&copy, team));
        fs::set_permissions(&denied, Permissions::from_mode(0o755)).unwrap();
        place.publish(&source).unwrap();
        assert!(reads(&source, team) && reads(&copy, team) && reads(&copy, owner));
    });
}

#[test]
fn directories_and_the_record_are_closed_if_files_are_missing() {
    with_tmpfs("size=8m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        fs::rename(source.join("onnx"), place.source("private")).unwrap();
        place.write("model/model.safetensors", &place::safetensors(6_000_000));
        let refused = place.publisher().replace(true).publish(&source);
        assert!(matches!(reason(refused), PublishProblem::NoRoom { .. }));
        let mode = |name: &str| {
            let copy = place.tmpfs.join("model").join(name);
            copy.metadata().unwrap().permissions().mode() & 0o777
        };
        assert_eq!(
            (mode("onnx"), mode("onnx/model.onnx"), mode(".longshore.json")),
            (0o700, 0o400, 0o400)
        );
        assert_eq!(mode("config.json"), 0o444);
    });
}

#[test]
fn another_model_takes_no_access_from_one_that_it_cannot_replace() {
    with_tmpfs("size=8m", |place| {
        place.publish(&place.model()).unwrap();
        let other = place.write("other/weights.bin", &[0; 6_000_000]);
        fs::set_permissions(other, Permissions::from_mode(0o600)).unwrap();
        let other = place.source("other");
        let publisher = || place.publisher().name("model").replace(true);
        assert!(matches!(reason(publisher().publish(&other)), PublishProblem::NoRoom { .. }));
        publisher().update_access(&other).unwrap();
        for name in ["model.safetensors", "onnx/model.onnx", ".longshore.json"] {
            let copy = place.tmpfs.join("model").join(name).metadata().unwrap();
            assert_eq!(copy.permissions().mode() & 0o777, 0o444, "{name}");
        }
    });
}

#[test]
fn a_new_revision_of_a_repository_withdraws_permissions() {
    with_tmpfs("size=8m", |place| {
        let revision = |revision: &str, len_bytes| {
            let blob = place.write(&format!("models--a--b/blobs/{revision}"), &vec![0; len_bytes]);
            let snapshot = place.source("models--a--b/snapshots").join(revision);
            fs::create_dir_all(&snapshot).unwrap();
            symlink(format!("../../blobs/{revision}"), snapshot.join("w.bin")).unwrap();
            (blob, snapshot)
        };
        let copy = place.publish(&revision("one", 5_000_000).1).unwrap().path.join("w.bin");
        let (blob, snapshot) = revision("two", 6_000_000);
        fs::set_permissions(blob, Permissions::from_mode(0o600)).unwrap();
        let refused = place.publisher().replace(true).publish(&snapshot);
        assert!(matches!(reason(refused), PublishProblem::NoRoom { .. }));
        assert_eq!(copy.metadata().unwrap().permissions().mode() & 0o777, 0o400);
    });
}

#[test]
fn an_owner_keeps_its_access_if_a_new_version_is_open_to_all() {
    with_tmpfs("size=8m", |place| {
        let source = place.model();
        give(&source);
        let set = |of_folder, of_file| {
            fs::set_permissions(&source, Permissions::from_mode(of_folder)).unwrap();
            let file = source.join("config.json");
            fs::set_permissions(file, Permissions::from_mode(of_file)).unwrap();
        };
        let reads = |user| {
            let mut command = Command::new("cat");
            command.arg(place.tmpfs.join("model/config.json"));
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.uid(user).gid(user).status().unwrap().success()
        };
        set(0o700, 0o600);
        place.publish(&source).unwrap();
        assert!(reads(NOBODY));
        place.write("model/model.safetensors", &place::safetensors(6_000_000));
        for (of_folder, of_file, of_owner) in [(0o755, 0o644, true), (0o755, 0o200, false)] {
            set(of_folder, of_file);
            let refused = place.publisher().replace(true).publish(&source);
            assert!(matches!(reason(refused), PublishProblem::NoRoom { .. }));
            assert_eq!((reads(NOBODY), reads(NOBODY - 1)), (of_owner, false), "{of_file:o}");
        }
    });
}

#[test]
fn a_directory_in_the_place_of_a_file_is_closed() {
    with_tmpfs("size=8m", |place| {
        let source = place.model();
        place.publish(&source).unwrap();
        fs::remove_dir_all(source.join("onnx")).unwrap();
        place.write("model/onnx", b"a file");
        place.write("model/model.safetensors", &place::safetensors(6_000_000));
        let refused = place.publisher().replace(true).publish(&source);
        assert!(matches!(reason(refused), PublishProblem::NoRoom { .. }));
        // Without search permission, a publisher that is not root could not replace it later.
        let copy = place.tmpfs.join("model/onnx").metadata().unwrap();
        assert_eq!(copy.permissions().mode() & 0o777, 0o700);
    });
}
