//! `longshore serve` with models on servers: nginx, and a server that stalls.

mod command;
#[path = "command/nginx.rs"]
mod nginx;
#[path = "command/serving.rs"]
mod serving;

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::{Deref, DerefMut};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use command::{Outcome, as_nobody, copy_longshore, run};
use longshore::CancelToken;
use longshore::load::FormatChoice;
use longshore::serve::{Attachment, Client, Wanted};
use nginx::{Nginx, command};
use serde_json::Value;
use serving::Serving;

/// A limit that is reached only by an event that never happens.
const PATIENCE: Duration = Duration::from_secs(60);
/// The head of a request or response, and the first bytes of a file.
const LOOKUP_BYTES: u64 = 70_000;

/// A server that is ready, and its directory, which other users can enter.
struct Served {
    dir: tempfile::TempDir,
    serving: Serving,
}

impl Served {
    fn start(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let mut command = command(&["serve", "--json", "--socket"]);
        command.arg(dir.path().join("socket")).args(arguments);
        command.env_remove("HF_HUB_OFFLINE").envs(variables.iter().copied());
        Self { dir, serving: Serving::start(command) }
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("socket")
    }

    fn client(&self, arguments: &[&str]) -> Outcome {
        run(command(arguments).env("LONGSHORE_SOCKET", self.socket()))
    }

    fn attach(&self, name: &str) -> Attachment {
        let client = Client::connect(Some(&self.socket()), &CancelToken::new()).unwrap();
        client.attach(&Wanted::Word(name.into()), FormatChoice::Auto, &mut |_| {}).unwrap()
    }

    /// Ends the server and returns the rest of its events.
    fn stop(self) -> Vec<Value> {
        self.serving.stop()
    }
}

impl Deref for Served {
    type Target = Serving;

    fn deref(&self) -> &Serving {
        &self.serving
    }
}

impl DerefMut for Served {
    fn deref_mut(&mut self) -> &mut Serving {
        &mut self.serving
    }
}

fn sent_bytes(nginx: &Nginx) -> u64 {
    nginx.log().iter().map(|line| line[2].parse::<u64>().unwrap()).sum()
}

fn at(nginx: &Nginx, path: &str) -> String {
    format!("http://127.0.0.1:{}/{path}", nginx.plain)
}

