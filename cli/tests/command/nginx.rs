//! Real HTTP servers for tests: nginx, with TLS by a private authority.
#![allow(dead_code, reason = "each test program uses a part")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use super::command::{LONGSHORE, Outcome, longshore, run};

/// An nginx, which ends with the test.
pub(crate) struct Nginx {
    process: Child,
    pub(crate) dir: tempfile::TempDir,
    pub(crate) plain: u16,
    pub(crate) tls: u16,
    pub(crate) mutual: u16,
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a port that is free now.
pub(crate) fn port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Runs openssl in the directory.
fn openssl(dir: &Path, arguments: &str) {
    let mut command = Command::new("openssl");
    command.args(arguments.split(' ')).current_dir(dir).stdout(Stdio::null()).stderr(Stdio::null());
    assert!(command.status().unwrap().success(), "openssl {arguments}");
}

impl Nginx {
    /// Starts an nginx with the directory `root` of the returned one. Returns `None` if it is not installed.
    pub(crate) fn start() -> Option<Self> {
        let is_there = |program: &str| {
            Command::new(program)
                .arg("-v")
                .stderr(Stdio::null())
                .stdout(Stdio::null())
                .status()
                .is_ok()
        };
        let nginx = ["/usr/sbin/nginx", "nginx"].into_iter().find(|it| is_there(it));
        let Some(nginx) = nginx.filter(|_| is_there("openssl")) else {
            assert!(std::env::var_os("CI").is_none(), "nginx and openssl are not installed");
            println!("SKIPPED: nginx and openssl are not installed");
            return None;
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        fs::create_dir(path.join("root")).unwrap();
        let subject = |name: &str| format!("-newkey rsa:2048 -nodes -subj /CN={name}");
        openssl(path, &format!("req -x509 -days 2 -keyout ca.key -out ca.pem {}", subject("ca")));
        openssl(path, &format!("req -keyout key.pem -out request.pem {}", subject("localhost")));
        fs::write(path.join("names"), "subjectAltName=DNS:localhost").unwrap();
        let sign = "x509 -req -days 2 -CA ca.pem -CAkey ca.key -CAcreateserial -in request.pem";
        openssl(path, &format!("{sign} -extfile names -out leaf.pem"));
        let [leaf, key] =
            ["leaf.pem", "key.pem"].map(|it| fs::read_to_string(path.join(it)).unwrap());
        fs::write(path.join("client.pem"), leaf + &key).unwrap();
        let (plain, tls, mutual) = (port(), port(), port());
        let shown = path.display();
        let certificates =
            format!("ssl_certificate {shown}/leaf.pem; ssl_certificate_key {shown}/key.pem;");
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|it| format!("{it}_temp_path {shown}/{it};"))
            .collect();
        let config = format!(
            "daemon off; master_process off; pid {shown}/pid; error_log {shown}/errors; \
             events {{ worker_connections 256; }} \
             http {{ {temporary} root {shown}/root; \
             log_format sent '$request_method $uri $bytes_sent $http_authorization'; \
             access_log {shown}/access sent; \
             server {{ listen 127.0.0.1:{plain}; \
                 location /whole/ {{ alias {shown}/root/; max_ranges 0; }} \
                 location /private/ {{ return 403; }} }} \
             server {{ listen 127.0.0.1:{tls} ssl; {certificates} }} \
             server {{ listen 127.0.0.1:{mutual} ssl; {certificates} \
                 ssl_client_certificate {shown}/ca.pem; ssl_verify_client on; }} }}"
        );
        fs::write(path.join("config"), config).unwrap();
        let mut command = Command::new(nginx);
        command.arg("-c").arg(path.join("config")).stderr(Stdio::null());
        let process = command.spawn().unwrap();
        let started = Self { process, dir, plain, tls, mutual };
        for port in [plain, tls, mutual] {
            let connects = || TcpStream::connect(("127.0.0.1", port)).is_ok();
            let waits = |_: &i32| {
                thread::sleep(Duration::from_millis(50));
                true
            };
            assert!((0..200).take_while(waits).any(|_| connects()), "nginx does not listen");
        }
        Some(started)
    }

    /// Writes a model of this size, and returns its content.
    pub(crate) fn make_model(&self, size: &str, name: &str) -> Vec<u8> {
        let path = self.dir.path().join("root").join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert_eq!(longshore(&["make-model", "--size", size, path.to_str().unwrap()]).code, 0);
        fs::read(path).unwrap()
    }

    /// Replaces a model by another one, which has another version.
    pub(crate) fn make_model_again(&self, size: &str, name: &str) -> Vec<u8> {
        fs::remove_file(self.dir.path().join("root").join(name)).unwrap();
        self.make_model(size, name)
    }

    /// Returns the lines of the access log: the method, the path, the bytes sent, and the authorization.
    pub(crate) fn log(&self) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.dir.path().join("access")).unwrap();
        text.lines().map(|line| line.splitn(4, ' ').map(str::to_owned).collect()).collect()
    }

    pub(crate) fn file(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }
}

/// Makes a command without the settings of the machine.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(LONGSHORE);
    command.args(arguments);
    for name in [
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "AWS_CA_BUNDLE",
        "AWS_PROFILE",
        "http_proxy",
        "https_proxy",
    ] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command
}

pub(crate) fn with(arguments: &[&str], variables: &[(&str, &str)]) -> Outcome {
    run(command(arguments).envs(variables.iter().copied()))
}
