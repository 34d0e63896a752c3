//! Starts `longshore serve --json` and reads its events.
#![allow(dead_code, reason = "each test program uses a part")]

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};

use serde_json::Value;

/// A server that is ready.
pub(crate) struct Serving {
    pub(crate) child: Child,
    events: BufReader<ChildStdout>,
    /// The events until it was ready.
    pub(crate) before: Vec<Value>,
}

impl Serving {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let events = BufReader::new(child.stdout.take().unwrap());
        let mut serving = Self { child, events, before: Vec::new() };
        loop {
            let event = serving.next().expect("the server is ready");
            let is_ready = event["event"] == "ready";
            serving.before.push(event);
            if is_ready {
                return serving;
            }
        }
    }

    /// Waits for the next event of this name, and discards those before it.
    pub(crate) fn wait(&mut self, name: &str) -> Value {
        loop {
            let event = self.next();
            let event = event.unwrap_or_else(|| panic!("no more events, but no {name}"));
            if event["event"] == name {
                return event;
            }
        }
    }

    /// Waits for the next event; returns `None` if the server has ended.
    pub(crate) fn next(&mut self) -> Option<Value> {
        let mut line = String::new();
        let len_bytes = self.events.read_line(&mut line).unwrap();
        (len_bytes > 0).then(|| serde_json::from_str(&line).unwrap())
    }

    /// Ends the server and returns the rest of its events.
    pub(crate) fn stop(mut self) -> Vec<Value> {
        crate::command::signal(&self.child, "TERM");
        let mut rest = String::new();
        self.events.read_to_string(&mut rest).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
        rest.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // The server may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
