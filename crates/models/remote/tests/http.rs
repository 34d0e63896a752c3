//! Reads of ranges from a server that fails in every way.

mod server;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use longshore_mem::VolatileSliceMut;
use longshore_remote::http::{Client, Field, HttpError, HttpFile, Patience, UrlRequests};
use url::Url;

use server::{Answer, Request, Server};

const VERSION: &str = "\"1\"";

fn content() -> Vec<u8> {
    (0..3_000_000u32).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn patience() -> Patience<'static> {
    Patience { stop: &|| false, silence_max: Duration::from_secs(10), until: None }
}

fn open(server: &Server) -> Result<HttpFile, HttpError> {
    open_url(&Arc::new(Client::new()), &server.url, &[])
}

fn open_url(client: &Arc<Client>, url: &Url, secret: &[Field]) -> Result<HttpFile, HttpError> {
    HttpFile::open(client, Arc::new(UrlRequests::new(url.clone(), secret)), &patience())
}

fn read(file: &HttpFile, start: usize, end: usize) -> Result<Vec<u8>, HttpError> {
    let mut bytes = vec![0; end - start];
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    file.read(&mut place, start as u64, &patience()).map(|()| bytes)
}

/// Returns the answer for requests after the first, which opens the file.
fn after_opening(answer: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static) -> Server {
    Server::start(content(), move |number, request| match number {
        0 => Answer::Content(VERSION),
        number => answer(number - 1, request),
    })
}

fn raw(status: &str, fields: &str) -> Answer {
    Answer::Raw(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n{fields}\r\n"))
}

#[test]
fn ranges_are_read_on_one_connection() {
    let server = after_opening(|_, _| Answer::Content(VERSION));
    let file = open(&server).unwrap();
    assert_eq!((file.len(), file.first()), (3_000_000, &content()[..65536]));
    for (start, end) in [(0, 10), (1_000_000, 3_000_000), (2_999_999, 3_000_000)] {
        assert!(read(&file, start, end).unwrap() == content()[start..end]);
    }
    assert_eq!((server.count(), server.connections.load(Ordering::Relaxed)), (4, 1));
    let requests = server.requests.lock().unwrap();
    assert!(requests[1..].iter().all(|request| request.fields["if-match"] == VERSION));
    drop(requests);
    assert!(read(&file, 2_999_999, 3_000_001).is_err());
}

#[test]
fn a_transfer_that_breaks_off_is_resumed_where_it_did() {
    let server = after_opening(|number, _| match number {
        0 => Answer::Cut(1_000_000),
        1 => Answer::Cut(0),
        _ => Answer::Content(VERSION),
    });
    let file = open(&server).unwrap();
    assert!(read(&file, 100, 2_000_100).unwrap() == content()[100..2_000_100]);
    let requests = server.requests.lock().unwrap();
    let ranges: Vec<_> = requests[1..].iter().map(Request::range).collect();
    assert_eq!(ranges, [100..2_000_100, 1_000_100..2_000_100, 1_000_100..2_000_100]);
}

#[test]
fn a_busy_server_is_asked_again_after_the_requested_time() {
    let server = after_opening(|number, _| match number {
        0 => raw("503 Slow Down", "Retry-After: 1\r\n"),
        1 => raw("500 Internal Server Error", ""),
        _ => Answer::Content(VERSION),
    });
    let file = open(&server).unwrap();
    let began = Instant::now();
    assert!(read(&file, 0, 1000).unwrap() == content()[..1000]);
    assert!(began.elapsed() >= Duration::from_secs(1) && server.count() == 4);
}

#[test]
fn errors_that_stay_are_returned_after_a_few_tries() {
    let server = after_opening(|_, _| raw("503 Slow Down", ""));
    let file = open(&server).unwrap();
    let failed = read(&file, 0, 1000).unwrap_err();
    assert!(matches!(failed, HttpError::Status { status: 503 }), "{failed}");
    assert_eq!(server.count(), 1 + 5);
    for (status, part) in [
        ("404 Not Found", "no such file"),
        ("403 Forbidden", "check the credentials"),
        ("200 OK", "the whole file"),
        ("418 Teapot", "status 418"),
    ] {
        let server = Server::start(content(), move |_, _| raw(status, ""));
        let failed = open(&server).unwrap_err().to_string();
        assert!(failed.contains(part) && server.count() == 1, "{failed}");
    }
}

#[test]
fn a_file_that_changes_on_the_server_is_an_error() {
    let other = || Answer::Content("\"2\"");
    let precondition = || raw("412 Precondition Failed", "");
    let shorter = || {
        Answer::Raw(
            "HTTP/1.1 206 x\r\nContent-Length: 1\r\nContent-Range: bytes 0-0/9\r\n\r\nx".to_owned(),
        )
    };
    let answers: [fn() -> Answer; 3] = [other, precondition, shorter];
    for answer in answers {
        let server = after_opening(move |_, _| answer());
        let failed = read(&open(&server).unwrap(), 0, 1000).unwrap_err();
        assert!(matches!(failed, HttpError::Changed), "{failed}");
        assert_eq!(server.count(), 2);
    }
}

#[test]
fn wrong_ranges_and_lengths_are_refused() {
    let partial = |fields: &str| {
        let text = format!("HTTP/1.1 206 x\r\n{fields}\r\n\r\n{}", "x".repeat(1000));
        move |_: usize, _: &Request| Answer::Raw(text.clone())
    };
    let range = "Content-Range: bytes 0-999/3000000\r\n";
    for fields in [
        "Content-Length: 1000".to_owned(),
        "Content-Length: 1000\r\nContent-Range: bytes 1-1000/3000000".to_owned(),
        "Content-Length: 1000\r\nContent-Range: bytes 0-1000/3000000".to_owned(),
        "Content-Length: 1000\r\nContent-Range: bytes 0-999/*".to_owned(),
        format!("{range}Content-Length: 999"),
        format!("{range}Content-Length: 1000\r\nContent-Encoding: gzip"),
        format!("{range}Transfer-Encoding: chunked"),
    ] {
        let server = after_opening(partial(&fields));
        let failed = read(&open(&server).unwrap(), 0, 1000).unwrap_err();
        assert!(matches!(failed, HttpError::NoRanges { .. }), "{fields}: {failed}");
    }
    // Fewer bytes than requested are valid.
    let server = after_opening(|number, _| match number {
        0 => Answer::Raw(format!(
            "HTTP/1.1 206 x\r\nContent-Length: 2\r\nContent-Range: bytes 0-1/3000000\r\n\r\n{}",
            String::from_utf8_lossy(&content()[..2])
        )),
        _ => Answer::Content(VERSION),
    });
    assert!(read(&open(&server).unwrap(), 0, 1000).unwrap() == content()[..1000]);
    let server = after_opening(|_, _| Answer::Raw("SSH-2.0-OpenSSH\r\n\r\n".to_owned()));
    assert!(matches!(read(&open(&server).unwrap(), 0, 9), Err(HttpError::Connection(_))));
}

#[test]
fn a_silent_server_ends_a_read_by_timeout_or_by_the_caller() {
    let server = after_opening(|_, _| Answer::Stall(1000));
    let file = open(&server).unwrap();
    let mut bytes = vec![0; 2000];
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    let is_stopped = AtomicBool::new(false);
    let stop = || is_stopped.load(Ordering::Relaxed);
    let patience = Patience { stop: &stop, silence_max: Duration::from_secs(30), until: None };
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let began = Instant::now();
            let failed = file.read(&mut place, 0, &patience).unwrap_err();
            (failed, began.elapsed())
        });
        std::thread::sleep(Duration::from_millis(300));
        is_stopped.store(true, Ordering::Relaxed);
        let (failed, elapsed) = reading.join().unwrap();
        assert!(matches!(failed, HttpError::Stopped), "{failed}");
        assert!(elapsed < Duration::from_secs(5));
    });
    // Each silence is a failed try, and the read goes on at the next byte.
    let server = after_opening(|number, _| match number {
        0 => Answer::Stall(1000),
        _ => Answer::Content(VERSION),
    });
    let file = open(&server).unwrap();
    let patience =
        Patience { stop: &|| false, silence_max: Duration::from_millis(300), until: None };
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    file.read(&mut place, 0, &patience).unwrap();
    assert!(bytes == content()[..2000]);
}

