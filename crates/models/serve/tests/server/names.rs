//! Names whose meaning another user decides.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
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
fn the_end_of_a_path_does_not_stand_for_the_file_of_another_user() {
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

#[test]
fn a_client_opens_nothing_but_regular_files() {
    let rig = Rig::new(Options::new().keep(Keep::Always));
    let make_fifo = |path: &Path| {
        let _ = fs::remove_file(path);
        mknodat(CWD, path, FileType::Fifo, Mode::from(0o644), 0).unwrap();
    };
    // A model whose path leads elsewhere by now, and an index that has a FIFO for a shard.
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
