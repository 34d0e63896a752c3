//! Paths that are found and refused, and files that change.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::fs::symlink;

use super::*;

struct Tree {
    dir: tempfile::TempDir,
    served: Served,
    /// The files that were shown.
    open: RefCell<Vec<Arc<OwnedFd>>>,
}

fn tree() -> Tree {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir_all(root.join("sub")).unwrap();
    fs::write(root.join("model"), b"model").unwrap();
    fs::write(dir.path().join("secret"), b"secret").unwrap();
    symlink("../secret", root.join("out")).unwrap();
    symlink("sub", root.join("link")).unwrap();
    fs::write(root.join("sub/deep"), b"deep").unwrap();
    fs::write(dir.path().join("single"), b"single").unwrap();
    let files = [dir.path().join("single")];
    let served = Served::new(&[root], &files).unwrap();
    Tree { dir, served, open: RefCell::default() }
}

const AUTO: Layout = Layout { format: FormatChoice::Auto, align: None };

impl Tree {
    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.dir.path()).unwrap().join(name)
    }

    fn look(&self, name: &str, shown: Option<&[Shown]>) -> Looked {
        self.served.look(&self.path(name), AUTO, shown)
    }

    fn found(&self, name: &str) -> Found {
        match self.look(name, None) {
            Looked::Found(found) => found.unwrap(),
            other => panic!("{name}: {other:?}"),
        }
    }

    /// The file called `name` shown as if it were the one called `as_name`.
    fn shown(&self, name: &str, as_name: &str) -> Shown {
        let file: Arc<OwnedFd> = Arc::new(File::open(self.path(name)).unwrap().into());
        let identity = file::status(&*file).unwrap().version.identity();
        self.open.borrow_mut().push(Arc::clone(&file));
        Shown { path: self.path(as_name), identity, file: Arc::downgrade(&file) }
    }
}

#[test]
fn only_served_files_are_found_and_all_others_are_refused_alike() {
    let tree = tree();
    for name in ["root/model", "root/sub/deep", "root/./model", "single"] {
        assert_eq!(tree.found(name).files.len(), 1, "{name}");
    }
    for name in [
        "root/absent",
        "secret",
        "root/out",
        "root/../secret",
        "nothing",
        "root/sub/../../secret",
        "root/sub/../model",
        "root/link/deep",
        "root",
    ] {
        assert!(matches!(tree.look(name, None), Looked::Refused { .. }), "{name}");
    }
    assert!(matches!(tree.look("root/sub", None), Looked::Found(Err(_))));
    // Another file than the one that was shown is as if it were not there.
    let look = |name, shown_name| tree.look(name, Some(&[tree.shown(shown_name, name)]));
    assert!(matches!(look("root/model", "single"), Looked::Refused { .. }));
    assert!(matches!(look("root/model", "root/model"), Looked::Found(Ok(_))));
    assert!(matches!(look("root/sub", "root/model"), Looked::Refused { .. }));
    assert!(matches!(look("root/sub", "root/sub"), Looked::Found(Err(_))));
}

#[test]
fn models_are_compared_by_the_bytes_of_their_paths() {
    let tree = tree();
    let [one, same, other] = ["root/model", "root/model", "root/./model"].map(|it| tree.found(it));
    assert!(one.is_as(&same) && !one.is_as(&other));
    let files = Found { files: other.files, ..one.clone() };
    assert!(!one.is_as(&files));
}

#[test]
fn a_file_with_the_number_of_the_one_that_was_shown_and_another_birth_is_refused() {
    let tree = tree();
    let mut shown = tree.shown("root/model", "root/model");
    if shown.identity.born.is_none() {
        println!("SKIPPED: the file system records no time of birth");
        return;
    }
    shown.identity.born = Some((0, 0));
    let refused = tree.look("root/model", Some(&[shown]));
    assert!(matches!(refused, Looked::Refused { .. }), "{refused:?}");
}

