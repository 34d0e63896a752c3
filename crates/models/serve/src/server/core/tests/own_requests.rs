//! Clients that share a load, or a model, with clients of other users.

use std::os::unix::fs::symlink;

use super::*;

/// A safetensors file of one tensor.
fn safetensors(name: &str, content: &[u8]) -> Vec<u8> {
    let len_bytes = content.len();
    let header = format!(
        r#"{{"{name}":{{"dtype":"U8","shape":[{len_bytes}],"data_offsets":[0,{len_bytes}]}}}}"#
    );
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), content].concat()
}

/// A server with a model in two files, and its index.
fn with_shards() -> Still {
    let still = Still::new();
    still.write("a.safetensors", &safetensors("a", b"first"));
    still.write("b.safetensors", &safetensors("b", b"second"));
    still.write(INDEX, br#"{"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}"#);
    still
}

const INDEX: &str = "model.safetensors.index.json";
const OWN_INDEX: &str = "mallory/own.safetensors.index.json";

impl Still {
    fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.dir.path().join(name), content).unwrap();
    }

    /// Writes an index of another directory, with links to the two files.
    fn write_own_index(&self) {
        fs::create_dir(self.dir.path().join("mallory")).unwrap();
        for name in ["a.safetensors", "b.safetensors"] {
            let link = self.dir.path().join("mallory").join(name);
            symlink(format!("../{name}"), link).unwrap();
        }
        self.write(OWN_INDEX, br#"{"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}"#);
    }

    pub(super) fn look(&self, name: &str) -> Found {
        let path = fs::canonicalize(self.dir.path()).unwrap().join(name);
        let layout = Layout { format: FormatChoice::Auto, align: None };
        match self.core.served.look(&path, layout, None) {
            Looked::Found(found) => found.unwrap(),
            other => panic!("{other:?}"),
        }
    }

    /// A client of this user that asks for a file in a format, which the server has looked for.
    fn ask_as(&mut self, uid: u32, name: &str, format: &str) -> OwnedFd {
        let client = self.begin_to_ask(uid, name, format);
        let is_opening = |still: &Self| {
            let mut connections = still.core.connections.values();
            connections.any(|connection| matches!(connection.phase, Phase::Opening { .. }))
        };
        while is_opening(self) {
            self.core.turn().unwrap();
        }
        client
    }

    fn begin_to_ask(&mut self, uid: u32, name: &str, format: &str) -> OwnedFd {
        let path = fs::canonicalize(self.dir.path()).unwrap().join(name);
        let file = fs::File::open(&path).unwrap();
        let (client, refused) = self.connect(uid);
        assert_eq!(refused, None);
        self.say(&client, &Request::Hello { version: VERSION }, None);
        assert!(matches!(heard(&client)[..], [Reply::Welcome { .. }]));
        let format = format.to_owned();
        let request = Request::Attach { target: Target::Path(path), format, align_bytes: 0 };
        self.say(&client, &request, Some(&file));
        client
    }

    /// Sweeps, and waits for the end of it.
    fn sweep_all(&mut self) {
        let due = self.core.next_sweep().unwrap();
        self.core.sweep(due);
        let deadline = Instant::now() + Duration::from_secs(20);
        while self.core.next_sweep().is_none() {
            assert!(Instant::now() < deadline, "files are left to look after, and the sweep ends");
            // It may be over already.
            let _wakes = packet_socket::connect(&self.dir.path().join("socket")).unwrap();
            self.core.turn().unwrap();
        }
    }
}

fn is_attached(told: &[Reply]) -> bool {
    matches!(told, [.., Reply::Attached { .. }, Reply::File { .. }])
        || matches!(told, [.., Reply::Attached { .. }, Reply::File { .. }, Reply::File { .. }])
}

#[test]
fn the_format_that_one_client_gives_fails_no_load_of_another() {
    let mut still = Still::new();
    still.write("public.safetensors", &safetensors("x", b"public"));
    // Mallory loads one already, so her other requests wait.
    still.core.jobs.hanging.insert(1);
    let _hanging = still.ask(MALLORY, "own");
    let mallory = still.ask_as(MALLORY, "public.safetensors", "gguf");
    let alice = still.ask_as(ALICE, "public.safetensors", "auto");
    let told = still.answer(&alice);
    assert!(is_attached(&told), "{told:?}");
    let told = still.answer(&mallory);
    let [Reply::Refused { reason: Reason::Malformed, message }] = &told[..] else {
        panic!("{told:?}")
    };
    assert!(message.contains("not a valid GGUF file"), "{message}");
}

