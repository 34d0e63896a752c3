//! Buckets of a server that answers as Amazon S3 does.

mod server;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use longshore_formats::directory::ModelFilter;
use longshore_load::{Error, FormatChoice, Loader, Outcome, PublishedModels, Publisher};
use longshore_remote::Remote;
use server::{Answer, Request, Server, model};

const SECRET: &str = "a-secret-that-is-not-shown";

fn status(text: &str, fields: &str) -> Answer {
    Answer::Raw(format!("HTTP/1.1 {text}\r\nContent-Length: 0\r\n{fields}\r\n"))
}

/// Returns a page of a listing. The last one has no token.
fn page(keys: &[&str], folders: &[&str], token: Option<usize>) -> Answer {
    let key = |key: &&str| {
        format!(
            "<Contents><Key>{key}</Key><LastModified>2026-11-28T00:00:00.000Z</LastModified>\
             <ETag>\"1\"</ETag><Size>7</Size></Contents>"
        )
    };
    let folder =
        |folder: &&str| format!("<CommonPrefixes><Prefix>{folder}</Prefix></CommonPrefixes>");
    let token =
        token.map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"));
    let body = format!(
        "<ListBucketResult>{}{}{}</ListBucketResult>",
        keys.iter().map(key).collect::<String>(),
        folders.iter().map(folder).collect::<String>(),
        token.unwrap_or_default()
    );
    Answer::Raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()))
}

