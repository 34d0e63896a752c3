//! A small HTTP server that answers as a test tells it.
#![allow(dead_code, reason = "each test program uses a part")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use url::Url;

/// A safetensors file with one tensor.
pub(crate) fn model() -> Vec<u8> {
    let header = br#"{"weight":{"dtype":"U8","shape":[7],"data_offsets":[0,7]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.extend_from_slice(b"weights");
    file
}

/// A request, as far as the tests look at it.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) target: String,
    /// The fields, with names in lower case.
    pub(crate) fields: HashMap<String, String>,
}

impl Request {
    /// The requested range.
    pub(crate) fn range(&self) -> Range<usize> {
        let (first, last) = self.fields["range"]["bytes=".len()..].split_once('-').unwrap();
        first.parse().unwrap()..last.parse::<usize>().unwrap() + 1
    }
}

/// An answer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    /// The range of the content, with an ETag.
    Content(&'static str),
    /// Nothing: the connection is closed.
    Close,
    /// The first bytes of the range; then the connection is closed.
    Cut(usize),
    /// The first bytes of the range; then nothing for a minute.
    Stall(usize),
    /// The first bytes of the range; then one byte after the other, with a pause between them.
    Drip(usize),
    /// These bytes instead of a head.
    Raw(String),
    /// These bytes; then the connection is closed.
    RawAndClose(Vec<u8>),
    /// These bytes; then nothing for a minute.
    RawAndStall(Vec<u8>),
    /// These bytes.
    RawBytes(Vec<u8>),
}

/// A server that runs until the test ends.
pub(crate) struct Server {
    pub(crate) url: Url,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
    pub(crate) connections: Arc<AtomicUsize>,
}

impl Server {
    /// Starts a server of `content`, which asks `answer` for each request, with its number.
    pub(crate) fn start(
        content: Vec<u8>,
        answer: impl Fn(usize, &Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/model.safetensors", listener.local_addr().unwrap());
        let (requests, connections) = (Arc::default(), Arc::new(AtomicUsize::new(0)));
        let server = Self { url: url.parse().unwrap(), requests, connections };
        let (all, count) = (Arc::clone(&server.requests), Arc::clone(&server.connections));
        let (content, answer) = (Arc::new(content), Arc::new(answer));
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                count.fetch_add(1, Ordering::Relaxed);
                let (all, content, answer) =
                    (Arc::clone(&all), Arc::clone(&content), Arc::clone(&answer));
                thread::spawn(move || serve(socket, &content, &all, &*answer));
            }
        });
        server
    }

    pub(crate) fn count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn serve(
    socket: TcpStream,
    content: &[u8],
    all: &Mutex<Vec<Request>>,
    answer: &dyn Fn(usize, &Request) -> Answer,
) {
    let mut out = socket.try_clone().unwrap();
    let mut lines = BufReader::new(socket).lines().map_while(Result::ok);
    while let Some(first) = lines.next() {
        let target = first.split(' ').nth(1).unwrap().to_owned();
        let fields = lines.by_ref().take_while(|line| !line.is_empty()).map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        });
        let request = Request { target, fields: fields.collect() };
        let number = {
            let mut all = all.lock().unwrap();
            all.push(request.clone());
            all.len() - 1
        };
        let mut send = |len: Option<usize>, etag: &str| {
            let range = request.range();
            let range = range.start..range.end.min(content.len());
            let (start, end, total) = (range.start, range.end, content.len());
            let head = format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Length: {}\r\nContent-Range: bytes \
                 {start}-{}/{total}\r\nETag: {etag}\r\n\r\n",
                end - start,
                end - 1
            );
            let body = &content[range];
            let body = &body[..len.unwrap_or(body.len()).min(body.len())];
            out.write_all(head.as_bytes()).and_then(|()| out.write_all(body)).is_ok()
        };
        let goes_on = match answer(number, &request) {
            Answer::Content(etag) => send(None, etag),
            Answer::Close => false,
            Answer::Cut(len) => {
                send(Some(len), "\"1\"");
                false
            }
            Answer::Stall(len) => {
                send(Some(len), "\"1\"");
                thread::sleep(Duration::from_secs(60));
                false
            }
            Answer::Drip(len) => {
                let sent = send(Some(len), "\"1\"");
                let mut rest = content[request.range()].iter().skip(len);
                sent && rest.all(|byte| {
                    thread::sleep(Duration::from_millis(20));
                    out.write_all(&[*byte]).is_ok()
                })
            }
            Answer::Raw(text) => out.write_all(text.as_bytes()).is_ok(),
            Answer::RawBytes(bytes) => out.write_all(&bytes).is_ok(),
            Answer::RawAndClose(bytes) => {
                let _ = out.write_all(&bytes);
                false
            }
            Answer::RawAndStall(bytes) => {
                let _ = out.write_all(&bytes);
                thread::sleep(Duration::from_secs(60));
                false
            }
        };
        if !goes_on {
            return;
        }
    }
}
