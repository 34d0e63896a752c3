//! Models of real HTTP servers: nginx, with TLS by a private authority.

mod command;
#[path = "command/nginx.rs"]
mod nginx;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use command::{longshore, run};
use nginx::{Nginx, command, port, with};

#[test]
fn a_model_of_a_server_is_loaded_and_only_its_header_inspected() {
    let Some(nginx) = Nginx::start() else { return };
    let content = nginx.make_model("64MiB", "m.safetensors");
    let url = format!("http://127.0.0.1:{}/m.safetensors", nginx.plain);
    let inspected = with(&["inspect", "--json", &url], &[]).json();
    assert_eq!(inspected["files"][0]["bytes"].as_u64(), Some(content.len() as u64), "{inspected}");
    let sent: u64 = nginx.log().iter().map(|line| line[2].parse::<u64>().unwrap()).sum();
    assert!(sent <= 1 << 20, "{sent}");
    let loaded = with(&["load", "--json", "--verify", "sha256", &url], &[]).json();
    let expected =
        longshore(&["load", "--json", "--verify", "sha256", &nginx.file("root/m.safetensors")]);
    assert_eq!(loaded["files"][0]["digests"], expected.json()["files"][0]["digests"], "{loaded}");
    assert_eq!(loaded["bytes_by_mode"]["remote"].as_u64(), Some(content.len() as u64), "{loaded}");
    let copy = nginx.file("copy");
    let kept = with(&["load", &url, "--keep-copy", &copy], &[]);
    assert!(kept.stdout.contains(&format!("1 file(s) in {copy}")), "{}", kept.stdout);
    assert!(fs::read(nginx.file("copy/m.safetensors")).unwrap() == content);
    assert_eq!(fs::read_dir(&copy).unwrap().count(), 1);
    assert_eq!(longshore(&["load", &copy]).code, 0);
    with(&["load", &copy, "--keep-copy", &copy], &[]).expect(2, &["on this machine already"]);
    // A load that fails leaves nothing.
    let before = nginx.log().iter().filter(|line| line[2] != "0").count();
    with(&["load", &url, "--keep-copy", &copy], &[]).expect(19, &["it exists; load it"]);
    let sent =
        nginx.log()[before..].iter().map(|line| line[2].parse::<u64>().unwrap()).sum::<u64>();
    assert!(sent < 1 << 20, "{sent}");
    let (manifest, broken) = (nginx.file("sums"), nginx.file("broken"));
    fs::write(&manifest, format!("{}  m.safetensors\n", "0".repeat(64))).unwrap();
    with(&["load", &url, "--manifest", &manifest, "--keep-copy", &broken], &[]).expect(16, &[]);
    assert!(!Path::new(&broken).exists());
    let is_partial = |entry: fs::DirEntry| entry.path().to_string_lossy().ends_with(".partial");
    assert!(!fs::read_dir(nginx.dir.path()).unwrap().any(|entry| is_partial(entry.unwrap())));
    with(&["load", &url, "--keep-copy", "hub"], &[]).expect(2, &["for repositories of the Hub"]);
    let printed = command(&["exec", &url, "--", "cat", "{}"]).output().unwrap();
    assert!(printed.stdout == content, "{}", String::from_utf8_lossy(&printed.stderr));
}

