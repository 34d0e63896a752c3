//! A server whose process has no descriptors left. The limit is that of the process, so there is one test.

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

    let mut others = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        others.push(file);
    }
    // Its descriptor is the last one.
    others.pop();
    let socket: UnixStream = served.connect();
    // Until the server has failed to accept it. A server that has not tried by then is not at fault.
    thread::sleep(Duration::from_millis(300));
    drop(others);
    drop(Frontend::over(socket));
    assert_eq!(served.ended(), "closed by the front-end");
    served.still_serves();
}
