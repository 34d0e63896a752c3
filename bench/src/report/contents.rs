//! The types of `bench/tables.toml`, which describes the page.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::BENCHES;
use super::plot::{Form, Kind, Scale};
use crate::harness::metric::known_name;
use crate::harness::published;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Contents {
    /// The runs of `bench/results/` that are shown by default.
    pub(super) kept: Vec<String>,
    /// The picture at the top of `README.md`, from left to right.
    pub(super) picture: Vec<Panel>,
    #[serde(rename = "chapter")]
    pub(super) chapters: Vec<Chapter>,
}

/// A panel of the picture, with candidates of a case as bars.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Panel {
    pub(super) title: String,
    pub(super) unit: String,
    pub(super) bench: String,
    pub(super) case: String,
    #[serde(deserialize_with = "known_name")]
    pub(super) metric: String,
    /// The candidate that the others are divided by, if the panel shows ratios.
    pub(super) over: Option<String>,
    pub(super) bars: Vec<Bar>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Bar {
    pub(super) candidate: String,
    pub(super) label: String,
    #[serde(default)]
    pub(super) ours: bool,
}

/// One bench.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Chapter {
    pub(super) bench: String,
    pub(super) title: String,
    pub(super) text: String,
    /// The ratios in the summary at the top.
    #[serde(default)]
    pub(super) headlines: Vec<Headline>,
    /// The cases that are shown with a plot.
    #[serde(default)]
    pub(super) featured: Vec<Featured>,
    #[serde(default, rename = "comparison")]
    pub(super) comparisons: Vec<Comparison>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Headline {
    pub(super) value: Value,
    /// The quantity, after the number.
    pub(super) words: String,
    pub(super) better: Better,
    pub(super) published: Option<PublishedValue>,
}

/// The published figure beside a headline.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PublishedValue {
    pub(super) file: String,
    /// The first field of its line.
    pub(super) line: String,
    pub(super) value: Value,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Better {
    More,
    Less,
}

/// A case, shown by one of its metrics.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Featured {
    pub(super) case: String,
    #[serde(deserialize_with = "known_name")]
    pub(super) metric: String,
    pub(super) title: String,
    #[serde(default)]
    pub(super) scale: Scale,
    pub(super) better: Better,
    /// The prefixes of the names of our candidates.
    #[serde(default = "library")]
    pub(super) ours: Vec<String>,
}

