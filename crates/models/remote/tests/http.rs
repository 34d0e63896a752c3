//! Reads of ranges from a server that fails in every way.

mod server;

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use longshore_mem::VolatileSliceMut;
use longshore_remote::http::{Client, Field, HttpError, HttpFile, Limits, UrlRequests};
use url::Url;

use server::{Answer, Request, Server};

const VERSION: &str = "\"1\"";

fn content() -> Vec<u8> {
    (0..3_000_000u32).map(|at| (at * 7 + at / 251) as u8).collect()
}

fn limits() -> Limits<'static> {
    Limits { control: &|| false, idle_timeout: Duration::from_secs(10), deadline: None }
}

fn open(server: &Server) -> Result<HttpFile, HttpError> {
    open_url(&Arc::new(Client::new()), &server.url, &[])
}

fn open_url(client: &Arc<Client>, url: &Url, secret: &[Field]) -> Result<HttpFile, HttpError> {
    HttpFile::open(client, Arc::new(UrlRequests::new(url.clone(), secret)), &limits())
}

fn read(file: &HttpFile, start: usize, end: usize) -> Result<Vec<u8>, HttpError> {
    let mut bytes = vec![0; end - start];
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    file.read(&mut place, start as u64, &limits()).map(|()| bytes)
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
        let text =
            format!("HTTP/1.1 206 x\r\nETag: {VERSION}\r\n{fields}\r\n\r\n{}", "x".repeat(1000));
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
            "HTTP/1.1 206 x\r\nETag: {VERSION}\r\nContent-Length: 2\r\nContent-Range: bytes \
             0-1/3000000\r\n\r\n{}",
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
    let limits = Limits { control: &stop, idle_timeout: Duration::from_secs(30), deadline: None };
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let began = Instant::now();
            let failed = file.read(&mut place, 0, &limits).unwrap_err();
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
    let limits =
        Limits { control: &|| false, idle_timeout: Duration::from_millis(300), deadline: None };
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    file.read(&mut place, 0, &limits).unwrap();
    assert!(bytes == content()[..2000]);
}

#[test]
fn a_part_that_stalls_before_the_usual_time_is_known_is_replaced() {
    let server = after_opening(|number, _| match number {
        0 => Answer::Stall(1000),
        _ => Answer::Content(VERSION),
    });
    let file = open(&server).unwrap();
    // The server closes the connection after a minute.
    let deadline = Some(Instant::now() + Duration::from_secs(40));
    let limits = Limits { control: &|| false, idle_timeout: Duration::from_secs(600), deadline };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            let mut bytes = vec![0; 2_000_000];
            file.read(&mut VolatileSliceMut::from(bytes.as_mut_slice()), 0, &limits).map(|()| bytes)
        });
        while server.count() < 2 {
            std::thread::yield_now();
        }
        for _ in 0..8 {
            read(&file, 0, 2_000_000).unwrap();
        }
        assert!(first.join().unwrap().unwrap() == content()[..2_000_000]);
    });
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
    let limits =
        Limits { control: &|| false, idle_timeout: Duration::from_millis(300), deadline: None };
    let mut bytes = vec![0; 2000];
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    file.read(&mut place, 0, &limits).unwrap();
    assert!(bytes == content()[..2000]);
}