#[test]
fn what_a_server_refuses_is_said() {
    let Some(nginx) = Nginx::start() else { return };
    nginx.make_model("1MiB", "m.safetensors");
    let at = |path: &str| format!("http://127.0.0.1:{}/{path}", nginx.plain);
    with(&["load", &at("none.gguf")], &[]).expect(10, &["none.gguf", "no such file"]);
    with(&["load", &at("private/x.gguf")], &[]).expect(12, &["check the credentials"]);
    with(&["load", &at("whole/m.safetensors")], &[]).expect(24, &["whole file"]);
    let closed = format!("http://127.0.0.1:{}/m.gguf?secret", port());
    let refused = with(&["load", &closed], &[]);
    refused.expect(24, &["cannot open", "refused"]);
    assert!(!refused.stderr.contains("secret"), "{}", refused.stderr);
    let url = at("m.safetensors");
    with(&["load", &url, "--include", "*"], &[]).expect(2, &["it is a file"]);
    let hidden = format!("{url}?signature=secret");
    let keep = ["load", "/dev/null?secret", "--keep-copy", "copy"];
    for arguments in [
        &["load", &hidden, "--include", "*"][..],
        &["load", "ftp://user:secret@host/m.gguf"],
        &["load", "s3://key:secret@bucket/m.gguf", "--timeout", "0.1"],
        &["evict", &hidden],
        &["evict", "http://user:secret@host/m.gguf"],
        &["repack", &hidden, "m.gguf"],
        &["load", "--frob=https://user:secret@host"],
        &["load", "--align", "https://user:secret@host", "m.gguf"],
        &["load", "hf://user:secret@org/name"],
        &["publish", "https://user:secret@127.0.0.1:1/m.gguf", "--to", "/dev/shm"],
        &["attach", &hidden],
    ] {
        let refused = with(arguments, &[]);
        let shown = format!("{}{}", refused.stdout, refused.stderr);
        assert!(refused.code != 0 && !shown.contains("secret"), "{arguments:?}: {shown}");
    }
    with(&keep, &[]).expect(2, &["on this machine already"]);
    let printed = command(&["cat", &hidden]).output().unwrap();
    let shown = String::from_utf8_lossy(&printed.stderr);
    assert!(
        printed.status.success() && shown.contains(&url) && !shown.contains("secret"),
        "{shown}"
    );
    with(&["load", "ftp://host/m.gguf"], &[]).expect(2, &["ftp:// is not supported"]);
    with(&["load", "s3://"], &[]).expect(2, &["s3://BUCKET/KEY"]);
    with(&["load", &url], &[("http_proxy", "socks5://127.0.0.1:1")]).expect(2, &["proxy"]);
    let proxied = with(&["load", &url], &[("http_proxy", "127.0.0.1:1")]);
    proxied.expect(24, &["refused"]);
    assert_eq!(
        with(&["load", &url], &[("http_proxy", "127.0.0.1:1"), ("no_proxy", "127.0.0.1")]).code,
        0
    );
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("http://{}/m.gguf", silent.local_addr().unwrap());
    with(&["inspect", "--timeout", "0.3", &silent], &[]).expect(24, &["time limit"]);
    with(&["load", "--timeout", "0", &silent], &[]).expect(2, &["number of seconds"]);
}

#[test]
fn certificates_of_servers_and_clients_are_checked() {
    let Some(nginx) = Nginx::start() else { return };
    nginx.make_model("1MiB", "m.safetensors");
    let at = |host: &str, port: u16| format!("https://{host}:{port}/m.safetensors");
    let (url, mutual) = (at("localhost", nginx.tls), at("localhost", nginx.mutual));
    let (authority, client) = (nginx.file("ca.pem"), nginx.file("client.pem"));
    let trusted = ("SSL_CERT_FILE", authority.as_str());
    assert_eq!(with(&["inspect", &url], &[trusted]).code, 0);
    assert_eq!(with(&["inspect", &url], &[("AWS_CA_BUNDLE", &authority)]).code, 0);
    with(&["inspect", &url], &[]).expect(24, &["certificate", "UnknownIssuer"]);
    // The certificate is that of another name.
    with(&["inspect", &at("127.0.0.1", nginx.tls)], &[trusted]).expect(24, &["certificate"]);
    let identity = ("LONGSHORE_CLIENT_CERT_FILE", client.as_str());
    assert_eq!(with(&["inspect", &mutual], &[trusted, identity]).code, 0);
    assert_eq!(with(&["inspect", &mutual], &[trusted]).code, 24);
    let missing = ("LONGSHORE_CLIENT_CERT_FILE", "/nonexistent");
    with(&["inspect", &mutual], &[trusted, missing]).expect(2, &["LONGSHORE_CLIENT_CERT_FILE"]);
}

