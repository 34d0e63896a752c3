//! A server whose process has no file descriptors left. The limit belongs to the process, so this is the
//! only test here.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use frontend::{Frontend, Served};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[expect(dead_code, reason = "the other tests use more of it")]
#[path = "vhost/frontend.rs"]
mod frontend;

#[test]
fn front_ends_wait_while_no_descriptor_is_left() {
    let maximum = getrlimit(Resource::Nofile).maximum.map_or(1024, |maximum| maximum.min(1024));
    if maximum < 512 {
        println!("SKIPPED: this process may have only {maximum} descriptors");
        return;
    }
    let limit = Rlimit { current: Some(maximum / 2), maximum: Some(maximum) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let served = Served::new();
    assert_eq!(getrlimit(Resource::Nofile).current, Some(maximum), "a server raises the limit");

    // The server has opened its own descriptors when it serves.
    served.still_serves();
    let mut others = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        others.push(file);
    }
    // The client's socket takes the last descriptor.
    others.pop();
    let socket: UnixStream = served.connect();
    // The server fails to accept it meanwhile. If the server is too slow to try, the test passes, too.
    thread::sleep(Duration::from_millis(300));
    drop(others);
    drop(Frontend::over(socket));
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}