/// Starts a server that has the content under the keys in `bucket` that end with `.safetensors`.
fn bucket(list: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Server {
    Server::start(model(), move |number, request| match request.target.as_str() {
        target if target.contains("list-type=2") => list(number, request),
        target if target.ends_with(".safetensors") => Answer::Content("\"1\""),
        "/bucket/m/config.json" => Answer::Content("\"1\""),
        _ => status("404 Not Found", ""),
    })
}

fn remote(server: &Server) -> Remote {
    let mut endpoint = server.url.clone();
    endpoint.set_path("");
    let options = [
        ("aws_access_key_id", "key"),
        ("aws_secret_access_key", SECRET),
        ("aws_region", "eu-west-1"),
    ];
    let options = options.into_iter().chain([("aws_endpoint_url", endpoint.as_str())]);
    options.fold(Remote::new(), |remote, (name, value)| remote.storage_option(name, value).unwrap())
}

fn found(remote: &Remote, source: &str) -> Result<Vec<PathBuf>, Error> {
    remote.find_files(source, FormatChoice::Auto, &ModelFilter::new())
}

fn cause(error: &Error) -> String {
    let Error::Open { source, .. } = error else { panic!("{error}") };
    source.to_string()
}

#[test]
fn each_request_is_signed() {
    let server = bucket(|_, _| page(&[], &[], None));
    let opened =
        remote(&server).open(&["s3://bucket/m/a.safetensors"], FormatChoice::Auto).unwrap();
    let loaded = Loader::new().load(&opened.plan).unwrap();
    assert!(loaded.buffer.read().unwrap()[..] == model()[..]);
    let requests = server.requests.lock().unwrap();
    assert!(!requests.is_empty());
    for request in requests.iter() {
        assert_eq!(request.target, "/bucket/m/a.safetensors");
        let signature = &request.fields["authorization"];
        assert!(signature.starts_with("AWS4-HMAC-SHA256 Credential=key/"), "{signature}");
        assert!(signature.contains("/eu-west-1/s3/aws4_request"), "{signature}");
        assert!(!format!("{request:?}").contains(SECRET));
    }
}

#[test]
fn a_bucket_of_another_region_is_asked_with_a_signature_for_it() {
    let server =
        Server::start(model(), |_, request: &Request| {
            match request.fields["authorization"].contains("/ap-south-1/s3/") {
                true => Answer::Content("\"1\""),
                false => status("301 Moved Permanently", "x-amz-bucket-region: ap-south-1\r\n"),
            }
        });
    let remote = remote(&server);
    remote.open(&["s3://bucket/a.safetensors"], FormatChoice::Auto).unwrap();
    let before = server.count();
    remote.open(&["s3://bucket/b.safetensors"], FormatChoice::Auto).unwrap();
    let listing = Server::start(model(), |_, request: &Request| {
        match request.fields["authorization"].contains("/ap-south-1/s3/") {
            true => page(&["m/a.safetensors"], &[], None),
            false => status("301 Moved Permanently", "x-amz-bucket-region: ap-south-1\r\n"),
        }
    });
    let filter = ModelFilter::new().include("*");
    let listed = self::remote(&listing).find_files("s3://bucket/m/", FormatChoice::Auto, &filter);
    assert_eq!(listed.unwrap(), [PathBuf::from("s3://bucket/m/a.safetensors")]);
    // The region is known by now.
    let requests = server.requests.lock().unwrap();
    assert!(
        requests[before..].iter().all(|it| it.fields["authorization"].contains("/ap-south-1/"))
    );
}

#[test]
fn a_prefix_is_a_directory() {
    let server = bucket(|_, request| match request.target.as_str() {
        target if target.contains("prefix=m%2F") || target.contains("prefix=m/") => {
            page(&["m/a.safetensors", "m/config.json", "m/a.bin"], &["m/sub/"], None)
        }
        target if target.contains("prefix=deep") && !target.contains("inner") => {
            page(&[], &["deep/inner/"], None)
        }
        target if target.contains("inner") => page(&["deep/inner/b.safetensors"], &[], None),
        _ => page(&[], &[], None),
    });
    let remote = remote(&server);
    for source in ["s3://bucket/m/", "s3://bucket/m", "s3:/bucket/m/"] {
        let expected = [PathBuf::from("s3://bucket/m/a.safetensors")];
        assert_eq!(found(&remote, source).unwrap(), expected, "{source}");
    }
    let expected = [PathBuf::from("s3://bucket/deep/inner/b.safetensors")];
    assert_eq!(found(&remote, "s3://bucket/deep").unwrap(), expected);
    let refused = found(&remote, "s3://bucket/none/").unwrap_err();
    assert!(matches!(refused, Error::Directory { .. }), "{refused}");
    for source in ["s3://", "s3:///a", "s3://bucket/a//b.gguf", "s3://bucket/../b.gguf"] {
        let files =
            found(&remote, source).and_then(|files| remote.open(&files, FormatChoice::Auto));
        let refused = files.unwrap_err();
        assert!(matches!(refused, Error::Open { .. }), "{source}: {refused}");
    }
}

#[test]
fn a_prefix_needs_no_right_to_list() {
    let server = bucket(|_, _| status("403 Forbidden", ""));
    let remote = remote(&server);
    let expected = [PathBuf::from("s3://bucket/m/model.safetensors")];
    assert_eq!(found(&remote, "s3://bucket/m/").unwrap(), expected);
    let model = remote.model("s3://bucket/m/", &ModelFilter::new()).unwrap().remote().unwrap();
    assert_eq!(model.paths().collect::<Vec<_>>(), ["config.json", "model.safetensors"]);
    // With a filter, only the listing has the answer.
    let filter = ModelFilter::new().include("*.gguf");
    let refused = remote.find_files("s3://bucket/m/", FormatChoice::Auto, &filter).unwrap_err();
    assert!(cause(&refused).contains("status 403"), "{refused}");
}

#[test]
fn a_listing_without_an_end_is_refused() {
    let server = bucket(|number, _| page(&["m/a.bin"], &[], Some(number)));
    let refused = found(&remote(&server), "s3://bucket/m/").unwrap_err();
    assert!(cause(&refused).contains("more than 200 pages"), "{refused}");
    assert!(server.count() < 250, "{}", server.count());
}

#[test]
fn names_of_which_no_request_can_be_made_are_refused() {
    let long = "m/".to_owned() + &"k".repeat(70_000);
    let server = bucket(move |_, request| match request.target.contains("continuation") {
        true => page(&["m/a.gguf"], &[], None),
        false => page(&[&long], &[], None),
    });
    let refused = found(&remote(&server), "s3://bucket/m/").unwrap_err();
    assert!(matches!(refused, Error::Directory { .. }), "{refused}");
    let token = "1".repeat(70_000);
    let server = Server::start(model(), move |_, request: &Request| {
        match request.target.contains("list-type=2") {
            true => {
                let body = format!(
                    "<ListBucketResult><NextContinuationToken>{token}</NextContinuationToken></ListBucketResult>"
                );
                Answer::Raw(format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                ))
            }
            false => status("404 Not Found", ""),
        }
    });
    let refused = found(&remote(&server), "s3://bucket/m/").unwrap_err();
    assert!(cause(&refused).contains("no valid request"), "{refused}");
}