#[test]
fn connections_that_fell_silent_are_all_replaced() {
    let server = Server::start(content(), |number, _| match number {
        3 => Answer::Raw(String::new()),
        _ => Answer::Content(VERSION),
    });
    let client = Client::new();
    let limits =
        Limits { control: &|| false, idle_timeout: Duration::from_millis(300), deadline: None };
    let range = Field::new("Range", "bytes=0-9").unwrap();
    let get = || client.get(&server.url, std::slice::from_ref(&range), &limits).unwrap();
    let opened = [get(), get(), get()];
    for mut response in opened {
        assert_eq!(response.body(10, &limits).unwrap().len(), 10);
        client.keep(response);
    }
    // The fourth request gets no response on the last of them.
    assert_eq!(get().head.status, 206);
    assert_eq!((server.count(), server.connections.load(Ordering::Relaxed)), (5, 4));
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

#[test]
fn a_url_that_expired_is_asked_for_again() {
    // Each URL of the storage is valid for two requests.
    let storage = Server::start(content(), |number, request| {
        let is_valid = request.target.ends_with(&format!("?signature={}", number / 3));
        if is_valid && number % 3 < 2 { Answer::Content(VERSION) } else { raw("403 Expired", "") }
    });
    let to = storage.url.clone();
    let first = Server::start(content(), move |number, request| {
        // Its own version would be another one.
        match request.fields.contains_key("if-match") {
            true => raw("412 Precondition Failed", ""),
            false => raw("302 Found", &format!("Location: {to}?signature={number}\r\n")),
        }
    });
    let file = open_url(&Arc::new(Client::new()), &first.url, &[]).unwrap();
    for start in [0, 70_000, 140_000, 210_000] {
        assert!(read(&file, start, start + 500).unwrap() == content()[start..start + 500]);
    }
    // One request of five found its URL expired for the second time.
    assert_eq!((first.count(), storage.count()), (3, 7));
}

/// Reads parts of 1.5 MB, of which the one with this number is answered like that.
fn read_parts(slow: usize, answer: fn() -> Answer) -> (Server, Duration) {
    let server = after_opening(move |number, _| match number {
        number if number == slow => answer(),
        _ => Answer::Content(VERSION),
    });
    let file = open(&server).unwrap();
    let began = Instant::now();
    for part in 0..12 {
        let start = part % 2 * 1_500_000;
        assert!(
            read(&file, start, start + 1_500_000).unwrap() == content()[start..start + 1_500_000]
        );
    }
    (server, began.elapsed())
}

#[test]
fn the_rest_of_a_part_that_is_slow_is_requested_again() {
    let answers: [fn() -> Answer; 2] = [|| Answer::Stall(1_000_000), || Answer::Drip(1_000_000)];
    for answer in answers {
        let (server, elapsed) = read_parts(9, answer);
        let requests = server.requests.lock().unwrap();
        let ranges: Vec<_> = requests.iter().map(Request::range).collect();
        assert_eq!(ranges.len(), 1 + 13);
        // The silence of the server is permitted to last 10 seconds.
        assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
        assert!(ranges[11].start >= 2_500_000 && ranges[11].end == 3_000_000, "{:?}", ranges[11]);
    }
}

#[test]
fn a_server_that_sends_some_bytes_now_and_then_does_not_hold_a_read() {
    let server = after_opening(|_, _| Answer::Drip(1000));
    let file = open(&server).unwrap();
    let limits =
        Limits { control: &|| false, idle_timeout: Duration::from_millis(200), deadline: None };
    let mut bytes = vec![0; 2_000_000];
    let mut place = VolatileSliceMut::from(bytes.as_mut_slice());
    let failed = file.read(&mut place, 0, &limits).unwrap_err();
    assert!(matches!(&failed, HttpError::Connection(error) if error.kind() == ErrorKind::TimedOut));
    assert_eq!(server.count(), 1 + 5);
}

#[test]
fn all_calls_end_at_the_time_limit() {
    let end = |server: Server| {
        let deadline = Some(Instant::now() + Duration::from_millis(300));
        let limits = Limits { deadline, ..limits() };
        let client = Arc::new(Client::new());
        let requests = Arc::new(UrlRequests::new(server.url.clone(), &[]));
        let began = Instant::now();
        let ended = HttpFile::open(&client, requests, &limits).and_then(|file| {
            let mut bytes = vec![0; 2000];
            file.read(&mut VolatileSliceMut::from(bytes.as_mut_slice()), 0, &limits)
        });
        assert!(matches!(ended, Err(HttpError::TimeLimit)), "{ended:?}");
        assert!(began.elapsed() < Duration::from_secs(5));
    };
    end(Server::start(content(), |_, _| Answer::Stall(0)));
    end(after_opening(|_, _| Answer::Drip(0)));
    end(Server::start(content(), |_, _| raw("503 Slow Down", "Retry-After: 60\r\n")));
    end(Server::start(content(), |_, _| Answer::Raw("HTTP/1.1 206 x\r\n".to_owned())));
}

#[test]
fn a_file_with_a_weak_version_is_one_with_a_time() {
    let answer = |time: &'static str| {
        move |_: usize, request: &Request| {
            let range = request.range();
            let end = range.end.min(3_000_000);
            Answer::Raw(format!(
                "HTTP/1.1 206 x\r\nContent-Length: {}\r\nContent-Range: bytes {}-{}/3000000\r\nETag: W/\"1\"\r\n\
                 Last-Modified: {time}\r\n\r\n{}",
                end - range.start,
                range.start,
                end - 1,
                "x".repeat(end - range.start)
            ))
        }
    };
    const TIME: &str = "Sat, 28 Nov 2026 10:00:00 GMT";
    let server = Server::start(content(), answer(TIME));
    let file = open(&server).unwrap();
    assert_eq!(read(&file, 5, 9).unwrap(), b"xxxx");
    let fields = server.requests.lock().unwrap()[1].fields.clone();
    assert_eq!(fields["if-unmodified-since"], TIME);
    assert!(!fields.contains_key("if-match"));
    let (before, after) = (answer(TIME), answer("Sat, 28 Nov 2026 10:00:01 GMT"));
    let server = Server::start(content(), move |number, request| match number {
        0 => before(number, request),
        _ => after(number, request),
    });
    let failed = read(&open(&server).unwrap(), 5, 9).unwrap_err();
    assert!(matches!(failed, HttpError::Changed), "{failed}");
}