#[test]
fn redirects_are_followed_without_secrets_to_other_hosts() {
    let target = Server::start(content(), |_, _| Answer::Content(VERSION));
    let to = target.url.clone();
    let first = Server::start(content(), move |_, _| {
        raw("302 Found", &format!("Location: {to}?signature=1\r\n"))
    });
    let secret = [Field::new("Authorization", "Bearer token").unwrap()];
    let client = Arc::new(Client::new());
    let file = open_url(&client, &first.url, &secret).unwrap();
    assert!(read(&file, 5, 1000).unwrap() == content()[5..1000]);
    assert_eq!((first.count(), target.count()), (1, 2));
    let has_secret = |server: &Server| -> Vec<bool> {
        let requests = server.requests.lock().unwrap();
        requests.iter().map(|it| it.fields.contains_key("authorization")).collect()
    };
    assert_eq!((has_secret(&first), has_secret(&target)), (vec![true], vec![false, false]));
    assert!(target.requests.lock().unwrap()[1].target.ends_with("?signature=1"));
    // A redirect to itself ends, and so does one to another scheme.
    for location in ["/again", "ftp://127.0.0.1/", "http://[/"] {
        let server = Server::start(Vec::new(), move |_, _| {
            raw("302 Found", &format!("Location: {location}\r\n"))
        });
        let failed = open_url(&client, &server.url, &secret).unwrap_err();
        assert!(matches!(failed, HttpError::Connection(_)) && server.count() <= 11, "{failed}");
    }
}

#[test]
fn a_kept_connection_that_the_server_closed_is_replaced() {
    let server = after_opening(|_, _| Answer::Content(VERSION));
    let file = open(&server).unwrap();
    let server = after_opening(|number, _| match number {
        0 => Answer::Raw(String::new()),
        _ => Answer::Content(VERSION),
    });
    drop(file);
    let file = open(&server).unwrap();
    let patience =
        Patience { stop: &|| false, silence_max: Duration::from_millis(300), until: None };
    let mut bytes = vec![0; 2000];
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    file.read(&mut place, 0, &patience).unwrap();
    assert!(bytes == content()[..2000]);
}

#[test]
fn an_empty_file_has_no_ranges() {
    let server = Server::start(Vec::new(), |_, _| {
        raw("416 Range Not Satisfiable", "Content-Range: bytes */0\r\n")
    });
    let file = open(&server).unwrap();
    assert!(file.is_empty() && file.first().is_empty());
    assert!(read(&file, 0, 0).unwrap().is_empty());
}
