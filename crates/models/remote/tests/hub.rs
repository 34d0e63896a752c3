//! Repositories of a server that answers as the Hugging Face Hub does.

mod server;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use longshore_formats::directory::ModelFilter;
use longshore_load::{
    CancelToken, DigestKind, Error, FormatChoice, HubCache, KeptCopy, Loader, Manifest,
    PlannedFile, RemoteModel, SourceFile, open_by,
};
use longshore_remote::Remote;
use server::{Answer, Request, Server, model};
use url::Url;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

fn json(body: &str) -> Answer {
    // In chunks, as the Hub sends it.
    let (first, second) = body.split_at(body.len() / 2);
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let head = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    Answer::Raw(format!("{head}{}{}0\r\n\r\n", chunk(first), chunk(second)))
}

fn status(text: &str) -> Answer {
    Answer::Raw(format!("HTTP/1.1 {text}\r\nContent-Length: 0\r\n\r\n"))
}

/// Starts a Hub with these files in `org/name`, and the storage of their content.
fn hub(files: &[&str]) -> (Server, Server) {
    let storage = Server::start(model(), |_, _| Answer::Content("\"1\""));
    let to = storage.url.clone();
    let siblings: Vec<String> =
        files.iter().map(|file| format!("{{\"rfilename\":\"{file}\"}}")).collect();
    let description = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}", siblings.join(","));
    let hub = Server::start(Vec::new(), move |_, request: &Request| {
        let target = request.target.as_str();
        match target {
            "/api/models/org/name/revision/main"
            | "/api/models/org/name/revision/refs%2Fpr%2F1" => json(&description),
            "/api/models/org/gated/revision/main" => status("401 Unauthorized"),
            "/api/models/org/broken/revision/main" => json("{\"sha\":\"../..\"}"),
            target if target.starts_with(&format!("/org/name/resolve/{COMMIT}/")) => {
                Answer::Raw(format!(
                    "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {to}?signed=1\r\n\r\n"
                ))
            }
            _ => status("404 Not Found"),
        }
    });
    (hub, storage)
}

fn remote(hub: &Server) -> Remote {
    let mut endpoint: Url = hub.url.clone();
    endpoint.set_path("");
    Remote::new().hub_endpoint(endpoint)
}

fn found(remote: &Remote, source: &str) -> Result<Vec<PathBuf>, Error> {
    remote.find_files(source, FormatChoice::Auto, &ModelFilter::new())
}

#[test]
fn a_model_is_found_and_loaded_from_the_hub() {
    let (hub, storage) = hub(&["README.md", "model.safetensors", "original/x.safetensors"]);
    let remote = remote(&hub);
    let expected = format!("hf://org/name@{COMMIT}/model.safetensors");
    for source in ["hf://org/name", "hf://org/name@refs/pr/1", "hf://org/name/model.safetensors"] {
        assert_eq!(found(&remote, source).unwrap(), [PathBuf::from(&expected)], "{source}");
    }
    let opened = remote.open(&["hf://org/name"], FormatChoice::Auto).unwrap();
    assert_eq!(opened.plan.files()[0].source().path(), PathBuf::from(expected));
    let loaded = Loader::new().load(&opened.plan).unwrap();
    assert!(loaded.buffer.read().unwrap()[..] == model()[..]);
    // Ranges go to the storage, and not through the Hub again.
    let requests = storage.requests.lock().unwrap();
    assert!(requests.iter().all(|it| it.target.ends_with("?signed=1")) && !requests.is_empty());
    drop(requests);
    let resolved = hub.requests.lock().unwrap();
    assert_eq!(resolved.iter().filter(|it| it.target.contains("/resolve/")).count(), 1);
    assert!(storage.connections.load(Ordering::Relaxed) >= 1 && remote.notes().is_empty());
}

#[test]
fn variants_and_errors_are_those_of_a_directory() {
    let (hub, _storage) =
        hub(&["m-Q4_K_M.gguf", "Q8_0/m-Q8_0-00001-of-00001.gguf", "../x.gguf", "a//b.gguf"]);
    let remote = remote(&hub);
    let expected = format!("hf://org/name@{COMMIT}/Q8_0/m-Q8_0-00001-of-00001.gguf");
    assert_eq!(found(&remote, "hf://org/name:Q8_0").unwrap(), [PathBuf::from(expected)]);
    let refused = found(&remote, "hf://org/name:F16").unwrap_err();
    assert!(matches!(&refused, Error::Directory { .. }), "{refused}");
    for (source, words) in [
        ("hf://org/gated", "ask for access at"),
        ("hf://org/none", "no such repository"),
        ("hf://org/broken", "it has no commit"),
    ] {
        let refused = found(&remote, source).unwrap_err();
        let Error::Open { source: cause, .. } = &refused else { panic!("{refused}") };
        assert!(cause.to_string().contains(words), "{cause}");
    }
}