/// A published table beside our figures.
///
/// Texts and names may contain the fields of a line (`{size}`), its candidate (`{here}`), and the
/// name and title of its group (`{group}`, `{title}`).
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Comparison {
    /// `bench/published/FILE.csv`.
    pub(super) file: String,
    pub(super) title: String,
    pub(super) text: String,
    /// The comparison whose values, tables and plots this one shares.
    pub(super) like: Option<String>,
    /// The case of values that do not name one.
    pub(super) case: String,
    /// The note below the name of each published line.
    pub(super) note: Option<String>,
    /// The reason why the published table has no figure, if it is a special one.
    pub(super) absent: Option<String>,
    /// The candidate whose lines are highlighted.
    pub(super) ours: Option<String>,
    /// The field that contains the name of a line's group; without it every group has every line.
    pub(super) group_by: Option<String>,
    pub(super) groups: Vec<Group>,
    /// The lines of each group that are not published.
    pub(super) extra: Vec<Extra>,
    /// The candidate of each published line, by its first field.
    pub(super) here: BTreeMap<String, String>,
    /// The reasons of the published lines that have no candidate here.
    pub(super) without: BTreeMap<String, String>,
    pub(super) values: BTreeMap<String, Value>,
    #[serde(rename = "table")]
    pub(super) tables: Vec<Table>,
    #[serde(rename = "plot")]
    pub(super) plots: Vec<Plot>,
    pub(super) remarks: Vec<Remark>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Group {
    pub(super) name: String,
    pub(super) title: Option<String>,
    pub(super) case: Option<String>,
    /// Several candidates for each published line, instead of the one in `Comparison::here`.
    #[serde(default)]
    pub(super) here: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Extra {
    /// The title; by default the candidate's name.
    pub(super) title: Option<String>,
    pub(super) here: Vec<String>,
    /// The reason why it has no published figures.
    pub(super) absent: String,
}

/// The source of a number: one of `fields`, `median` and `ratio`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Value {
    /// Fields of the published line: their median, with the lowest and the highest as its spread.
    pub(super) fields: Vec<String>,
    /// The metric whose median is shown.
    #[serde(deserialize_with = "known_name")]
    pub(super) median: Option<String>,
    /// The metric whose ratio is shown.
    #[serde(deserialize_with = "known_name")]
    pub(super) ratio: Option<String>,
    pub(super) case: Option<String>,
    /// The candidate; by default that of the line.
    pub(super) candidate: Option<String>,
    pub(super) baseline: Option<String>,
    /// The field to divide by.
    pub(super) over: Option<String>,
    /// The line of the same group to divide by.
    pub(super) over_line: Option<String>,
    pub(super) scale: Option<f64>,
    /// `true` to show one minus the value.
    pub(super) complement: bool,
    pub(super) percent: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    pub(super) caption: String,
    /// The title of the first column.
    pub(super) head: String,
    pub(super) columns: Vec<Column>,
}

/// A column of a value, or of a text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Column {
    pub(super) title: String,
    #[serde(default)]
    pub(super) value: String,
    pub(super) text: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Plot {
    pub(super) form: Form,
    /// A plot for each group instead of one for all.
    #[serde(default)]
    pub(super) each_group: bool,
    pub(super) title: String,
    pub(super) unit: String,
    #[serde(default)]
    pub(super) scale: Scale,
    pub(super) reference: Option<f64>,
    pub(super) label: String,
    /// The omitted candidates.
    #[serde(default)]
    pub(super) omit: Vec<String>,
    pub(super) series: Vec<Series>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Series {
    pub(super) name: String,
    pub(super) mark: Kind,
    pub(super) value: String,
}

/// A sentence below the tables, with figures or with a fact of a case's environment. It is left out if
/// one of them is missing.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Remark {
    pub(super) text: String,
    #[serde(default)]
    pub(super) values: BTreeMap<String, Value>,
    #[serde(default)]
    pub(super) case: String,
    pub(super) fact: Option<String>,
}

fn library() -> Vec<String> {
    vec!["longshore".to_owned()]
}

impl Contents {
    /// Reads `bench/tables.toml`.
    ///
    /// # Errors
    /// Returns an error if a key or a metric is unknown, or if a name refers to nothing: a published
    /// file or field, a value, or a comparison.
    pub(super) fn read() -> Result<Self> {
        Self::parse(include_str!("../../tables.toml"))
    }

    fn parse(text: &str) -> Result<Self> {
        let contents: Self = basic_toml::from_str(text).context("bench/tables.toml")?;
        for chapter in &contents.chapters {
            let (bench, known) = (&chapter.bench, BENCHES.map(|bench| bench.name));
            let is_known = known.contains(&bench.as_str());
            ensure!(is_known, "bench/tables.toml: unknown bench '{bench}' (expected {known:?})");
            for comparison in &chapter.comparisons {
                let at = || format!("bench/tables.toml: the comparison '{}'", comparison.file);
                contents.check(comparison).with_context(at)?;
            }
        }
        Ok(contents)
    }

    /// Returns the comparison that has the values, tables and plots of this one.
    pub(super) fn template<'c>(&'c self, comparison: &'c Comparison) -> Result<&'c Comparison> {
        let Some(file) = &comparison.like else { return Ok(comparison) };
        let mut all = self.chapters.iter().flat_map(|chapter| &chapter.comparisons);
        all.find(|it| it.file == *file)
            .with_context(|| format!("like = '{file}' names no comparison"))
    }

    fn check(&self, comparison: &Comparison) -> Result<()> {
        let csv = published::read(&comparison.file)?;
        let is_named = !comparison.title.is_empty() && !comparison.text.is_empty();
        ensure!(is_named, "it has no title or no text");
        let template = self.template(comparison)?;
        for value in template.values.values() {
            value.check(&csv.head, &comparison.groups)?;
        }
        let shown = template.tables.iter().flat_map(|table| &table.columns);
        let shown = shown.filter(|column| column.text.is_none()).map(|column| &column.value);
        let drawn = template.plots.iter().flat_map(|plot| &plot.series);
        for name in shown.chain(drawn.map(|series| &series.value)) {
            ensure!(template.values.contains_key(name), "no value is called '{name}'");
        }
        Ok(())
    }
}

impl Value {
    fn check(&self, head: &[&str], groups: &[Group]) -> Result<()> {
        let sources = usize::from(!self.fields.is_empty())
            + usize::from(self.median.is_some())
            + usize::from(self.ratio.is_some());
        ensure!(
            sources == 1,
            "a value has one of fields, median and ratio, not {sources}: {self:?}"
        );
        for field in self.fields.iter().chain(&self.over) {
            let is_group = field == "{group}"
                && groups.iter().all(|group| head.contains(&group.name.as_str()));
            let is_known = is_group || head.contains(&field.as_str());
            ensure!(is_known, "no field is called '{field}' (there are: {})", head.join(", "));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bench_has_a_chapter_and_every_published_table_a_comparison() {
        let contents = Contents::read().unwrap();
        let benches = contents.chapters.iter().map(|chapter| chapter.bench.as_str());
        assert!(benches.eq(BENCHES.map(|bench| bench.name)));
        let comparisons = || contents.chapters.iter().flat_map(|chapter| &chapter.comparisons);
        let mut files: Vec<&str> = comparisons().map(|it| it.file.as_str()).collect();
        files.sort_unstable();
        assert_eq!(files, published::TABLES.map(|(name, _)| name));
        for comparison in comparisons().filter(|it| !it.here.is_empty()) {
            for line in published::read(&comparison.file).unwrap().lines {
                let (here, without) = (&comparison.here, &comparison.without);
                let is_known = here.contains_key(line[0]) != without.contains_key(line[0]);
                assert!(is_known, "{}: {}", comparison.file, line[0]);
            }
        }
    }

    #[test]
    fn a_mistake_is_an_error_that_names_it() {
        let good = include_str!("../../tables.toml");
        for (from, to, why) in [
            ("head = \"scheme\"", "heading = \"scheme\"", "unknown field `heading`"),
            ("median = \"code\"", "median = \"cod\"", "unknown metric 'cod' (expected one of: "),
            ("metric = \"page_cache_growth\"", "metric = \"pages\"", "unknown metric 'pages'"),
            ("bench = \"iov\"", "bench = \"vio\"", "unknown bench 'vio'"),
            ("file = \"bounce\"\ntitle", "file = \"bouncy\"\ntitle", "'bouncy'"),
            (
                "fields = [\"bytes_per_clock\"]",
                "fields = [\"bytes\"]",
                "no field is called 'bytes'",
            ),
            ("value = \"by_page\"", "value = \"by_sheet\"", "no value is called 'by_sheet'"),
            (
                "like = \"unmap_latency\"",
                "like = \"map_latency\"",
                "'map_latency' names no comparison",
            ),
            ("{ median = \"code\" }", "{ scale = 2 }", "one of fields, median and ratio, not 0"),
        ] {
            assert!(good.contains(from), "{from}");
            let error = Contents::parse(&good.replacen(from, to, 1)).unwrap_err();
            let error = format!("{error:#}");
            assert!(error.starts_with("bench/tables.toml: ") && error.contains(why), "{error}");
        }
    }
}
