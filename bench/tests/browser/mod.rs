//! A headless Chromium, controlled over two pipes by its DevTools protocol: JSON messages that end with
//! a zero byte. <https://chromedevtools.github.io/devtools-protocol/>

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// The names of the program in Debian and elsewhere.
const PROGRAMS: [&str; 3] = ["chromium", "chromium-browser", "google-chrome"];
/// The maximum wait for an answer, even on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser with one page.
pub(crate) struct Browser {
    child: Child,
    to: Option<ChildStdin>,
    from: Receiver<Value>,
    page: Option<String>,
    sent: u64,
    /// The events that the browser sent.
    pub(crate) events: Vec<Value>,
}

impl Browser {
    /// Starts a browser whose profile and log are in `folder`; `None` if none is installed.
    pub(crate) fn start(folder: &Path) -> Option<Self> {
        let there = |program: &&&str| {
            let version = Command::new(program).arg("--version").output();
            version.is_ok_and(|version| version.status.success())
        };
        let program = PROGRAMS.iter().find(there)?;
        // The protocol uses descriptors 3 and 4, which a shell can make from 0 and 1.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$@\" 3<&0 4>&1 </dev/null >/dev/null", "sh", program])
            .args(["--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu"])
            .args(["--no-first-run", "--disable-background-networking", "--disable-quic"])
            .args(["--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"])
            .args(["--hide-scrollbars", "--mute-audio", "--disable-extensions"])
            .arg(format!("--user-data-dir={}", folder.join("profile").display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(File::create(folder.join("chromium.log")).unwrap())
            .spawn()
            .unwrap();
        let (to, out) = (child.stdin.take(), child.stdout.take().unwrap());
        let (sender, from) = channel();
        std::thread::spawn(move || {
            let mut out = BufReader::new(out);
            let mut message = Vec::new();
            while out.read_until(0, &mut message).is_ok_and(|len| len > 0) {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else { break };
                message.clear();
                if sender.send(value).is_err() {
                    break;
                }
            }
        });
        let mut browser = Self { child, to, from, page: None, sent: 0, events: Vec::new() };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", &attach);
        browser.page = Some(session["sessionId"].as_str().unwrap().to_owned());
        for part in ["Page", "Network", "Log", "Runtime"] {
            browser.call(&format!("{part}.enable"), &json!({}));
        }
        Some(browser)
    }

    /// Calls a method and waits for its answer.
    pub(crate) fn call(&mut self, method: &str, parameters: &Value) -> Value {
        self.sent += 1;
        let id = self.sent;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(page) = &self.page {
            message["sessionId"] = json!(page);
        }
        let to = self.to.as_mut().unwrap();
        to.write_all(message.to_string().as_bytes()).unwrap();
        to.write_all(&[0]).unwrap();
        to.flush().unwrap();
        let answer = self.wait(|message| message["id"] == id);
        assert!(answer.get("error").is_none(), "{method}: {}", answer["error"]);
        answer["result"].clone()
    }

    /// Opens a page and waits until it is complete.
    pub(crate) fn open(&mut self, address: &str) {
        let opened = self.call("Page.navigate", &json!({"url": address}));
        assert!(opened.get("errorText").is_none(), "{opened}");
        if !self.events.iter().any(|event| event["method"] == "Page.loadEventFired") {
            self.wait(|message| message["method"] == "Page.loadEventFired");
        }
    }

    /// Returns the value of a JavaScript expression.
    pub(crate) fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let answer = self.call("Runtime.evaluate", &asked);
        assert!(answer.get("exceptionDetails").is_none(), "{answer}");
        answer["result"]["value"].clone()
    }

    fn wait(&mut self, is_it: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.from.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(message) if is_it(&message) => return message,
                Ok(message) => self.events.push(message),
                Err(RecvTimeoutError::Timeout) => panic!("the browser does not answer"),
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the browser has ended: {:?}", self.child.wait());
                }
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // Closing the pipe ends the browser, and the end of its first process ends the others.
        self.to = None;
        let until = Instant::now() + Duration::from_secs(5);
        while Instant::now() < until {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