#[test]
fn a_hub_that_does_not_answer_is_replaced_by_the_cache() {
    let remote = Remote::new().hub_endpoint("http://127.0.0.1:1/".parse().unwrap());
    // There is no such repository in the cache either.
    let refused = found(&remote, "hf://org/no-such-repository-of-a-test").unwrap_err();
    let Error::Open { source, .. } = &refused else { panic!("{refused}") };
    let text = source.to_string();
    assert!(text.contains("did not answer") && text.contains("run: hf download"), "{text}");
}

#[test]
fn a_gated_repository_is_named_with_its_page() {
    // Its files are listed, but not sent.
    let description =
        format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{{\"rfilename\":\"model.safetensors\"}}]}}");
    let hub = Server::start(Vec::new(), move |_, request: &Request| {
        match request.target.contains("/resolve/") {
            true => status("403 Forbidden"),
            false => json(&description),
        }
    });
    let refused = remote(&hub).open(&["hf://org/name"], FormatChoice::Auto).unwrap_err();
    let Error::Open { source, .. } = &refused else { panic!("{refused}") };
    assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
    let page = format!("{}org/name", hub.url.join("/").unwrap());
    assert!(source.to_string().contains(&format!("ask for access at {page},")), "{source}");
}

#[test]
fn a_connection_to_the_hub_is_tried_twice() {
    let hub = Server::start(Vec::new(), |_, _| Answer::Close);
    found(&remote(&hub), "hf://org/no-such-repository-of-a-test").unwrap_err();
    assert_eq!(hub.connections.load(Ordering::Relaxed), 2);
}

#[test]
fn a_hub_that_is_busy_is_asked_again() {
    let description =
        format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{{\"rfilename\":\"model.safetensors\"}}]}}");
    let hub = Server::start(Vec::new(), move |number, _| match number {
        0 => status("429 Too Many Requests"),
        1 => Answer::Close,
        _ => json(&description),
    });
    let expected = format!("hf://org/name@{COMMIT}/model.safetensors");
    assert_eq!(found(&remote(&hub), "hf://org/name").unwrap(), [PathBuf::from(expected)]);
    assert_eq!(hub.count(), 3);
}

#[test]
fn a_diffusers_model_is_published_with_the_folders_without_weights() {
    const INDEX: &str =
        r#"{"_class_name":"P","unet":["diffusers","U"],"tokenizer":["transformers","T"]}"#;
    let files = [
        "model_index.json",
        "README.md",
        "unet/config.json",
        "unet/diffusion_pytorch_model.safetensors",
        "unet/diffusion_pytorch_model.bin",
        "scheduler/scheduler_config.json",
        "tokenizer/merges.txt",
    ];
    let siblings = files.map(|file| format!("{{\"rfilename\":\"{file}\"}}")).join(",");
    let description = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{siblings}]}}");
    let hub = Server::start(model(), move |_, request: &Request| match request.target.as_str() {
        target if target.starts_with("/api/") => json(&description),
        target if target.ends_with("model_index.json") => {
            let (status, fields) = match request.fields.contains_key("range") {
                true => {
                    (206, format!("Content-Range: bytes 0-{}/{}\r\n", INDEX.len() - 1, INDEX.len()))
                }
                false => (200, String::new()),
            };
            let len = INDEX.len();
            Answer::Raw(format!(
                "HTTP/1.1 {status} x\r\nContent-Length: {len}\r\n{fields}\r\n{INDEX}"
            ))
        }
        _ => Answer::Content("\"1\""),
    });
    let remote = remote(&hub);
    let paths = |source: &str| -> Vec<String> {
        let model = remote.model(source, &ModelFilter::new()).unwrap().remote().unwrap();
        model.paths().map(str::to_owned).collect()
    };
    let mut expected: Vec<_> =
        files.into_iter().filter(|it| !it.ends_with("md") && !it.ends_with("bin")).collect();
    expected.sort_unstable();
    assert_eq!(paths("hf://org/name"), expected);
    assert_eq!(paths("hf://org/name/unet"), ["config.json", "diffusion_pytorch_model.safetensors"]);
}