#[test]
fn credentials_come_from_a_profile_of_the_aws_tools() {
    let Some(nginx) = Nginx::start() else { return };
    nginx.make_model("1MiB", "bucket/m.safetensors");
    let aws = nginx.dir.path().join("aws");
    let script = "#!/bin/sh\ncase \"$*\" in\n'configure export-credentials --format process') \
                  echo '{\"Version\":1,\"AccessKeyId\":\"of-a-profile\",\"SecretAccessKey\":\"hidden\"}' ;;\n\
                  'configure get region') echo eu-north-1 ;;\n*) exit 1 ;;\nesac\n";
    fs::write(&aws, script).unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&aws).status().unwrap().success());
    let endpoint = format!("http://127.0.0.1:{}", nginx.plain);
    let path = format!("{}:{}", nginx.dir.path().display(), std::env::var("PATH").unwrap());
    let variables = [("AWS_PROFILE", "work"), ("AWS_ENDPOINT_URL", &*endpoint), ("PATH", &*path)];
    assert_eq!(with(&["load", "s3://bucket/m.safetensors"], &variables).code, 0);
    let log = nginx.log();
    let expected = "AWS4-HMAC-SHA256 Credential=of-a-profile/";
    assert!(log.iter().all(|line| line[3].starts_with(expected)), "{log:?}");
    assert!(log.iter().all(|line| line[3].contains("/eu-north-1/s3/")) && !log.is_empty());
    let without =
        [("AWS_PROFILE", "work"), ("AWS_ENDPOINT_URL", &*endpoint), ("PATH", "/nonexistent")];
    with(&["load", "s3://bucket/m.safetensors"], &without).expect(12, &["AWS profile"]);
    // An `aws` that does not end is ended at the time limit, before its own one of 30 seconds.
    let pid_file = nginx.file("aws-pid");
    fs::write(&aws, format!("#!/bin/sh\necho $$ > {pid_file}\nexec sleep 600\n")).unwrap();
    let started = Instant::now();
    let limited = ["load", "--timeout", "0.5", "s3://bucket/m.safetensors"];
    with(&limited, &variables).expect(24, &["time limit"]);
    assert!(started.elapsed() < Duration::from_secs(25));
    let pid = fs::read_to_string(&pid_file).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    // The command line of Azure is ended, too, also with the programs that it has started.
    let az = nginx.dir.path().join("az");
    fs::write(&az, format!("#!/bin/sh\necho $$ > {pid_file}\nsleep 600\n")).unwrap();
    assert!(Command::new("chmod").arg("+x").arg(&az).status().unwrap().success());
    let azure = [
        ("AZURE_USE_AZURE_CLI", "true"),
        ("AZURE_STORAGE_ACCOUNT_NAME", "name"),
        ("AZURE_STORAGE_ENDPOINT", &*endpoint),
        ("PATH", &*path),
    ];
    let of_azure = ["load", "--timeout", "0.5", "az://bucket/m.safetensors"];
    with(&of_azure, &azure).expect(24, &["time limit"]);
    let pid = fs::read_to_string(&pid_file).unwrap();
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    fs::write(&az, "#!/bin/sh\necho '{\"accessToken\":\"of-az\"}'\nsleep 600 &\n").unwrap();
    assert_eq!(with(&["load", "az://bucket/m.safetensors"], &azure).code, 0);
    assert_eq!(nginx.log().last().unwrap()[3], "Bearer of-az");
    // A key that cannot be read is not shown.
    let pem = "-----BEGIN PRIVATE KEY----- c2VjcmV0 -----END PRIVATE KEY-----";
    let account = format!(
        "{{\"private_key\":\"{pem}\",\"private_key_id\":\"i\",\"client_email\":\"e\",\"type\":\"service_account\"}}"
    );
    for key in [account.as_str(), &format!("\"{pem}\"")] {
        let refused = with(&["load", "gs://b/m.gguf"], &[("GOOGLE_SERVICE_ACCOUNT_KEY", key)]);
        assert_eq!(refused.code, 12, "{}", refused.stderr);
        let shown = &refused.stderr;
        assert!(
            !shown.contains("c2Vjc") && !shown.contains("BEGIN") && !shown.contains("45, 45"),
            "{shown}"
        );
    }
    let key = [("AWS_ACCESS_KEY_ID", "k"), ("AWS_ENDPOINT_URL", &*endpoint)];
    with(&["load", "s3://bucket/m.safetensors"], &key).expect(12, &["Missing SecretAccessKey"]);
    let unsigned = [("AWS_SKIP_SIGNATURE", "true"), ("AWS_ENDPOINT_URL", &*endpoint)];
    assert_eq!(with(&["load", "s3://bucket/m.safetensors"], &unsigned).code, 0);
    assert_eq!(nginx.log().last().unwrap()[3], "-");
}

