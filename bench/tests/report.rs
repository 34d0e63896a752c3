//! `longshore-bench report`: the page as a command makes it, and as a browser shows it.

mod browser;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use browser::Browser;
use serde_json::{Value, json};

fn report(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore-bench"));
    command.arg("report").args(arguments).current_dir(folder).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn files(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

const ENVIRONMENT: &str = r#"{"bench":"load","environment":{"kernel":"<script>k</script>"}}"#;
const FIGURE: &str = r#"{"bench":"load","case":"cold","candidate":"longshore","metric":"speed","unit":"GB/s","median":2.0,"min":1.5,"max":2.5,"mean":2.0,"runs":5,"baseline":"fio","ratio":0.9,"ratio_min":0.8,"ratio_max":1.0,"note":"<script>alert(1)</script>"}"#;

#[test]
fn the_kept_runs_become_one_page() {
    let folder = tempfile::tempdir().unwrap();
    let output = report(folder.path(), &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(files(folder.path()), ["report.html"]);
    let page = fs::read_to_string(folder.path().join("report.html")).unwrap();
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    for chapter in ["load", "iov", "pagetable", "access", "bounce", "machines"] {
        assert!(page.contains(&format!("id=\"{chapter}\"")), "{chapter}");
    }
}

#[test]
fn lines_of_a_file_are_read_and_what_they_lack_is_not_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.jsonl"), format!("{ENVIRONMENT}\n{FIGURE}\n")).unwrap();
    let output = report(folder.path(), &["--from", "mine.jsonl", "--out", "mine.html"]);
    assert!(output.status.success(), "{}", said(&output));
    let page = fs::read_to_string(folder.path().join("mine.html")).unwrap();
    assert!(!page.contains("<script"), "a note became markup");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains("no figures of &#39;bounce&#39; were given"));
}

#[test]
fn a_damaged_line_is_named_and_the_page_that_was_there_stays() {
    let folder = tempfile::tempdir().unwrap();
    let damaged = format!("{ENVIRONMENT}\n{FIGURE}\n{}\n", &FIGURE[..60]);
    fs::write(folder.path().join("mine.jsonl"), damaged).unwrap();
    fs::write(folder.path().join("report.html"), "old").unwrap();
    let output = report(folder.path(), &["--from", "./mine.jsonl"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("./mine.jsonl:3: damaged"), "{}", said(&output));
    assert_eq!(files(folder.path()), ["mine.jsonl", "report.html"]);
    assert_eq!(fs::read_to_string(folder.path().join("report.html")).unwrap(), "old");
}

#[test]
fn what_cannot_be_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |arguments: &[&str]| {
        let output = report(folder.path(), arguments);
        assert!(!output.status.success(), "{arguments:?}");
        said(&output)
    };
    assert!(refusal(&["--from", "absent"]).contains("there are: access-quiet"));
    assert!(refusal(&["--from", "./absent.jsonl"]).contains("./absent.jsonl"));
    assert!(refusal(&["--out", "absent/report.html"]).contains("absent/report.html"));
    assert!(refusal(&["--out", "."]).contains("'.'"));
    assert!(refusal(&["--quick"]).contains("--run"));
    assert!(refusal(&["--run", "--from", "quiet"]).contains("cannot be used with"));
    assert!(files(folder.path()).is_empty());
    let help = report(folder.path(), &["--help"]);
    assert!(String::from_utf8_lossy(&help.stdout).contains("Examples:"));
}

/// Screenshots are kept in the target folder, to be looked at.
#[test]
fn a_browser_shows_it_whole() {
    let folder = tempfile::tempdir().unwrap();
    let kept = report(folder.path(), &["--out", "kept.html"]);
    assert!(kept.status.success(), "{}", said(&kept));
    // A page whose figures are nearly all missing.
    fs::write(folder.path().join("one.jsonl"), format!("{ENVIRONMENT}\n{FIGURE}\n")).unwrap();
    let sparse = report(folder.path(), &["--from", "one.jsonl", "--out", "sparse.html"]);
    assert!(sparse.status.success(), "{}", said(&sparse));
    let Some(mut browser) = Browser::start(folder.path()) else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI has no Chromium");
        eprintln!("SKIPPED: no Chromium to look at the page with");
        return;
    };
    let published = published_lines();
    for (page, width, scheme) in [
        ("kept", 1280, "light"),
        ("kept", 1280, "dark"),
        ("kept", 360, "light"),
        ("kept", 360, "dark"),
        ("sparse", 1280, "light"),
        ("sparse", 360, "light"),
    ] {
        let address = format!("file://{}", folder.path().join(format!("{page}.html")).display());
        show(&mut browser, &address, width, scheme);
        let name = format!("report-{page}-{width}-{scheme}.png");
        screenshot(&mut browser, &name);
        browser.value(&format!("window.WIDTH = {width}"));
        let look = browser.value(include_str!("browser/look.js"));
        let wrong = look["wrong"].as_array().unwrap();
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        assert!(look["published"].as_u64().unwrap() >= published, "{name}: {look}");
        assert!(look["plots"].as_u64().unwrap() >= 15, "{name}: {look}");
        assert!(look["cells"].as_u64().unwrap() > 300, "{name}: {look}");
        let heard = unasked(&browser, &address);
        assert!(heard.is_empty(), "{name}: {heard:#?}");
    }
}