#[test]
fn the_hub_tells_the_checksums_of_large_files() {
    let storage = Server::start(model(), |_, _| Answer::Content("\"1\""));
    let to = storage.url.clone();
    let description =
        format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{{\"rfilename\":\"model.safetensors\"}}]}}");
    let told = |sum: String| {
        let (to, description) = (to.clone(), description.clone());
        let hub = Server::start(Vec::new(), move |_, request: &Request| {
            match request.target.contains("/resolve/") {
                true => Answer::Raw(format!(
                    "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nX-Linked-Etag: \"{sum}\"\r\nLocation: {to}\r\n\r\n"
                )),
                false => json(&description),
            }
        });
        let opened = remote(&hub).open(&["hf://org/name"], FormatChoice::Auto).unwrap();
        let manifest = Manifest::of_hub(opened.plan.files().iter().map(PlannedFile::source))?;
        Loader::new().manifest(&manifest).load(&opened.plan).map(drop)
    };
    let sum = sum_of_model();
    told(sum.clone()).unwrap();
    let wrong = told(sum.replace(|_| true, "0")).unwrap_err();
    assert!(matches!(&wrong, Error::Mismatch { found, .. } if *found == sum), "{wrong}");
    // The version of a small file is no such checksum.
    let untold = told("0123".to_owned()).unwrap_err();
    assert!(matches!(untold, Error::Manifest { .. }), "{untold}");
}

/// Loads a model and keeps a copy.
fn keep(
    remote: &Remote,
    source: &str,
    begin: impl FnOnce(&RemoteModel) -> Result<KeptCopy, Error>,
) -> Result<(), Error> {
    let model = remote.model(source, &ModelFilter::new()).unwrap().remote().unwrap();
    let copy = begin(&model)?;
    let opened = open_by(model.first_files(), FormatChoice::Auto, &model).unwrap();
    let loaded = Loader::new().load(&opened.plan).unwrap();
    copy.finish(&model, &opened.plan, &loaded, &CancelToken::new())
}

/// Keeps a copy in a cache of the Hub.
fn keep_in_hub(remote: &Remote, source: &str, cache: &HubCache) -> Result<(), Error> {
    let name = source.parse().unwrap();
    keep(remote, source, |model| KeptCopy::begin_in_hub(cache.clone(), &name, model))
}

/// Starts a Hub whose weights have this checksum, and their storage.
fn hub_of_sum(sum: &str) -> (Server, Server) {
    let storage = Server::start(model(), |_, _| Answer::Content("\"1\""));
    let (to, linked) = (storage.url.clone(), format!("X-Linked-Etag: \"{sum}\"\r\n"));
    let files = ["unet/a/model.safetensors", "unet/config.json"]
        .map(|name| format!("{{\"rfilename\":\"{name}\"}}"));
    let description = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":[{}]}}", files.join(","));
    let hub = Server::start(Vec::new(), move |_, request: &Request| {
        let is_large = request.target.ends_with(".safetensors");
        match request.target.contains("/resolve/") {
            true => Answer::Raw(format!(
                "HTTP/1.1 302 Found\r\nContent-Length: 0\r\nLocation: {to}\r\n{}\r\n",
                if is_large { linked.as_str() } else { "" }
            )),
            false => json(&description),
        }
    });
    (hub, storage)
}

/// Returns the checksum of the weights.
fn sum_of_model() -> String {
    let storage = Server::start(model(), |_, _| Answer::Content("\"1\""));
    let opened = Remote::new().open(&[storage.url.as_str()], FormatChoice::Auto).unwrap();
    let loaded = Loader::new().digest(DigestKind::Sha256).load(&opened.plan).unwrap();
    loaded.files[0].digests[0].1.clone()
}

fn entries(path: &Path) -> usize {
    fs::read_dir(path).unwrap().count()
}

