//! `longshore-bench report`: the page that the command writes, and its layout in a browser.

mod browser;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use browser::Browser;
use serde_json::{Value, json};

const ENVIRONMENT: &str = r#"{"bench":"load","environment":{"kernel":"<script>k</script>"}}"#;
const FIGURE: &str = r#"{"bench":"load","case":"cold","candidate":"longshore","metric":"speed","unit":"GB/s","median":2.0,"min":1.5,"max":2.5,"mean":2.0,"runs":5,"baseline":"fio","ratio":0.9,"ratio_min":0.8,"ratio_max":1.0,"note":"<script>alert(1)</script>"}"#;

fn report(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_longshore-bench"));
    command.arg("report").args(arguments).current_dir(folder).output().unwrap()
}

/// Makes the page with `arguments`, and returns its text.
fn page(folder: &Path, name: &str, arguments: &[&str]) -> String {
    let output = report(folder, &[arguments, &["--out", name]].concat());
    assert!(output.status.success(), "{}", said(&output));
    fs::read_to_string(folder.join(name)).unwrap()
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

#[test]
fn lines_of_a_file_are_read_and_missing_figures_are_not_run() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mine.jsonl"), format!("{ENVIRONMENT}\n{FIGURE}\n")).unwrap();
    let page = page(folder.path(), "mine.html", &["--from", "mine.jsonl"]);
    assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>\n"));
    assert!(!page.contains("<script"), "a note became markup");
    assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;"));
    assert!(page.contains("no figures of &#39;bounce&#39; were given"));
    assert_eq!(files(folder.path()), ["mine.html", "mine.jsonl"]);
}

#[test]
fn a_damaged_line_is_named_and_the_old_page_is_kept() {
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
fn arguments_that_name_nothing_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, why) in [
        (&["--from", "absent"][..], "there are: access-quiet"),
        (&["--from", "./absent.jsonl"], "./absent.jsonl"),
        (&["--out", "absent/report.html"], "absent/report.html"),
        (&["--out", "."], "'.' is a folder"),
        (&["--out", "/"], "'/' is a folder"),
        (&["--quick"], "--run"),
        (&["--run", "--from", "quiet"], "cannot be used with"),
    ] {
        let output = report(folder.path(), arguments);
        assert!(!output.status.success() && said(&output).contains(why), "{}", said(&output));
    }
    assert!(files(folder.path()).is_empty());
}

/// Checks the layout. Screenshots are kept in the target folder for inspection.
#[test]
fn a_browser_shows_the_whole_page() {
    let folder = tempfile::tempdir().unwrap();
    let kept = page(folder.path(), "kept.html", &[]);
    assert!(kept.len() < 4 << 20, "{} bytes", kept.len());
    // A page with almost no figures.
    fs::write(folder.path().join("one.jsonl"), format!("{ENVIRONMENT}\n{FIGURE}\n")).unwrap();
    page(folder.path(), "sparse.html", &["--from", "one.jsonl"]);
    let Some(mut browser) = Browser::start(folder.path()) else {
        assert!(std::env::var("CI").as_deref() != Ok("true"), "CI has no Chromium");
        eprintln!("SKIPPED: Chromium is not installed");
        return;
    };
    for (page, width, scheme) in [
        ("kept", 1280, "light"),
        ("kept", 1280, "dark"),
        ("kept", 360, "light"),
        ("kept", 360, "dark"),
        ("sparse", 1280, "light"),
        ("sparse", 360, "light"),
    ] {
        let address = format!("file://{}/{page}.html", folder.path().display());
        show(&mut browser, &address, width, scheme);
        let name = format!("report-{page}-{width}-{scheme}.png");
        screenshot(&mut browser, &name);
        browser.value(&format!("window.WIDTH = {width}"));
        let look = browser.value(include_str!("browser/look.js"));
        let wrong = look["wrong"].as_array().unwrap();
        assert!(wrong.is_empty(), "{name}: {wrong:#?}");
        for (what, least) in [("published", 60), ("plots", 15), ("cells", 300)] {
            assert!(look[what].as_u64().unwrap() >= least, "{name}: {look}");
        }
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
    assert_eq!(dark, scheme == "dark", "the colour scheme was not applied");
}

/// Keeps a screenshot of the first screen and a part below it.
fn screenshot(browser: &mut Browser, name: &str) {
    let clip = browser.value("({x: 0, y: 0, width: innerWidth, height: 3000, scale: 1})");
    let asked = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
    let shot = browser.call("Page.captureScreenshot", &asked);
    let shot = shot["data"].as_str().unwrap();
    // A screenshot of a single colour is far smaller.
    assert!(shot.len() > 70_000, "{name}: {} characters", shot.len());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let encoded = path.with_extension("base64");
    fs::write(&encoded, shot).unwrap();
    let decoded = Command::new("base64").arg("-d").arg(&encoded).output().unwrap();
    fs::remove_file(encoded).unwrap();
    assert!(decoded.stdout.starts_with(b"\x89PNG"), "{name}");
    fs::write(path, decoded.stdout).unwrap();
}

/// Returns the browser's events that a page must not cause: errors, and requests for other files.
fn unasked<'b>(browser: &'b Browser, address: &str) -> Vec<&'b Value> {
    let is_unasked = |event: &&Value| match event["method"].as_str() {
        Some("Network.requestWillBeSent") => event["params"]["request"]["url"] != address,
        Some("Log.entryAdded" | "Runtime.consoleAPICalled" | "Runtime.exceptionThrown") => true,
        _ => false,
    };
    browser.events.iter().filter(is_unasked).collect()
}