fn show(browser: &mut Browser, address: &str, width: u64, scheme: &str) {
    let phone = width < 500;
    let size = json!({"width": width, "height": if phone { 780 } else { 900 },
        "deviceScaleFactor": if phone { 2 } else { 1 }, "mobile": phone});
    browser.call("Emulation.setDeviceMetricsOverride", &size);
    let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
    browser.call("Emulation.setEmulatedMedia", &json!({"features": features}));
    browser.events.clear();
    browser.open(address);
    let dark = browser.value("matchMedia('(prefers-color-scheme: dark)').matches");
    assert_eq!(dark, scheme == "dark", "the scheme is the one asked for");
}

/// Of the first screen and some below it.
fn screenshot(browser: &mut Browser, name: &str) {
    let clip = browser.value("({x: 0, y: 0, width: innerWidth, height: 3000, scale: 1})");
    let asked = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
    let shot = browser.call("Page.captureScreenshot", &asked);
    let png = decoded(shot["data"].as_str().unwrap());
    assert!(png.starts_with(b"\x89PNG"), "{name}");
    // One colour alone takes far less.
    assert!(png.len() > 50_000, "{name}: {} bytes", png.len());
    fs::write(Path::new(env!("CARGO_TARGET_TMPDIR")).join(name), png).unwrap();
}

/// What the browser told that it should not have had to: errors, and requests beyond the page.
fn unasked<'b>(browser: &'b Browser, address: &str) -> Vec<&'b Value> {
    let is_unasked = |event: &&Value| match event["method"].as_str() {
        Some("Network.requestWillBeSent") => event["params"]["request"]["url"] != address,
        Some("Log.entryAdded" | "Runtime.consoleAPICalled" | "Runtime.exceptionThrown") => true,
        _ => false,
    };
    browser.events.iter().filter(is_unasked).collect()
}

/// How many lines the published tables have.
fn published_lines() -> u64 {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("published");
    let lines = |table: fs::DirEntry| {
        let text = fs::read_to_string(table.path()).unwrap();
        text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count() as u64 - 1
    };
    fs::read_dir(folder).unwrap().map(|table| lines(table.unwrap())).sum()
}

/// Base64, as the protocol has it.
fn decoded(text: &str) -> Vec<u8> {
    let value = |byte: u8| match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{byte} is not of base64"),
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for byte in text.bytes().take_while(|byte| *byte != b'=') {
        bits = bits << 6 | u32::from(value(byte));
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}