#[test]
fn a_copy_in_the_cache_of_the_hub_has_its_layout() {
    let sum = sum_of_model();
    let (hub, _storage) = hub_of_sum(&sum.to_uppercase());
    let remote = remote(&hub);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("hub");
    let cache = HubCache::at(&at);
    keep_in_hub(&remote, "hf://org/name@refs/pr/1/unet/a", &cache).unwrap();
    let repository = at.join("models--org--name");
    let snapshot = repository.join("snapshots").join(COMMIT);
    let link = fs::read_link(snapshot.join("unet/a/model.safetensors")).unwrap();
    assert_eq!(link, PathBuf::from(format!("../../../../blobs/{sum}")));
    assert_eq!(fs::read_to_string(repository.join("refs/refs/pr/1")).unwrap(), COMMIT);
    let file = "hf://org/name@refs/pr/1/unet/a/model.safetensors".parse().unwrap();
    assert_eq!(fs::read(cache.locate(&file).unwrap()).unwrap(), model());
    // Once more, with the folder above it.
    keep_in_hub(&remote, "hf://org/name/unet", &cache).unwrap();
    assert_eq!(fs::read(snapshot.join("unet/config.json")).unwrap(), model());
    assert_eq!((entries(&at), entries(&repository.join("blobs"))), (1, 1));
    cache.set_revision(&"hf://org/name@v1".parse().unwrap(), COMMIT).unwrap();
    assert_eq!(fs::read_to_string(repository.join("refs/v1")).unwrap(), COMMIT);
}

#[test]
fn a_copy_with_another_checksum_is_not_added_to_the_cache_of_the_hub() {
    let (hub, _storage) = hub_of_sum(&"0".repeat(64));
    let dir = tempfile::tempdir().unwrap();
    let cache = HubCache::at(dir.path());
    let refused = keep_in_hub(&remote(&hub), "hf://org/name/unet", &cache).unwrap_err();
    assert!(matches!(&refused, Error::Mismatch { .. }), "{refused}");
    assert_eq!(entries(dir.path()), 0);
}

fn sum_of_file(path: &Path) -> String {
    let opened = longshore_load::open(&[path], FormatChoice::Auto).unwrap();
    let loaded = Loader::new().digest(DigestKind::Sha256).load(&opened.plan).unwrap();
    loaded.files[0].digests[0].1.clone()
}

/// Writes a file into a cache as `huggingface_hub` does, under the checksum of its content.
fn write_cached(cache: &Path, content: &[u8]) {
    let repository = cache.join("models--org--name");
    let (blobs, snapshot) =
        (repository.join("blobs"), repository.join("snapshots").join(COMMIT).join("unet/a"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    let written = cache.join("written.safetensors");
    fs::write(&written, content).unwrap();
    let sum = sum_of_file(&written);
    fs::rename(written, blobs.join(&sum)).unwrap();
    let link = snapshot.join("model.safetensors");
    let _ = fs::remove_file(&link);
    std::os::unix::fs::symlink(format!("../../../../blobs/{sum}"), link).unwrap();
}

#[test]
fn files_of_the_cache_are_compared_with_the_checksums_of_the_hub() {
    // The cache is that of the environment, and this test must not write into the cache of its user.
    const OWN: &str = "LONGSHORE_TEST_HUB_CACHE";
    let Some(cache) = std::env::var_os(OWN).map(PathBuf::from) else {
        let dir = tempfile::tempdir().unwrap();
        let mut command = std::process::Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "files_of_the_cache_are_compared_with_the_checksums_of_the_hub"]);
        command.env(OWN, dir.path()).env("HF_HUB_CACHE", dir.path()).env_remove("HF_HUB_OFFLINE");
        assert!(command.status().unwrap().success());
        return;
    };
    let (hub, _storage) = hub_of_sum(&sum_of_model());
    let source = format!("hf://org/name@{COMMIT}/unet/a/model.safetensors");
    let load = |remote: &Remote| {
        let opened = remote.open(&[source.as_str()], FormatChoice::Auto).unwrap();
        let sources: Vec<_> = opened.plan.files().iter().map(PlannedFile::source).collect();
        assert!(sources[0].path().starts_with(&cache), "{sources:?}");
        let manifest = remote.hub_manifest(sources)?;
        Loader::new().manifest(&manifest).load(&opened.plan).map(drop)
    };
    let mut other = model();
    *other.last_mut().unwrap() ^= 1;
    write_cached(&cache, &other);
    let refused = load(&remote(&hub)).unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused}");
    let silent = Remote::new().hub_endpoint("http://127.0.0.1:1/".parse().unwrap());
    let refused = load(&silent).unwrap_err();
    assert!(matches!(refused, Error::Open { .. }), "{refused}");
    // A path through a link is that of the cache, too.
    let link = cache.with_extension("link");
    std::os::unix::fs::symlink(&cache, &link).unwrap();
    let snapshot = format!("models--org--name/snapshots/{COMMIT}/unet/a/model.safetensors");
    let file = SourceFile::open(link.join(&snapshot)).unwrap();
    let manifest = remote(&hub).hub_manifest([&file]).unwrap();
    let opened = longshore_load::open(&[file.path()], FormatChoice::Auto).unwrap();
    let refused = Loader::new().manifest(&manifest).load(&opened.plan).unwrap_err();
    assert!(matches!(refused, Error::Mismatch { .. }), "{refused}");
    fs::remove_file(link).unwrap();
    // A link to another repository, or to the cache, does not change the name.
    let name_of = |path: &Path| HubCache::at(&cache).name_of(path);
    let linked = cache.join("models--org--other/snapshots");
    fs::create_dir_all(&linked).unwrap();
    for target in [cache.join("models--org--name/snapshots").join(COMMIT), cache.clone()] {
        let link = linked.join(COMMIT);
        std::os::unix::fs::symlink(target, &link).unwrap();
        let file = link.join("unet/a/model.safetensors");
        assert_eq!(name_of(&file).unwrap().repository, "org/other");
        assert_eq!(name_of(&link.join(&snapshot)).unwrap().repository, "org/other");
        fs::remove_file(link).unwrap();
    }
    // Other paths are noted.
    let blob = cache.join("models--org--name/blobs").join(sum_of_file(&cache.join(&snapshot)));
    for path in [blob, cache.join("models--org--name/..").join(&snapshot)] {
        let noted = remote(&hub);
        noted.hub_manifest([&SourceFile::open(&path).unwrap()]).unwrap();
        assert!(noted.notes()[0].contains("the path is not that of"), "{:?}", noted.notes());
    }
    write_cached(&cache, &model());
    let asked = remote(&hub);
    load(&asked).unwrap();
    assert!(asked.notes().is_empty());
}