#[test]
fn clients_share_one_load_until_the_file_changes() {
    let Some(nginx) = Nginx::start() else { return };
    let content = nginx.make_model("8MiB", "models/m.safetensors");
    let serving = Served::start(&["--root", &at(&nginx, "models/")], &[]);
    assert_eq!(serving.before[0]["event"], "remote_roots", "{:?}", serving.before);
    let message = serving.before[0]["message"].as_str().unwrap();
    assert!(message.contains("permissions of the socket"), "{message}");
    assert_eq!(serving.before[0]["roots"][0], at(&nginx, "models/"));

    let url = at(&nginx, "models/m.safetensors");
    let attachments: Vec<Attachment> = thread::scope(|scope| {
        let all: Vec<_> = (0..4).map(|_| scope.spawn(|| serving.attach(&url))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for attachment in &attachments {
        assert!(attachment.as_slice() == content);
        assert_eq!(attachment.id(), 1);
        assert_eq!(attachment.files()[0].path.to_str(), Some(&*url));
    }
    // Each client causes a lookup at most, and one of them a load.
    assert!(sent_bytes(&nginx) < content.len() as u64 + 8 * LOOKUP_BYTES);
    let listed = serving.client(&["ls", "--json"]).json();
    assert_eq!(
        (listed["held"][0]["path"].as_str(), listed["held"].as_array().unwrap().len()),
        (Some(&*url), 1)
    );
    assert_eq!(listed["roots"][0], at(&nginx, "models/"));

    // A model in memory is compared by its version, with one small request.
    let before = sent_bytes(&nginx);
    assert_eq!(serving.attach(&url).id(), 1);
    assert_eq!(serving.client(&["attach", "1", "--json"]).json()["id"], 1);
    assert!(sent_bytes(&nginx) - before < 2 * LOOKUP_BYTES);

    let changed = nginx.make_model_again("6MiB", "models/m.safetensors");
    assert!(changed != content);
    let newer = serving.attach(&url);
    assert!(newer.id() == 2 && newer.as_slice() == changed);
    let listed = serving.client(&["ls", "--json"]).json();
    assert_eq!(
        (&listed["held"][0]["stale"], &listed["held"][1]["stale"]),
        (&true.into(), &false.into()),
        "{listed}"
    );
    serving.client(&["attach", "1"]).expect(31, &["the files of 1 have changed"]);
    // A file that is gone makes its model stale, until it is there again.
    let is_stale = || serving.client(&["ls", "--json"]).json()["held"][1]["stale"] == true;
    let (file, aside) = (nginx.file("root/models/m.safetensors"), nginx.file("aside"));
    fs::rename(&file, &aside).unwrap();
    serving.client(&["attach", &url]).expect(10, &["no such file"]);
    assert!(is_stale());
    fs::rename(&aside, &file).unwrap();
    assert_eq!(serving.attach(&url).id(), 2);
    assert!(!is_stale());
    drop(attachments);
    let events = serving.stop();
    assert_eq!(events.iter().filter(|event| event["event"] == "loaded").count(), 2, "{events:?}");
}

#[test]
fn a_name_outside_of_the_roots_is_refused_without_a_request() {
    let Some(nginx) = Nginx::start() else { return };
    nginx.make_model("1MiB", "models/m.safetensors");
    nginx.make_model("1MiB", "secret.safetensors");
    let endpoint = at(&nginx, "");
    let variables = [
        ("AWS_ENDPOINT_URL", endpoint.as_str()),
        ("AWS_SKIP_SIGNATURE", "true"),
        ("HF_ENDPOINT", &endpoint),
    ];
    let roots = [
        "--root",
        &at(&nginx, "models/"),
        "--root",
        "s3://bucket/models/",
        "--root",
        "hf://org/name",
    ];
    let serving = Served::start(&roots, &variables);
    for name in [
        "secret.safetensors",
        "models2/m.safetensors",
        "models/../secret.safetensors",
        "models/%2e%2e/secret.safetensors",
        "models/..%2Fsecret.safetensors",
        "models/x?y",
        "models/x#y",
        "models//m.safetensors",
        "models/\\..\\secret.safetensors",
    ] {
        serving.client(&["attach", &at(&nginx, name)]).expect(31, &["is not served"]);
    }
    let user = format!("http://user:hidden@127.0.0.1:{}/models/m.safetensors", nginx.plain);
    let refused = serving.client(&["attach", &user]);
    refused.expect(31, &["is not served"]);
    assert!(!refused.stderr.contains("hidden"), "{}", refused.stderr);
    for name in [
        "s3://bucket/other/",
        "s3://bucket/models/../x",
        "s3://other/models/x",
        "gs://bucket/models/x",
    ] {
        serving.client(&["attach", name]).expect(31, &["is not served"]);
    }
    // Names of the Hub that no root covers are those of the local cache, as without such roots.
    serving.client(&["attach", "hf://org/other"]).expect(10, &["hf download"]);
    serving.client(&["attach", "hf://datasets/org/name"]).expect(10, &["hf download"]);
    assert!(nginx.log().is_empty(), "{:?}", nginx.log());
    // The log of nginx has every request.
    assert_eq!(serving.client(&["attach", &at(&nginx, "models/m.safetensors")]).code, 0);
    assert!(nginx.log().iter().all(|line| line[1] == "/models/m.safetensors"), "{:?}", nginx.log());
    assert!(!nginx.log().is_empty());
    let log = format!("{:?}", serving.stop());
    assert!(log.contains("secret.safetensors was asked for") && !log.contains("hidden"), "{log}");
}

#[test]
fn errors_of_servers_reach_the_client_with_the_codes_of_load() {
    let Some(nginx) = Nginx::start() else { return };
    nginx.make_model("1MiB", "m.safetensors");
    fs::write(nginx.file("root/damaged.safetensors"), "not a header").unwrap();
    let serving = Served::start(&["--root", &at(&nginx, "")], &[]);
    serving
        .client(&["attach", &at(&nginx, "none.gguf")])
        .expect(10, &["none.gguf", "no such file"]);
    serving.client(&["attach", &at(&nginx, "private/x.gguf")]).expect(12, &["access is denied"]);
    serving.client(&["attach", &at(&nginx, "whole/m.safetensors")]).expect(24, &["whole file"]);
    serving.client(&["attach", &at(&nginx, "damaged.safetensors")]).expect(15, &["not a valid"]);
    let aligned =
        serving.client(&["attach", "--align", "4096", "--json", &at(&nginx, "m.safetensors")]);
    assert_eq!(aligned.json()["files"].as_array().unwrap().len(), 1);
    let events = serving.stop();
    let refused = |event: &&Value| event["event"] == "refused";
    let message = events.iter().filter(refused).nth(1).unwrap()["message"].as_str().unwrap();
    assert!(message.contains("403"), "{message}");

    for (arguments, code, words) in [
        (["--root", "ftp://host/x"], 2, "cannot be served"),
        (["--root", "https://user:hidden@host/x"], 2, "cannot be served"),
        (["--root", "s3://"], 2, "cannot be served"),
    ] {
        let mut command = command(&["serve", "--socket", &nginx.file("socket")]);
        let refused = run(command.args(arguments));
        if arguments[1].starts_with("ftp") {
            // A directory of this name does not exist.
            refused.expect(10, &[words]);
        } else {
            refused.expect(code, &[words]);
        }
        assert!(!refused.stderr.contains("hidden"), "{}", refused.stderr);
    }
}

#[test]
fn a_model_of_the_start_is_kept_and_its_signature_is_not_shown() {
    let Some(nginx) = Nginx::start() else { return };
    let content = nginx.make_model("2MiB", "m.safetensors");
    let url = at(&nginx, "m.safetensors");
    let signed = format!("{url}?signature=hidden");
    let serving = Served::start(&[&signed], &[]);
    assert!(serving.before.iter().any(|event| event["event"] == "loaded"), "{:?}", serving.before);
    let listed = serving.client(&["ls", "--json"]).json();
    assert_eq!(
        (&listed["held"][0]["path"], &listed["held"][0]["kept"]),
        (&url.as_str().into(), &true.into()),
        "{listed}"
    );
    let attached = serving.attach(&url);
    assert!(attached.as_slice() == content && attached.id() == 1);
    serving.client(&["attach", &signed]).expect(31, &["is not served"]);
    serving.client(&["attach", &at(&nginx, "other.gguf")]).expect(31, &["is not served"]);
    let mut all = serving.before.clone();
    drop(attached);
    all.extend(serving.stop());
    let shown = format!("{all:?}{listed}");
    assert!(!shown.contains("hidden"), "{shown}");

    let missing = at(&nginx, "none.safetensors");
    let mut command = command(&["serve", &missing, "--socket", &nginx.file("socket")]);
    run(&mut command).expect(10, &["none.safetensors", "no such file"]);
}

#[test]
fn a_repository_and_a_prefix_are_attached() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let Some(nginx) = Nginx::start() else { return };
    let content = nginx.make_model("1MiB", &format!("org/name/resolve/{COMMIT}/model.safetensors"));
    let api = nginx.dir.path().join("root/api/models/org/name/revision");
    fs::create_dir_all(&api).unwrap();
    let siblings = r#"[{"rfilename":"model.safetensors"}]"#;
    let description = format!("{{\"sha\":\"{COMMIT}\",\"siblings\":{siblings}}}");
    fs::write(api.join("main"), &description).unwrap();
    fs::write(api.join(COMMIT), description).unwrap();
    let stored = nginx.make_model("1MiB", "bucket/models/llama/model.safetensors");
    let path = nginx.file("root/bucket/models/llama/model.safetensors");
    let header = run(&mut command(&["inspect", "--json", &path])).json();
    let tensors = header["files"][0]["tensors"].as_array().unwrap().iter();
    let map: serde_json::Map<String, Value> = tensors
        .map(|it| (it["name"].as_str().unwrap().to_owned(), "model.safetensors".into()))
        .collect();
    let index = serde_json::json!({ "metadata": {}, "weight_map": map }).to_string();
    fs::write(path + ".index.json", index).unwrap();
    let endpoint = at(&nginx, "");
    let cache = nginx.file("cache");
    let variables = [
        ("HF_ENDPOINT", endpoint.as_str()),
        ("HF_HUB_CACHE", &cache),
        ("AWS_ENDPOINT_URL", &endpoint),
        ("AWS_SKIP_SIGNATURE", "true"),
    ];
    // The cache of the server's user is not used, although it has the commit.
    let snapshot = PathBuf::from(&cache).join("models--org--name/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(snapshot.join("model.safetensors"), "cached").unwrap();
    let roots = ["--root", "hf://org", "--root", "s3://bucket/models/"];
    let serving = Served::start(&roots, &variables);
    let attached = serving.attach("hf://org/name");
    assert!(attached.as_slice() == content);
    let file = format!("hf://org/name@{COMMIT}/model.safetensors");
    assert_eq!(attached.files()[0].path.to_str(), Some(&*file));
    assert_eq!(serving.attach(&file).id(), attached.id());
    let object = serving.attach("s3://bucket/models/llama/model.safetensors");
    assert!(object.as_slice() == stored);
    // By its index, which needs no right to list; the weights are those in memory.
    for name in ["s3://bucket/models/llama/", "s3:/bucket/models/llama/"] {
        assert_eq!(serving.attach(name).id(), object.id(), "{name}");
    }
}

#[test]
fn another_user_attaches_only_if_it_can_connect() {
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED: only root can become another user");
        return;
    }
    let Some(nginx) = Nginx::start() else { return };
    nginx.make_model("1MiB", "m.safetensors");
    for (mode, code) in [("0600", 12), ("0666", 0)] {
        let serving = Served::start(&["--root", &at(&nginx, ""), "--socket-mode", mode], &[]);
        let program = serving.dir.path().join("longshore");
        copy_longshore(&program);
        let mut command = Command::new(program);
        command.args(["attach", &at(&nginx, "m.safetensors")]);
        as_nobody(command.env("LONGSHORE_SOCKET", serving.socket()));
        let outcome = run(&mut command);
        assert_eq!(outcome.code, code, "{mode}: {}", outcome.stderr);
    }
}

/// A server of one file that sends nothing, or the first bytes of the model and then nothing.
struct Stalling {
    port: u16,
    /// Gets the path of each request that has no answer.
    stalled: Receiver<String>,
    /// Gets the path when the client of such a request has closed the connection.
    gone: Receiver<String>,
}

impl Stalling {
    /// Starts a server of `content`, which sends nothing for `/m/…silent.bin`, and only the first bytes of
    /// `/m/…slow.bin`.
    fn start(content: Vec<u8>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (request, stalled) = mpsc::channel();
        let (end, gone) = mpsc::channel();
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let (content, request, end) = (content.clone(), request.clone(), end.clone());
                thread::spawn(move || answer(socket, &content, &request, &end));
            }
        });
        Self { port, stalled, gone }
    }

    fn url(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/m/{name}", self.port)
    }
}