#[test]
fn a_model_of_another_server_is_not_the_same_one() {
    let target = tempfile::tempdir_in("/dev/shm").unwrap();
    let publish = |server: &Server| {
        let model = Remote::new()
            .model(server.url.as_str(), &ModelFilter::new())
            .unwrap()
            .remote()
            .unwrap();
        Publisher::new(target.path()).replace(true).publish_remote(&model).unwrap().outcome
    };
    let [one, other] = [(); 2].map(|()| Server::start(model(), |_, _| Answer::Content("\"1\"")));
    assert_eq!(publish(&one), Outcome::New);
    assert_eq!(publish(&one), Outcome::AlreadyPublished);
    assert_eq!(publish(&other), Outcome::Replaced);
    let models = PublishedModels::open(target.path()).unwrap();
    assert!(models.find_by_source(Path::new(other.url.as_str())).is_some());
    assert!(models.find_by_source(Path::new(one.url.as_str())).is_none());
}

#[test]
fn a_file_of_another_query_is_not_the_same_one() {
    let server = Server::start(model(), |_, _| Answer::Content("\"1\""));
    let target = tempfile::tempdir_in("/dev/shm").unwrap();
    let publish = |query: &str| {
        let url = format!("{}?{query}", server.url);
        let model = Remote::new().model(&url, &ModelFilter::new()).unwrap().remote().unwrap();
        Publisher::new(target.path()).replace(true).publish_remote(&model).unwrap().outcome
    };
    let outcomes = ["file=secret-a", "file=secret-a", "file=b"].map(publish);
    assert_eq!(outcomes, [Outcome::New, Outcome::AlreadyPublished, Outcome::Replaced]);
    // The record has no secrets of the URL.
    let found = Command::new("grep").args(["-r", "secret"]).arg(target.path()).output().unwrap();
    assert!(found.stdout.is_empty(), "{}", String::from_utf8_lossy(&found.stdout));
}

#[test]
fn a_server_without_versions_is_noted_once() {
    let head =
        "HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 0-9/10\r\n\r\n";
    let server = Server::start(Vec::new(), move |_, _| Answer::Raw(format!("{head}0123456789")));
    let remote = Remote::new();
    for name in ["a.gguf", "b.gguf"] {
        remote.open_file(Path::new(server.url.join(name).unwrap().as_str())).unwrap();
    }
    let notes = remote.notes();
    assert!(
        notes.len() == 1
            && notes[0].contains("http://127.0.0.1:")
            && notes[0].contains("sends no versions"),
        "{notes:?}"
    );
}

#[test]
fn files_beside_the_weights_are_not_dropped() {
    let names: Vec<String> = (0..1001).map(|number| format!("m/{number}.json")).collect();
    let server = bucket(move |_, _| {
        let names = names.iter().map(String::as_str).chain(["m/a.safetensors"]);
        page(&names.collect::<Vec<_>>(), &[], None)
    });
    let refused = remote(&server).model("s3://bucket/m/", &ModelFilter::new()).unwrap_err();
    assert!(cause(&refused).contains("1001 files beside its weights"), "{}", cause(&refused));
}