#[test]
fn the_file_of_a_branch_replaces_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let refs = dir.path().join("models--org--name/refs");
    let kept = refs.join(format!(".longshore.{}.partial", std::process::id()));
    fs::create_dir_all(&kept).unwrap();
    let name = "hf://org/name@v1".parse().unwrap();
    HubCache::at(dir.path()).set_revision(&name, COMMIT).unwrap();
    assert!(kept.exists());
    assert_eq!((entries(&refs), entries(dir.path())), (2, 1));
    // A FIFO, for whose other end an open would wait.
    let fifo = dir.path().join("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let refused = HubCache::at(&fifo).set_revision(&name, COMMIT).unwrap_err();
    assert!(matches!(refused, Error::Write { .. }), "{refused}");
}

#[test]
fn links_in_the_cache_of_the_hub_are_not_followed() {
    let (hub, _storage) = hub_of_sum(&sum_of_model());
    let remote = remote(&hub);
    let dir = tempfile::tempdir().unwrap();
    let (at, other) = (dir.path().join("hub"), dir.path().join("other"));
    let file = other.join("main");
    let names = [
        String::new(),
        "snapshots".to_owned(),
        format!("snapshots/{COMMIT}"),
        "blobs".to_owned(),
        "refs".to_owned(),
    ];
    for name in &names {
        let _ = fs::remove_dir_all(&at);
        let _ = fs::remove_dir_all(&other);
        fs::create_dir_all(&other).unwrap();
        fs::write(&file, "kept").unwrap();
        let link = at.join("models--org--name").join(name);
        let link = PathBuf::from(link.to_str().unwrap().trim_end_matches('/'));
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink(&other, &link).unwrap();
        let refused = keep_in_hub(&remote, "hf://org/name/unet", &HubCache::at(&at)).unwrap_err();
        assert!(matches!(&refused, Error::Write { .. }), "{name}: {refused}");
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), entries(&other)), ("kept", 1));
    }
    // A link in place of a file is replaced.
    fs::remove_file(at.join("models--org--name/refs")).unwrap();
    fs::create_dir(at.join("models--org--name/refs")).unwrap();
    std::os::unix::fs::symlink(&file, at.join("models--org--name/refs/main")).unwrap();
    keep_in_hub(&remote, "hf://org/name/unet", &HubCache::at(&at)).unwrap();
    assert_eq!(fs::read_to_string(&file).unwrap(), "kept");
    assert_eq!(fs::read_to_string(at.join("models--org--name/refs/main")).unwrap(), COMMIT);
}

