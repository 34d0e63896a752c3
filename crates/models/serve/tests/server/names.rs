//! Names that stand for the file of another user.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use longshore_serve::{Error, Keep, Options, Wanted};

use crate::others::{ALICE, MALLORY, as_user, private, shared};

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