#[test]
fn a_repository_is_published_from_the_hub_or_from_the_cache() {
    const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";
    let Some(nginx) = Nginx::start() else { return };
    let content = nginx.make_model("4MiB", &format!("org/name/resolve/{COMMIT}/model.safetensors"));
    let root = nginx.dir.path().join("root");
    fs::write(root.join(format!("org/name/resolve/{COMMIT}/config.json")), "{}").unwrap();
    let api = root.join("api/models/org/name/revision");
    fs::create_dir_all(&api).unwrap();
    let siblings =
        r#"[{"rfilename":"model.safetensors"},{"rfilename":"config.json"},{"rfilename":"a.bin"}]"#;
    fs::write(api.join("main"), format!("{{\"sha\":\"{COMMIT}\",\"siblings\":{siblings}}}"))
        .unwrap();
    let endpoint = format!("http://127.0.0.1:{}", nginx.plain);
    let target = tempfile::tempdir_in("/dev/shm").unwrap();
    let cache = nginx.file("cache");
    let publish = |options: &[&str]| {
        let to = target.path().to_str().unwrap();
        let arguments = [&["publish", "hf://org/name", "--to", to], options].concat();
        let mut command = command(&arguments);
        command.env("HF_ENDPOINT", &endpoint).env("HF_HUB_CACHE", &cache);
        run(command.env_remove("HF_HUB_OFFLINE").env_remove("HF_TOKEN"))
    };
    let requests = || nginx.log().iter().filter(|line| line[1].contains("/resolve/")).count();
    assert_eq!(publish(&[]).code, 0);
    let model = target.path().join("org--name");
    assert!(fs::read(model.join("model.safetensors")).unwrap() == content);
    assert_eq!(fs::read_to_string(model.join("config.json")).unwrap(), "{}");
    let before = requests();
    assert!(before > 0);

    // The cache has all files of the commit, so nothing else is asked for.
    let snapshot = Path::new(&cache).join("models--org--name/snapshots").join(COMMIT);
    fs::create_dir_all(&snapshot).unwrap();
    fs::create_dir(snapshot.join("../../blobs")).unwrap();
    fs::write(snapshot.join("model.safetensors"), &content).unwrap();
    fs::write(snapshot.join("config.json"), "{\"cached\":true}").unwrap();
    assert_eq!(publish(&["--replace"]).code, 0);
    assert!(fs::read_to_string(model.join("config.json")).unwrap().contains("cached"));
    assert_eq!(requests(), before);

    // A copy in another cache is found there without the Hub.
    let (other, name) = (nginx.file("other-cache"), "hf://org/name");
    let mut keep = command(&["load", name, "--keep-copy", "hub"]);
    keep.env("HF_ENDPOINT", &endpoint).env("HF_HUB_CACHE", &other).env_remove("HF_HUB_OFFLINE");
    assert_eq!(run(keep.env_remove("HF_TOKEN")).code, 0);
    with(&["load", name], &[("HF_HUB_OFFLINE", "1"), ("HF_HUB_CACHE", &other)]).expect(0, &[]);
    let kept = Path::new(&other).join("models--org--name/snapshots").join(COMMIT);
    assert!(fs::read(kept.join("model.safetensors")).unwrap() == content);
    assert_eq!(fs::read_to_string(kept.join("config.json")).unwrap(), "{}");

    // A server publishes it at its start, and again when it was evicted.
    let managed = tempfile::tempdir_in("/dev/shm").unwrap();
    let to = managed.path().to_str().unwrap();
    let mut serve = command(&["serve", "--publish", to, "--preload", name, "--json"]);
    serve.env("HF_ENDPOINT", &endpoint).env("HF_HUB_CACHE", nginx.file("no-cache"));
    serve.env_remove("HF_HUB_OFFLINE").env_remove("HF_TOKEN").stdout(Stdio::piped());
    let mut serve = serve.spawn().unwrap();
    let mut events = BufReader::new(serve.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut next = |kind: &str| {
        let line = events.find(|line| line.contains(&format!("\"event\":\"{kind}\"")));
        line.unwrap_or_else(|| panic!("no event {kind}"))
    };
    assert!(next("published").contains("\"name\":\"org--name\""));
    next("managing");
    let served = managed.path().join("org--name");
    assert!(fs::read(served.join("model.safetensors")).unwrap() == content);
    assert_eq!(longshore(&["evict", served.to_str().unwrap()]).code, 0);
    next("published");
    assert_eq!(fs::read_to_string(served.join("config.json")).unwrap(), "{}");
    command::signal(&serve, "TERM");
    assert!(serve.wait().unwrap().success());
    // Without the Hub, the published version is kept.
    let mut again = command(&["serve", "--publish", to, "--preload", name, "--json"]);
    again.env("HF_ENDPOINT", "http://127.0.0.1:1").env("HF_HUB_CACHE", nginx.file("no-cache"));
    again.env_remove("HF_HUB_OFFLINE").env_remove("HF_TOKEN").stdout(Stdio::piped());
    let mut again = again.spawn().unwrap();
    let mut lines = BufReader::new(again.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("\"event\":\"managing\"")));
    command::signal(&again, "TERM");
    assert!(again.wait().unwrap().success());
    // A server that does not answer ends it at its start.
    let mut silent = command(&["serve", "--publish", to, "--preload", "http://127.0.0.1:1/m.gguf"]);
    let silent = silent.output().unwrap();
    assert_eq!(silent.status.code(), Some(24), "{}", String::from_utf8_lossy(&silent.stderr));

    // A link in the cache must not lead to another file.
    let secret = nginx.file("secret");
    fs::write(&secret, "secret").unwrap();
    fs::remove_file(snapshot.join("config.json")).unwrap();
    std::os::unix::fs::symlink(&secret, snapshot.join("config.json")).unwrap();
    let refused = publish(&["--replace"]);
    assert!(refused.code != 0 && refused.stderr.contains("symbolic link"), "{}", refused.stderr);
    // Nor may a directory of the cache be one, also if it has all files.
    let other = nginx.dir.path().join("other");
    fs::rename(&snapshot, &other).unwrap();
    fs::remove_file(other.join("config.json")).unwrap();
    fs::write(other.join("config.json"), "secret").unwrap();
    std::os::unix::fs::symlink(&other, &snapshot).unwrap();
    let refused = publish(&["--replace"]);
    assert!(refused.code != 0 && refused.stderr.contains("symbolic link"), "{}", refused.stderr);
    assert!(fs::read_to_string(model.join("config.json")).unwrap().contains("cached"));
}