#[test]
fn a_copy_is_only_of_what_was_loaded() {
    let (hub, _storage) = hub(&["model.safetensors", "other.safetensors", "config.json"]);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("copy");
    let remote = remote(&hub);
    let source = "hf://org/name";
    let mut model = remote.model(source, &ModelFilter::new()).unwrap().remote().unwrap();
    let other = remote.open_file(Path::new(&format!("hf://org/name@{COMMIT}/other.safetensors")));
    let opened = open_by(model.first_files(), FormatChoice::Auto, &model).unwrap();
    let loaded = Loader::new().load(&opened.plan).unwrap();
    model.push("other.safetensors", other.unwrap()).unwrap();
    let begin = |model: &RemoteModel| KeptCopy::begin(&at, model);
    let finish = |cancel: &CancelToken| {
        let copy = begin(&model).unwrap();
        assert_eq!(entries(dir.path()), 1);
        copy.finish(&model, &opened.plan, &loaded, cancel).unwrap_err()
    };
    let refused = finish(&CancelToken::new());
    let Error::Write { source: cause, .. } = &refused else { panic!("{refused}") };
    assert!(cause.to_string().contains("were not verified"), "{cause}");
    assert_eq!(entries(dir.path()), 0);
    let cancel = CancelToken::new();
    cancel.cancel();
    let stopped = finish(&cancel);
    assert!(matches!(stopped, Error::Cancelled { .. }), "{stopped}");
    assert_eq!(entries(dir.path()), 0);
    keep(&remote, source, begin).unwrap();
    assert_eq!(entries(&at), 2);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    fs::create_dir(dir.path().join("new")).unwrap();
    assert_eq!(mode(&at), mode(&dir.path().join("new")));
    let refused = keep(&remote, source, begin).unwrap_err();
    let Error::Write { source: cause, .. } = &refused else { panic!("{refused}") };
    assert!(cause.to_string().contains("it exists"), "{cause}");
}

#[test]
fn a_directory_that_appears_during_a_load_stays() {
    let (hub, _storage) = hub(&["model.safetensors"]);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("copy");
    let refused = keep(&remote(&hub), "hf://org/name", |model| {
        let copy = KeptCopy::begin(&at, model);
        fs::create_dir(&at).unwrap();
        copy
    });
    assert!(matches!(&refused, Err(Error::Write { .. })), "{refused:?}");
    assert_eq!((entries(&at), entries(dir.path())), (0, 1));
}

#[test]
fn the_copy_of_a_killed_process_is_removed() {
    let (hub, _storage) = hub(&["model.safetensors"]);
    let dir = tempfile::tempdir().unwrap();
    let make = |number: u32, mode| {
        let path = dir.path().join(format!(".longshore.1-{number}.partial"));
        fs::create_dir_all(path.join("model")).unwrap();
        fs::write(path.join("model/model.safetensors"), "part").unwrap();
        fs::write(path.join(".longshore.copy"), "").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let left = make(0, 0o700);
    // A directory without the mark, one that other users may enter, and one of another user are not of a copy.
    let unmarked = make(1, 0o700);
    fs::remove_file(unmarked.join(".longshore.copy")).unwrap();
    let mut kept = vec![unmarked, make(2, 0o711)];
    let of_other = make(3, 0o700);
    match std::os::unix::fs::chown(&of_other, Some(65534), None) {
        Ok(()) => kept.push(of_other),
        Err(_) => println!("SKIPPED: another owner cannot be tried without being root"),
    }
    keep(&remote(&hub), "hf://org/name", |model| {
        let copy = KeptCopy::begin(&dir.path().join("copy"), model);
        // That of a running process stays.
        drop(KeptCopy::begin(&dir.path().join("other"), model).unwrap());
        copy
    })
    .unwrap();
    assert!(!left.exists());
    assert!(kept.iter().all(|path| path.join("model/model.safetensors").exists()));
}

#[test]
fn a_call_that_is_stopped_at_the_hub_is_cancelled() {
    let hub = Server::start(Vec::new(), |_, _| Answer::Stall(0));
    let cancel = CancelToken::new();
    cancel.cancel();
    let stopped = found(&remote(&hub).cancel(&cancel), "hf://org/name").unwrap_err();
    assert!(matches!(stopped, Error::Cancelled { .. }), "{stopped}");
}