#[test]
fn all_listings_of_a_search_have_one_limit() {
    let folders: Vec<String> = (0..100).map(|number| format!("m/{number}/")).collect();
    let blank = " ".repeat(4 << 20);
    let server = bucket(move |_, request| match request.target.ends_with("prefix=m%2F") {
        true => page(&[], &folders.iter().map(String::as_str).collect::<Vec<_>>(), None),
        false => {
            let body = format!("<ListBucketResult>{blank}</ListBucketResult>");
            let len = body.len();
            Answer::Raw(format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\n\r\n{body}"))
        }
    });
    let refused = found(&remote(&server), "s3://bucket/m/").unwrap_err();
    assert!(cause(&refused).contains("more than 64 MiB"), "{}", cause(&refused));
    assert!((16..25).contains(&server.count()), "{}", server.count());
}

#[test]
fn the_query_of_a_url_is_no_part_of_names() {
    let server = Server::start(model(), |_, _| Answer::Content("\"1\""));
    let url = format!("{}?signature=ab/SECRET", server.url);
    let opened = Remote::new().open(&[&url], FormatChoice::Auto).unwrap();
    assert_eq!(opened.tensors.len(), 1);
    let published = Remote::new().model(&url, &ModelFilter::new()).unwrap().remote().unwrap();
    assert_eq!(published.paths().collect::<Vec<_>>(), ["model.safetensors"]);
    let shown = format!("{opened:?} {published:?}");
    assert!(!shown.contains("SECRET") && !shown.contains("signature"), "{shown}");
}

#[test]
fn credentials_are_not_shown() {
    let server = Server::start(model(), |_, _| status("403 Forbidden", ""));
    let remote = remote(&server);
    let refused = remote.open(&["s3://bucket/a.safetensors"], FormatChoice::Auto).unwrap_err();
    let text = format!("{refused} {refused:?} {remote:?} {}", cause(&refused));
    assert!(text.contains("check the credentials") && !text.contains(SECRET), "{text}");
    assert_eq!(server.count(), 1);
    let broken = Remote::new().storage_option("aws_access_key_id", SECRET).unwrap();
    let broken = broken.storage_option("aws_s3_express", SECRET).unwrap();
    let refused = broken.open(&["s3://bucket/a.safetensors"], FormatChoice::Auto).unwrap_err();
    let text = format!("{refused} {refused:?} {broken:?}");
    assert!(!text.contains(SECRET), "{text}");
}

#[test]
fn credentials_that_are_not_accepted_are_named() {
    for (status, code, hint) in [
        ("400 Bad Request", "ExpiredToken", "renew the credentials"),
        ("403 Forbidden", "RequestTimeTooSkewed", "correct the clock"),
    ] {
        let body = format!("<Error><Code>{code}</Code><Message>{SECRET}</Message></Error>");
        let len = body.len();
        let server = Server::start(model(), move |_, _| {
            Answer::Raw(format!("HTTP/1.1 {status}\r\nContent-Length: {len}\r\n\r\n{body}"))
        });
        let sources = ["s3://bucket/a.safetensors"];
        let refused = remote(&server).open(&sources, FormatChoice::Auto).unwrap_err();
        let Error::Open { source, .. } = &refused else { panic!("{refused}") };
        assert_eq!(source.kind(), std::io::ErrorKind::PermissionDenied);
        let text = source.to_string();
        assert!(text.contains(code) && text.contains(hint) && !text.contains(SECRET), "{text}");
        assert_eq!(server.count(), 1);
    }
}

#[test]
fn a_search_ends_at_the_time_limit() {
    let server = bucket(|_, _| Answer::Raw("HTTP/1.1 200 OK\r\n".to_owned()));
    let remote = remote(&server).time_limit(Duration::from_millis(300));
    let refused = found(&remote, "s3://bucket/m/").unwrap_err();
    let Error::Open { source, .. } = &refused else { panic!("{refused}") };
    assert_eq!(source.kind(), std::io::ErrorKind::TimedOut, "{source}");
}

#[test]
fn a_model_is_published_with_the_files_beside_it() {
    let server = bucket(|_, _| page(&["m/a.safetensors", "m/config.json", "m/a.bin"], &[], None));
    let target = tempfile::tempdir_in("/dev/shm").unwrap();
    let publish = |remote: &Remote| {
        let model = remote
            .model(Path::new("s3://bucket/m"), &ModelFilter::new())
            .unwrap()
            .remote()
            .unwrap();
        Publisher::new(target.path()).publish_remote(&model).unwrap()
    };
    let remote = remote(&server);
    let published = publish(&remote);
    assert_eq!((published.outcome, published.mode & 0o777), (Outcome::New, 0o700));
    assert_eq!(published.directory, target.path().join("m"));
    let names: Vec<_> = published.files.iter().map(|file| file.path.to_str().unwrap()).collect();
    assert_eq!(names, ["a.safetensors", "config.json"]);
    assert!(std::fs::read(published.directory.join("a.safetensors")).unwrap() == model());
    let before = server.count();
    assert_eq!(publish(&remote).outcome, Outcome::AlreadyPublished);
    // A listing, and the first bytes of each file.
    assert!(server.count() - before <= 6, "{}", server.count() - before);
}
