//! `longshore ls --published`.

use std::path::Path;
use std::time::SystemTime;

use longshore::formats::printable;
use longshore::load::{PublishedModel, PublishedModels};
use serde_json::{Value, json};

use crate::output::print;
use crate::units::{Decimal, age};

/// Prints the models that are published in a directory.
pub(crate) fn run(directory: &Path, is_json: bool) -> anyhow::Result<()> {
    let models = PublishedModels::open(directory)?;
    let listed = models.list()?;
    if is_json {
        let listed: Vec<Value> = listed.iter().map(as_json).collect();
        let directory = models.path().to_string_lossy();
        let huge = models.gives_huge_pages();
        let object = json!({ "directory": directory, "gives_huge_pages": huge, "models": listed });
        return print(&format!("{object}\n"));
    }
    if listed.is_empty() {
        return print("nothing is published\n");
    }
    let titles = ["bytes", "used", "state", "model"].map(String::from);
    let rows: Vec<[String; 4]> = listed.iter().map(row).collect();
    let width = |column: usize| {
        rows.iter().chain([&titles]).map(|row| row[column].chars().count()).max().unwrap_or(0)
    };
    let (w_bytes, w_used, w_state) = (width(0), width(1), width(2));
    let mut text = String::new();
    for [bytes, used, state, model] in [&titles].into_iter().chain(&rows) {
        text += &format!("{bytes:>w_bytes$}  {used:>w_used$}  {state:<w_state$}  {model}\n");
    }
    print(&text)
}

fn row(model: &PublishedModel) -> [String; 4] {
    let usage = model.usage();
    let mut words = vec![match &usage.is_open {
        Ok(true) => "in use",
        Ok(false) => "unused",
        Err(_) => "use unknown",
    }];
    if model.is_pinned {
        words.push("pinned");
    }
    if !model.is_complete {
        words.push("incomplete");
    }
    let used = match usage.is_open {
        Ok(true) => "now".to_owned(),
        _ => format!("{} ago", age(seconds_since(usage.last_access))),
    };
    [
        Decimal(model.content_bytes as f64).to_string(),
        used,
        words.join(", "),
        printable(&model.directory.to_string_lossy()).into_owned(),
    ]
}

fn as_json(model: &PublishedModel) -> Value {
    let usage = model.usage();
    json!({
        "name": model.name,
        "directory": model.directory.to_string_lossy(),
        "source": model.source.to_string_lossy(),
        "bytes": model.content_bytes,
        "in_use": usage.is_open.ok(),
        "pinned": model.is_pinned,
        "complete": model.is_complete,
        "published_seconds_ago": seconds_since(model.published),
        "accessed_seconds_ago": seconds_since(usage.last_access),
    })
}

fn seconds_since(time: SystemTime) -> u64 {
    SystemTime::now().duration_since(time).map_or(0, |since| since.as_secs())
}