/// Returns a range as an answer with these fields, and with `more` behind it.
fn ranged(request: &Request, fields: &str, more: &str) -> Answer {
    let range = request.range();
    let (start, end) = (range.start, range.end.min(3_000_000));
    let (len, body) = (end - start, "x".repeat(end - start));
    Answer::Raw(format!(
        "HTTP/1.1 206 x\r\nContent-Length: {len}\r\nContent-Range: bytes {start}-{}/3000000\r\n{fields}\r\n\
         {body}{more}",
        end - 1
    ))
}

#[test]
fn a_version_that_was_told_must_be_told_again() {
    const TIME: &str = "Last-Modified: Sat, 28 Nov 2026 10:00:00 GMT\r\n";
    for (before, after, is_same) in [
        ("ETag: \"1\"\r\n", "", false),
        ("ETag: \"1\"\r\n", "ETag: W/\"1\"\r\n", false),
        ("ETag: W/\"1\"\r\n", "ETag: W/\"2\"\r\n", false),
        (TIME, "", false),
        (TIME, "ETag: \"2\"\r\n", false),
        ("ETag: W/\"1\"\r\n", "ETag: W/\"1\"\r\n", true),
        (TIME, TIME, true),
        ("", "", true),
    ] {
        let server = Server::start(content(), move |number, request| {
            ranged(request, if number == 0 { before } else { after }, "")
        });
        let read = read(&open(&server).unwrap(), 5, 9);
        match is_same {
            true => assert_eq!(read.unwrap(), b"xxxx"),
            false => assert!(matches!(read, Err(HttpError::Changed)), "{before} {after}: {read:?}"),
        }
    }
}

#[test]
fn bytes_behind_a_response_are_not_those_of_the_next_one() {
    let forged =
        "HTTP/1.1 206 x\r\nContent-Length: 4\r\nContent-Range: bytes 5-8/3000000\r\n\r\nfake";
    let server = Server::start(content(), move |number, request| {
        ranged(request, "", if number == 0 { forged } else { "" })
    });
    let file = open(&server).unwrap();
    // Until the forged response has arrived.
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(read(&file, 5, 9).unwrap(), b"xxxx");
    assert_eq!(server.connections.load(Ordering::Relaxed), 2);
}

#[test]
fn a_server_that_sends_only_small_parts_does_not_hold_a_read() {
    let server = after_opening(|_, request| {
        let start = request.range().start;
        Answer::Raw(format!(
            "HTTP/1.1 206 x\r\nETag: {VERSION}\r\nContent-Length: 1\r\nContent-Range: bytes \
             {start}-{start}/3000000\r\n\r\nx"
        ))
    });
    let failed = read(&open(&server).unwrap(), 0, 2_000_000).unwrap_err();
    assert!(failed.to_string().contains("small parts"), "{failed}");
    assert_eq!(server.count(), 1 + 17);
}