#[test]
fn the_files_of_an_index_are_looked_for_when_all_are_shown() {
    let tree = tree();
    let index = "root/m.safetensors.index.json";
    fs::write(tree.path(index), br#"{"weight_map":{"x":"model","y":"absent"}}"#).unwrap();
    let shown = [
        tree.shown(index, index),
        tree.shown("root/model", "root/model"),
        tree.shown("secret", "root/absent"),
    ];
    let others = match tree.look(index, Some(&shown[..1])) {
        Looked::Unshown(others) => others,
        other => panic!("{other:?}"),
    };
    assert_eq!(others, [tree.path("root/absent"), tree.path("root/model")]);
    let refused = tree.look(index, Some(&shown));
    let absent = tree.path("root/absent");
    assert!(matches!(&refused, Looked::Refused { path, .. } if *path == absent), "{refused:?}");
    // Of one that is there, nothing more is learned while another file is shown for it.
    fs::write(tree.path("root/absent"), b"no model").unwrap();
    let refused = tree.look(index, Some(&shown));
    assert!(matches!(&refused, Looked::Refused { path, .. } if *path == absent), "{refused:?}");
    let shown = [shown[0].clone(), shown[1].clone(), tree.shown("root/absent", "root/absent")];
    let read = tree.look(index, Some(&shown));
    assert!(matches!(read, Looked::Found(Err(longshore_load::Error::Format { .. }))));
    // An index that names other files by the time they are shown is not believed again.
    fs::write(tree.path(index), br#"{"weight_map":{"x":"model","y":"other"}}"#).unwrap();
    let changed = tree.look(index, Some(&shown));
    assert!(matches!(changed, Looked::Found(Err(longshore_load::Error::Changed { .. }))));
}

/// The header of a split without tensors, which has nothing else.
fn split_header(count: u32) -> Vec<u8> {
    let mut header = [&b"GGUF"[..], &3_u32.to_le_bytes()].concat();
    header.extend([0_u64, 2].map(u64::to_le_bytes).concat());
    for (key, number) in [("split.no", 0), ("split.count", count)] {
        header.extend((key.len() as u64).to_le_bytes());
        header.extend(key.as_bytes());
        header.extend([4, number].map(u32::to_le_bytes).concat());
    }
    header
}

#[test]
fn a_model_of_too_many_files_is_refused_before_their_paths_are_made() {
    let tree = tree();
    let (index, splits) = ("root/m.safetensors.index.json", "root/m-00001-of-99999.gguf");
    let write_index = |count: u64| {
        let names: Vec<String> = (0..count).map(|n| format!(r#""{n}":"s{n}""#)).collect();
        let text = format!(r#"{{"weight_map":{{{}}}}}"#, names.join(","));
        fs::write(tree.path(index), text).unwrap();
    };
    fs::write(tree.path(splits), split_header(99_999)).unwrap();
    write_index(FILES_MAX + 1);
    for (name, count) in [(index, FILES_MAX + 1), (splits, 99_999)] {
        let reason = match tree.look(name, Some(&[tree.shown(name, name)])) {
            Looked::Found(Err(longshore_load::Error::Refused { source, .. })) => source.to_string(),
            other => panic!("{other:?}"),
        };
        // Only the number is known by then.
        assert_eq!(
            reason,
            format!("it stands for {count} files, and a server permits {FILES_MAX}")
        );
    }
    write_index(FILES_MAX);
    match tree.look(index, Some(&[tree.shown(index, index)])) {
        Looked::Unshown(others) => assert_eq!(others.len() as u64, FILES_MAX),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_index_whose_shards_could_not_be_loaded_with_an_alignment_is_refused_at_once() {
    let tree = tree();
    let header = br#"{"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
    let shard = [&(header.len() as u64).to_le_bytes()[..], header, b"!"].concat();
    let (index, named) = ("root/m.safetensors.index.json", "n.safetensors.index.json");
    fs::write(tree.path("root/a"), shard).unwrap();
    symlink("a", tree.path("root").join(named)).unwrap();
    let layout = Layout { format: FormatChoice::Auto, align: Granule::new(64).ok() };
    for (name, is_loaded) in [("a", true), (named, false)] {
        fs::write(tree.path(index), format!(r#"{{"weight_map":{{"x":"{name}"}}}}"#)).unwrap();
        let looked = tree.served.look(&tree.path(index), layout, None);
        assert_eq!(matches!(looked, Looked::Found(Ok(_))), is_loaded, "{looked:?}");
        assert_eq!(matches!(looked, Looked::Found(Err(_))), !is_loaded, "{looked:?}");
    }
    assert_eq!(tree.found(index).files.len(), 1, "without an alignment its name does not matter");
}

#[test]
fn headers_that_are_too_long_together_are_not_read() {
    let tree = tree();
    let format = FormatChoice::Safetensors;
    let [plain, aligned] = [None, Granule::new(64).ok()].map(|align| Layout { format, align });
    let refused_as = |name: &str, layout| match tree.served.look(&tree.path(name), layout, None) {
        Looked::Found(Err(longshore_load::Error::Refused { source, .. })) => source.to_string(),
        other => panic!("{other:?}"),
    };
    let refused = |name: &str| refused_as(name, plain);
    let write_header = |name: &str, len_bytes: u64| {
        let mut header = len_bytes.to_le_bytes().to_vec();
        header.extend(b"{}");
        header.resize(8 + len_bytes.min(1 << 20) as usize, b' ');
        fs::write(tree.path(name), header).unwrap();
        File::options().write(true).open(tree.path(name)).unwrap().set_len(8 + len_bytes).unwrap();
    };
    write_header("root/long", HEADERS_BYTES_MAX);
    assert!(refused("root/long").contains("a server reads at most 33.55 MB"));
    // Forty short ones are too long together, though they are one file under several names.
    write_header("root/short", 1 << 20);
    let names: Vec<String> = (0..40).map(|n| format!(r#""{n}":"s{n}""#)).collect();
    (0..40).for_each(|n| {
        fs::hard_link(tree.path("root/short"), tree.path(&format!("root/s{n}"))).unwrap();
    });
    let index = format!(r#"{{"weight_map":{{{}}}}}"#, names.join(","));
    fs::write(tree.path("root/model.safetensors.index.json"), index).unwrap();
    let reason = refused("root/model.safetensors.index.json");
    assert!(reason.contains("a server reads at most 33.55 MB"), "{reason}");
    // To align tensors takes more memory, but an index has none.
    write_header("root/aligned", ALIGNED_HEADERS_BYTES_MAX);
    let reason = refused_as("root/aligned", aligned);
    assert!(reason.contains("a server reads at most 20.97 MB"), "{reason}");
    let permitted = |name: &str, layout| match tree.served.look(&tree.path(name), layout, None) {
        // It is read, and zeros are no JSON.
        Looked::Found(Err(error)) => assert!(matches!(error, longshore_load::Error::Format { .. })),
        other => panic!("{other:?}"),
    };
    permitted("root/aligned", plain);
    write_header("root/permitted", ALIGNED_HEADERS_BYTES_MAX - 8);
    permitted("root/permitted", aligned);
    let spaces = " ".repeat(HEADERS_BYTES_MAX as usize - 100);
    let index = format!(r#"{{"weight_map":{{"x":"permitted0"}}{spaces}}}"#);
    fs::write(tree.path("root/model.safetensors.index.json"), index).unwrap();
    write_header("root/permitted0", 1);
    permitted("root/model.safetensors.index.json", aligned);
}

#[test]
fn a_name_that_leads_elsewhere_later_does_not_change_the_found_file() {
    let tree = tree();
    let name = tree.path("root/drop");
    symlink("model", &name).unwrap();
    let found = tree.found("root/drop");
    fs::remove_file(&name).unwrap();
    symlink("sub/deep", &name).unwrap();
    fs::write(tree.path("root/sub/deep"), b"deeper").unwrap();
    let plan = Served::plan(&found).unwrap();
    assert_eq!(plan.len_bytes(), 5, "the inode that was found is the one that is read");
    assert_eq!(tree.served.freshness(&found), Freshness::Stale);
    assert!(!found.is_same(&tree.found("root/drop")));
    assert!(found.is_same(&tree.found("root/model")), "the names do not matter");
}

#[test]
fn a_found_file_is_planned_unless_it_changed() {
    let tree = tree();
    let found = tree.found("root/model");
    assert_eq!(Served::plan(&found).unwrap().len_bytes(), 5);
    assert_eq!(tree.served.freshness(&found), Freshness::Fresh);
    fs::write(tree.path("root/model"), b"another").unwrap();
    let changed = Served::plan(&found).unwrap_err();
    assert!(matches!(changed, longshore_load::Error::Changed { .. }), "{changed}");
    assert_eq!(tree.served.freshness(&found), Freshness::Stale);
}

#[test]
fn a_file_that_is_deleted_is_the_same_as_no_other() {
    let tree = tree();
    let index = "root/m.safetensors.index.json";
    let header = br#"{"x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    let shard = [&(header.len() as u64).to_le_bytes()[..], header].concat();
    let names = ["root/a", "root/b", index];
    let write = || {
        fs::write(tree.path("root/a"), &shard).unwrap();
        fs::write(
            tree.path("root/b"),
            [&shard[..8], &header.map(|b| if b == b'x' { b'y' } else { b })].concat(),
        )
        .unwrap();
        fs::write(tree.path(index), br#"{"weight_map":{"x":"a","y":"b"}}"#).unwrap();
    };
    for deleted in names {
        write();
        let mut found = tree.found(index);
        assert_eq!((found.files.len(), found.open_files()), (2, 2));
        assert!(found.is_same(&tree.found(index)));
        assert_eq!(tree.served.freshness(&found), Freshness::Fresh);
        fs::remove_file(tree.path(deleted)).unwrap();
        if deleted == index {
            // It is not loaded.
            assert_eq!(tree.served.freshness(&found), Freshness::WithoutIndex);
            assert!(Served::plan(&found).is_ok());
            continue;
        }
        assert_eq!(tree.served.freshness(&found), Freshness::Unlinked, "{deleted}");
        found.inodes = None;
        let again = found.clone();
        assert!(!found.is_same(&again), "{deleted}");
        assert!(Served::plan(&found).is_err());
    }
}

#[test]
fn a_root_that_is_not_a_directory_is_refused() {
    let refused = Served::new(&["/no/such/directory".into()], &[]).unwrap_err().to_string();
    assert!(refused.contains("/no/such/directory cannot be served"), "{refused}");
    assert!(Served::new(&[], &["/".into()]).is_err());
}
