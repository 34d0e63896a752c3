//! Names of models, which other users can choose.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use longshore_serve::{Error, Keep, Options, Wanted};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use crate::others::{ALICE, MALLORY, Opens, as_user, private, shared};
use crate::rig::Rig;

/// Makes a file that every user can read.
fn public(path: &Path, bytes: &[u8]) {
    private(path, bytes);
    fs::set_permissions(path, Permissions::from_mode(0o644)).unwrap();
}

#[test]
fn the_end_of_a_path_does_not_name_the_file_of_another_user() {
    let Some(rig) = shared(Options::new().keep(Keep::Always), |_| {}) else { return };
    let path = |name: &str| rig.path(name).canonicalize().unwrap();
    as_user(MALLORY, || {
        public(&rig.path("mallory/llama.bin"), b"of mallory");
        rig.attach_path(&path("mallory/llama.bin")).unwrap();
        // Its owner can use the end.
        let own = rig.attach(&Wanted::Word("llama.bin".into())).unwrap();
        assert_eq!(own.as_slice(), b"of mallory");
    });
    as_user(ALICE, || {
        let refused = rig.attach(&Wanted::Word("llama.bin".into())).unwrap_err();
        let Error::OtherUser { name, path, uid } = &refused else { panic!("{refused}") };
        assert_eq!((name.as_str(), *uid), ("llama.bin", MALLORY));
        // The message has the path that is needed.
        assert!(refused.to_string().ends_with(path.to_str().unwrap()), "{refused}");
        let attachment = rig.attach(&Wanted::Path(path.clone())).unwrap();
        assert_eq!(attachment.as_slice(), b"of mallory");
    });
    // A file of root, who also runs the server.
    fs::create_dir(rig.path("team")).unwrap();
    public(&rig.path("team/shared.bin"), b"of the team");
    rig.attach_path(&path("team/shared.bin")).unwrap();
    as_user(ALICE, || {
        let shared = rig.attach(&Wanted::Word("shared.bin".into())).unwrap();
        assert_eq!(shared.as_slice(), b"of the team");
    });
}

const SHARD: &str = "model-00001-of-00001.safetensors";

/// Makes a directory with a shard that has this tensor.
fn make_shard(directory: &Path, tensor: &[u8; 16]) {
    let header = br#"{"w":{"dtype":"U8","shape":[16],"data_offsets":[0,16]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, tensor].concat();
    fs::create_dir(directory).unwrap();
    public(&directory.join(SHARD), &bytes);
}

#[test]
fn shards_of_another_user_do_not_get_the_name_of_an_index_of_root_by_a_link() {
    let Some(rig) = shared(Options::new().keep(Keep::Always), |_| {}) else { return };
    let path = |name: &str| rig.path("").canonicalize().unwrap().join(name);
    let index = path("team/index");
    make_shard(&path("team"), b"of the team     ");
    public(&index, format!(r#"{{"weight_map":{{"w":"{SHARD}"}}}}"#).as_bytes());
    let links = ["a/soft.safetensors.index.json", "b/hard.safetensors.index.json", "c/whole"];
    let links = links.map(|link| path("mallory").join(link));
    as_user(MALLORY, || {
        let _ = ["a", "b", "c"]
            .map(|name| make_shard(&path("mallory").join(name), b"of mallory      "));
        symlink("../../team/index", &links[0]).unwrap();
        symlink(format!("../../team/{SHARD}"), &links[2]).unwrap();
    });
    // With fs.protected_hardlinks=0, every user can make this link.
    fs::hard_link(&index, &links[1]).unwrap();
    as_user(MALLORY, || links.each_ref().map(|link| _ = rig.attach_path(link).unwrap()));
    let by_end = |link: &Path| rig.attach(&Wanted::Word(link.file_name().unwrap().to_owned()));
    as_user(ALICE, || {
        for link in &links {
            let refused = by_end(link).unwrap_err();
            let Error::OtherUser { path, uid, .. } = &refused else { panic!("{refused}") };
            assert_eq!((path, *uid), (link, MALLORY));
        }
    });
    as_user(MALLORY, || {
        assert!(by_end(&links[0]).unwrap().as_slice().ends_with(b"of mallory      "));
    });
    // A link of root is followed like a file of root.
    make_shard(&path("own"), b"of root         ");
    let own = path("own/own.safetensors.index.json");
    symlink("../team/index", &own).unwrap();
    rig.attach_path(&own).unwrap();
    as_user(ALICE, || {
        assert!(by_end(&own).unwrap().as_slice().ends_with(b"of root         "));
    });
}

#[test]
fn a_client_opens_only_regular_files() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    let make_fifo = |path: &Path| {
        let _ = fs::remove_file(path);
        mknodat(CWD, path, FileType::Fifo, Mode::from(0o644), 0).unwrap();
    };
    // A held model whose path is a FIFO by now, and an index whose shard is a FIFO.
    let model = rig.file("model.bin", b"weights");
    let id = rig.attach_path(&model).unwrap().id();
    make_fifo(&model);
    let index = rig.file("m.safetensors.index.json", br#"{"weight_map":{"x":"shard"}}"#);
    let shard = rig.path("shard");
    make_fifo(&shard);
    let opens = Opens::of(&[&model, &shard]);
    for (wanted, fifo) in [(Wanted::Id(id), &model), (Wanted::Path(index), &shard)] {
        let refused = rig.attach(&wanted).unwrap_err();
        let Error::Open { path, source } = &refused else { panic!("{refused}") };
        assert_eq!(path.canonicalize().unwrap(), fifo.canonicalize().unwrap());
        assert_eq!(source.to_string(), "it is a FIFO, not a regular file");
    }
    assert!(opens.is_none());
}