fn answer(socket: TcpStream, content: &[u8], request: &Sender<String>, end: &Sender<String>) {
    let mut out = socket.try_clone().unwrap();
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let path = first.split(' ').nth(1).unwrap().to_owned();
        let fields: Vec<String> = lines.by_ref().take_while(|line| !line.is_empty()).collect();
        let range = fields.iter().find_map(|line| line.strip_prefix("Range: bytes=")).unwrap();
        let (first, last) = range.split_once('-').unwrap();
        let start: usize = first.parse().unwrap();
        let stop = (last.parse::<usize>().unwrap() + 1).min(content.len());
        if path.ends_with("silent.bin") || path.ends_with("slow.bin") && start > 0 {
            let _ = request.send(path.clone());
            // Waits until the client closes the connection.
            let _ = lines.next();
            let _ = end.send(path);
            return;
        }
        let etag = if path.ends_with("unversioned.bin") { "" } else { "ETag: \"1\"\r\n" };
        let head = format!(
            "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes \
             {start}-{}/{}\r\n{etag}\r\n",
            stop - start,
            stop - 1,
            content.len()
        );
        let body = &content[start..stop];
        if out.write_all(head.as_bytes()).and_then(|()| out.write_all(body)).is_err() {
            return;
        }
    }
}

#[test]
fn a_server_that_stalls_delays_no_other_client_and_a_client_that_goes_ends_its_requests() {
    let content: Vec<u8> = (0..20_000_000_u32).map(|at| (at >> 8) as u8).collect();
    let stalling = Stalling::start(content.clone());
    let mut serving = Served::start(&["--root", &stalling.url("")], &[]);
    // One more than the server has places for lookups of one user, and for loads.
    for (name, count) in [("silent.bin", 5), ("slow.bin", 3)] {
        let paths: BTreeSet<String> = (0..count).map(|at| format!("/m/{at}-{name}")).collect();
        let attach = |path: &String| {
            let url = format!("http://127.0.0.1:{}{path}", stalling.port);
            let mut command = command(&["attach", "--quiet", &url]);
            command.env("LONGSHORE_SOCKET", serving.socket()).stderr(Stdio::null());
            command.spawn().unwrap()
        };
        let clients: Vec<Child> = paths.iter().map(attach).collect();
        let mut stalled = BTreeSet::new();
        while stalled.len() + 1 < count {
            stalled.insert(stalling.stalled.recv_timeout(PATIENCE).unwrap());
        }
        let began = Instant::now();
        let fast = format!("{count}-fast.bin");
        assert!(serving.attach(&stalling.url(&fast)).as_slice() == content);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        while stalled.len() < count {
            stalled.insert(stalling.stalled.recv_timeout(PATIENCE).unwrap());
        }
        for mut client in clients {
            assert_eq!(client.try_wait().unwrap(), None, "it waits for {name}");
            client.kill().unwrap();
            client.wait().unwrap();
        }
        let mut gone = BTreeSet::new();
        while gone.len() < count {
            gone.insert(stalling.gone.recv_timeout(Duration::from_secs(20)).unwrap());
        }
        assert!(gone == paths && stalled == paths, "{gone:?}");
    }
    for _ in 0..3 {
        let failed = serving.wait("load_failed");
        assert!(failed["message"].as_str().unwrap().contains("no client waits"), "{failed}");
    }
}

#[test]
fn the_requests_of_a_load_have_a_time_limit() {
    let stalling = Stalling::start(vec![7; 20_000_000]);
    let serving = Served::start(&["--root", &stalling.url(""), "--timeout", "0.5"], &[]);
    for name in ["silent.bin", "slow.bin"] {
        serving.client(&["attach", &stalling.url(name)]).expect(24, &["time limit", name]);
    }
}

#[test]
fn a_file_without_a_version_is_not_shared() {
    let content = vec![7; 100_000];
    let stalling = Stalling::start(content.clone());
    let serving = Served::start(&["--root", &stalling.url("")], &[]);
    let url = stalling.url("unversioned.bin");
    let (one, other) = (serving.attach(&url), serving.attach(&url));
    assert!(one.as_slice() == content && other.as_slice() == content);
    assert_ne!(one.id(), other.id());
    let listed = serving.client(&["ls", "--json"]).json();
    assert_eq!(listed["held"][0]["stale"], true, "{listed}");
    let mut command = command(&["serve", &url, "--socket"]);
    run(command.arg(serving.dir.path().join("other"))).expect(1, &["no version", "strong ETag"]);
}