#[test]
fn an_index_that_one_client_changes_or_deletes_fails_no_load_of_another() {
    for is_deleted in [true, false] {
        let mut still = with_shards();
        still.write_own_index();
        still.core.jobs.hanging.insert(1);
        let _hanging = still.ask(MALLORY, "own");
        let (own, public) = (still.look(OWN_INDEX), still.look(INDEX));
        let mallory = still.ask_for(MALLORY, own);
        match is_deleted {
            true => fs::remove_file(still.dir.path().join(OWN_INDEX)).unwrap(),
            false => still.write(OWN_INDEX, b"no index"),
        }
        let alice = still.ask_for(ALICE, public);
        for client in [&alice, &mallory] {
            let told = still.answer(client);
            assert!(is_attached(&told), "{told:?}");
        }
        assert_eq!(still.core.cache.len(), 2, "one was loaded for both, beside the one that hangs");
    }
}

#[test]
fn an_index_that_another_user_deletes_makes_no_model_stale() {
    let mut still = with_shards();
    still.write_own_index();
    let mallory = still.ask_for(MALLORY, still.look(OWN_INDEX));
    assert!(is_attached(&still.answer(&mallory)));
    let alice = still.ask_for(ALICE, still.look(INDEX));
    assert!(is_attached(&heard(&alice)), "it is the same model");
    fs::remove_file(still.dir.path().join(OWN_INDEX)).unwrap();
    still.sweep_all();
    let public = still.look(INDEX);
    let model = still.core.cache.get(1).unwrap();
    assert_eq!(
        (model.is_stale, &model.found.path),
        (false, &public.path),
        "by the name that is left"
    );
    assert_eq!(still.core.cache.find(&public), Some(1));
    // Without any index it is still the same files.
    fs::remove_file(still.dir.path().join(INDEX)).unwrap();
    still.sweep_all();
    assert!(!still.core.cache.get(1).unwrap().is_stale);
    still.write(INDEX, br#"{"weight_map":{"a":"a.safetensors","b":"b.safetensors"}}"#);
    let again = still.ask_for(ALICE, still.look(INDEX));
    assert!(is_attached(&heard(&again)));
    assert_eq!(still.core.cache.get(1).unwrap().attachments, 3);
    // The files themselves are what counts.
    still.write("b.safetensors", &safetensors("b", b"anew"));
    still.sweep_all();
    assert!(still.core.cache.get(1).unwrap().is_stale);
}

#[test]
fn the_header_of_a_model_that_is_held_is_not_read_again() {
    let mut still = Still::new();
    let content = safetensors("x", b"public");
    still.write("public.safetensors", &content);
    let path = still.dir.path().join("public.safetensors");
    let file = fs::File::options().write(true).open(&path).unwrap();
    let modified = file.metadata().unwrap().modified().unwrap();
    let first = still.ask_as(MALLORY, "public.safetensors", "auto");
    assert!(is_attached(&still.answer(&first)));
    // A header that is not valid, in a file that the server takes for unchanged.
    still.write("public.safetensors", &vec![0xff; content.len()]);
    file.set_modified(modified).unwrap();
    let again = still.ask_as(ALICE, "public.safetensors", "auto");
    assert!(is_attached(&still.answer(&again)));
    // In another format it has to be read.
    let other = still.ask_as(ALICE, "public.safetensors", "safetensors");
    let told = still.answer(&other);
    assert!(matches!(told[..], [Reply::Refused { reason: Reason::Malformed, .. }]), "{told:?}");
    // If it is another file, too.
    still.write("public.safetensors", &safetensors("y", b"another"));
    let changed = still.ask_as(ALICE, "public.safetensors", "auto");
    assert!(is_attached(&still.answer(&changed)));
    assert_eq!(still.core.cache.len(), 2);
}

#[test]
fn spellings_of_one_path_are_one_path() {
    let mut still = Still::new();
    still.write("model", &[7; 1000]);
    still.core.jobs.hang_starts(0);
    let _clients = ["model", ".//./model"].map(|name| still.begin_to_ask(ALICE, name, "raw"));
    let path = fs::canonicalize(still.dir.path()).unwrap().join("model");
    for connection in still.core.connections.values() {
        let Phase::Opening { asked, .. } = &connection.phase else { panic!("{connection:?}") };
        assert_eq!(asked.path.as_os_str(), path.as_os_str());
    }
    assert_eq!(still.core.jobs.places_of_looks(), (1, 1), "the second waits for the first");
}

#[test]
fn looks_that_wait_have_no_copy_of_a_model_in_several_files() {
    let mut still = with_shards();
    for name in [INDEX, "a.safetensors"] {
        let found = still.look(name);
        let client = still.ask_for(ALICE, found);
        still.answer(&client);
    }
    still.core.jobs.hang_starts(0);
    let asked = [INDEX, "a.safetensors", INDEX, "a.safetensors"];
    let _clients = asked.map(|name| still.begin_to_ask(ALICE, name, "auto"));
    assert_eq!(still.core.jobs.are_known(), [false, true]);
}
