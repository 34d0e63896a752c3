//! Loads of files of a server.

mod server;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use longshore_formats::directory::ModelFilter;
use longshore_load::{
    CancelToken, DigestKind, Error, FormatChoice, Loader, Progress, Selection, StreamOptions,
    open_by,
};
use longshore_mem::Granule;
use longshore_remote::Remote;
use server::{Answer, Server};

const TENSOR_BYTES: usize = 5 << 20;

/// Returns a safetensors file with three tensors, and their bytes.
fn model() -> (Vec<u8>, BTreeMap<String, Vec<u8>>) {
    let mut tensors = BTreeMap::new();
    let (mut header, mut data) = (Vec::new(), Vec::new());
    for at in 0..3u32 {
        let bytes: Vec<u8> =
            (0..TENSOR_BYTES as u32 + at).map(|it| ((it * (at + 3)) >> 2) as u8).collect();
        let (start, end) = (data.len(), data.len() + bytes.len());
        let shape = bytes.len();
        header.push(format!(
            "\"t{at}\":{{\"dtype\":\"U8\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}"
        ));
        data.extend_from_slice(&bytes);
        tensors.insert(format!("t{at}"), bytes);
    }
    let header = format!("{{{}}}", header.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header.as_bytes());
    file.extend_from_slice(&data);
    (file, tensors)
}

fn url(server: &Server) -> String {
    server.url.to_string()
}

#[test]
fn a_file_is_loaded_aligned_and_streamed() {
    let (content, tensors) = model();
    let server = Server::start(content.clone(), |_, _| Answer::Content("\"1\""));
    let remote = Remote::new();
    let opened = remote.open(&[url(&server)], FormatChoice::Auto).unwrap();
    // The header is in the first bytes, and nothing else was requested.
    assert!(server.count() <= 3, "{}", server.count());
    let loaded = Loader::new().digest(DigestKind::Sha256).load(&opened.plan).unwrap();
    assert!(loaded.buffer.read().unwrap()[..] == content[..]);
    assert_eq!(loaded.report.by_route.remote, content.len() as u64);
    assert_eq!(loaded.report.by_route.total(), content.len() as u64);

    let opened = remote.open(&[url(&server)], FormatChoice::Auto).unwrap();
    let aligned = opened.align(Granule::SIZE_4K).unwrap();
    let loaded = Loader::new().load(&aligned.plan).unwrap();
    let bytes = loaded.buffer.read().unwrap();
    for placed in aligned.placed_tensors() {
        let range = placed.buffer_range.start as usize..placed.buffer_range.end as usize;
        assert!(bytes[range] == tensors[placed.tensor.name][..]);
    }

    let opened = remote.open(&[url(&server)], FormatChoice::Auto).unwrap();
    let options = StreamOptions::new().memory(16 << 20);
    let stream = Loader::new().stream(opened, &Selection::all(), &options).unwrap();
    let mut found = 0;
    while let Some(tensor) = stream.next_tensor().unwrap() {
        assert!(tensor[..] == tensors[tensor.name()][..]);
        found += 1;
    }
    assert_eq!(found, 3);
}

#[test]
fn progress_includes_the_reads_that_have_not_ended() {
    let (content, _) = model();
    let server = Server::start(content, |_, request| match request.range().len() > 65536 {
        true => Answer::Stall(1_000_000),
        false => Answer::Content("\"1\""),
    });
    let opened = Remote::new().open(&[url(&server)], FormatChoice::Auto).unwrap();
    let (cancel, began, mut seen) = (CancelToken::new(), Instant::now(), 0);
    let observe = |progress: Progress| {
        seen = progress.done_bytes;
        // Two ranges of 8 MiB.
        if seen >= 2_000_000 || began.elapsed() > Duration::from_secs(20) {
            cancel.cancel();
        }
    };
    let failed = Loader::new().cancel(&cancel).observe(observe).load(&opened.plan).unwrap_err();
    assert!(matches!(failed, Error::Cancelled { done_bytes: 0, .. }), "{failed}");
    assert_eq!(seen, 2_000_000);
}

#[test]
fn failures_of_the_server_are_errors_of_the_load() {
    let (content, _) = model();
    let opened = |answer: fn(usize) -> Answer| {
        let server = Server::start(content.clone(), move |number, request| {
            match request.range().start < 65536 && number < 4 {
                true => Answer::Content("\"1\""),
                false => answer(number),
            }
        });
        let opened = Remote::new().open(&[url(&server)], FormatChoice::Auto).unwrap();
        (server, opened)
    };
    let (_server, changed) = opened(|_| Answer::Content("\"2\""));
    let failed = Loader::new().load(&changed.plan).unwrap_err();
    assert!(matches!(failed, Error::Changed { .. }), "{failed}");
    let (_server, refused) =
        opened(|_| Answer::Raw("HTTP/1.1 403 x\r\nContent-Length: 0\r\n\r\n".into()));
    let failed = Loader::new().load(&refused.plan).unwrap_err();
    assert!(matches!(failed, Error::Read { .. }), "{failed}");
    let missing = Server::start(content.clone(), |_, _| {
        Answer::Raw("HTTP/1.1 404 x\r\nContent-Length: 0\r\n\r\n".into())
    });
    let signed = format!("{}?signature=secret", url(&missing));
    let failed = Remote::new().open(&[signed], FormatChoice::Auto).unwrap_err();
    let text = format!("{failed} {failed:?}");
    assert!(
        matches!(&failed, Error::Open { source, .. } if source.kind() == std::io::ErrorKind::NotFound)
    );
    assert!(text.contains("/model.safetensors") && !text.contains("secret"), "{text}");
    let wrong = Remote::new().open(&[Path::new("http:///x")], FormatChoice::Auto).unwrap_err();
    assert!(matches!(wrong, Error::Open { .. }), "{wrong}");
}

#[test]
fn shards_with_special_names_are_requested_by_these_names() {
    let index = r#"{"weight_map":{"weight":"a#b %2e.safetensors"}}"#;
    let len = index.len();
    let head = format!(
        "HTTP/1.1 206 Partial Content\r\nContent-Length: {len}\r\nContent-Range: bytes 0-{}/{len}\r\nETag: \"1\"\r\n\r\n{index}",
        len - 1
    );
    let server = Server::start(server::model(), move |_, request| match request.target.as_str() {
        "/i.safetensors.index.json" => Answer::Raw(head.clone()),
        "/a%23b%20%252e.safetensors" => Answer::Content("\"1\""),
        other => panic!("{other} was requested"),
    });
    let url = server.url.join("/i.safetensors.index.json").unwrap();
    let remote = Remote::new();
    let opened = remote.open(&[url.as_str()], FormatChoice::Auto).unwrap();
    assert_eq!(opened.plan.content_bytes(), server::model().len() as u64);
    // As files, they have their own names.
    let model = remote.model(url.as_str(), &ModelFilter::new()).unwrap().remote().unwrap();
    let names: Vec<_> = model.paths().collect();
    assert_eq!(names, ["a#b %2e.safetensors", "i.safetensors.index.json"]);
    let again = open_by(model.first_files(), FormatChoice::Auto, &model).unwrap();
    assert_eq!(again.plan.content_bytes(), opened.plan.content_bytes());
}
