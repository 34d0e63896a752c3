//! The published tables, each beside our figures, as `bench/tables.toml` describes them.
//!
//! Each line of a published table is a line here, with our figure or the reason why there is none.

use anyhow::Result;

use super::contents::{self, Chapter, Contents, Group, Remark, Value};
use super::figures::{Figures, median_of, ratio_of};
use super::number;
use super::plot::{Form, Item, Mark, Plot};
use super::table::{self, Cell, Column, Missing, Over, Range, Table};
use crate::harness::published::{self, Csv};

/// A published table with our figures.
#[derive(Debug)]
pub(super) struct Comparison<'c> {
    pub(super) contents: &'c contents::Comparison,
    /// The remarks at the beginning of the published file.
    pub(super) about: String,
    pub(super) plots: Vec<Plot>,
    pub(super) tables: Vec<Table>,
    pub(super) remarks: Vec<String>,
}

type Fields = Vec<&'static str>;
/// Each `{name}` of a text with its value.
type Names = Vec<(String, String)>;

/// Returns the published tables of a chapter.
pub(super) fn of_chapter<'c>(
    contents: &'c Contents,
    chapter: &'c Chapter,
    figures: &Figures,
) -> Result<Vec<Comparison<'c>>> {
    let of = |comparison| {
        let template = contents.template(comparison)?;
        let csv = published::read(&comparison.file)?;
        let scope = Scope { figures, bench: &chapter.bench, comparison, template, csv: &csv };
        let plots = template.plots.iter().flat_map(|plot| scope.plots(plot)).collect();
        let tables = template.tables.iter().enumerate();
        let tables = tables.map(|(nth, table)| scope.table(nth, table)).collect();
        let remarks = comparison.remarks.iter().filter_map(|remark| scope.remark(remark)).collect();
        Ok(Comparison { contents: comparison, about: csv.about, plots, tables, remarks })
    };
    chapter.comparisons.iter().map(of).collect()
}

struct Scope<'a> {
    figures: &'a Figures,
    bench: &'a str,
    comparison: &'a contents::Comparison,
    /// The comparison that has the values, tables and plots.
    template: &'a contents::Comparison,
    csv: &'a Csv,
}

/// A line of a table without its cells.
struct Line<'a> {
    head: String,
    group: Option<&'a Group>,
    /// The fields of the published line; `None` if it is not published.
    fields: Option<&'a Fields>,
    here: &'a str,
    /// The reason why there is no candidate here.
    without: Option<&'a str>,
    /// The reason why there is no published figure.
    absent: &'a str,
}

impl<'a> Scope<'a> {
    fn groups(&self) -> Vec<Option<&'a Group>> {
        let groups = &self.comparison.groups;
        if groups.is_empty() { vec![None] } else { groups.iter().map(Some).collect() }
    }

    fn title(&self, group: Option<&'a Group>) -> &'a str {
        group.map_or(&self.comparison.title, |group| group.title.as_ref().unwrap_or(&group.name))
    }

    fn published(&self, group: Option<&Group>) -> Vec<&'a Fields> {
        let field = self.comparison.group_by.as_ref().zip(group);
        let is_in = |line: &&Fields| {
            field.is_none_or(|(field, group)| self.csv.field(line, field) == Some(&group.name))
        };
        self.csv.lines.iter().filter(is_in).collect()
    }

    fn lines(&self, group: Option<&'a Group>) -> Vec<Line<'a>> {
        let mut lines = Vec::new();
        let comparison = self.comparison;
        let line = |head: String, here, fields| {
            let absent = comparison.absent.as_deref();
            let absent = absent.unwrap_or("the published table has no such figure");
            let without = None;
            Line { head, group, fields, here, without, absent }
        };
        for fields in self.published(group) {
            let several = group.map_or(&[][..], |group| &group.here);
            lines.extend(several.iter().map(|here| line(here.clone(), here, Some(fields))));
            if several.is_empty() {
                let here = comparison.here.get(fields[0]).map_or("", String::as_str);
                let without = comparison.without.get(fields[0]).map(String::as_str);
                lines.push(Line { without, ..line(spaced(fields[0]), here, Some(fields)) });
            }
        }
        for extra in &comparison.extra {
            let head = |here: &String| extra.title.as_ref().unwrap_or(here).clone();
            let of = |here| Line { absent: &extra.absent, ..line(head(here), here, None) };
            lines.extend(extra.here.iter().map(of));
        }
        lines
    }

    fn names(&self, line: &Line<'_>) -> Names {
        let fields = line.fields.into_iter().flat_map(|fields| self.csv.head.iter().zip(fields));
        let mut names: Names =
            fields.map(|(name, field)| ((*name).to_owned(), (*field).to_owned())).collect();
        let group = line.group.map_or("", |group| &group.name);
        names.extend([
            ("here".to_owned(), line.here.to_owned()),
            ("group".to_owned(), group.into()),
        ]);
        names
    }

    fn case<'v>(&'v self, value: &'v Value, group: Option<&'v Group>) -> &'v str {
        let of_group = || group.and_then(|group| group.case.as_ref());
        value.case.as_ref().or_else(of_group).unwrap_or(&self.comparison.case)
    }

    fn value(&self, line: &Line<'_>, value: &Value) -> Result<Range, Missing> {
        let names = self.names(line);
        if !value.fields.is_empty() {
            let published =
                |fields| value.published(self.csv, &self.published(line.group), fields, &names);
            return line
                .fields
                .and_then(published)
                .ok_or_else(|| Missing::not_published(line.absent));
        }
        if let Some(why) = line.without {
            return Err(Missing { word: "no counterpart", why: why.to_owned() });
        }
        let case = fill(self.case(value, line.group), &names);
        let (middle, low, high) = value.measured(self.figures, self.bench, &case, line.here)?;
        let Some(over) = &value.over else { return Ok((middle, low, high)) };
        let over = line.fields.and_then(|fields| self.csv.number(fields, over));
        let over = over.ok_or_else(|| Missing::not_published(line.absent))?;
        Ok((middle / over, low / over, high / over))
    }

    fn table(&self, nth: usize, table: &contents::Table) -> Table {
        let values = &self.template.values;
        let columns = table.columns.iter().map(|column| {
            let over = match &column.text {
                Some(_) => Over::Here,
                None if !values[&column.value].fields.is_empty() => Over::Published,
                None if self.case(&values[&column.value], None).starts_with("guest") => Over::Guest,
                None => Over::Here,
            };
            Column { title: column.title.clone(), over, is_number: column.text.is_none() }
        });
        let cell = |line: &Line<'_>, column: &contents::Column| match (&column.text, line.without) {
            (Some(_), Some(why)) => Cell::without("none", why),
            (Some(text), None) => Cell::text(fill(text, &self.names(line))),
            (None, _) => self.cell(line, &values[&column.value]),
        };
        let shown = |line: Line<'a>| {
            let note = self.comparison.note.as_ref().filter(|_| line.fields.is_some());
            table::Line {
                note: note.map(|note| fill(note, &self.names(&line))),
                is_ours: self.comparison.ours.as_deref() == Some(line.here),
                published: line.fields.map(|fields| fields.join(",")),
                cells: table.columns.iter().map(|column| cell(&line, column)).collect(),
                head: line.head,
            }
        };
        let groups = self.groups().into_iter().map(|group| table::Group {
            title: group.map(|_| self.title(group).to_owned()),
            lines: self.lines(group).into_iter().map(shown).collect(),
        });
        let id = format!("{}-table-{nth}", self.comparison.file.replace('_', "-"));
        let caption = table.caption.replace("{title}", self.title(None));
        Table {
            groups: groups.collect(),
            ..Table::new(id, caption, &table.head, columns.collect(), Vec::new())
        }
    }

    fn cell(&self, line: &Line<'_>, value: &Value) -> Cell {
        let field = line.fields.zip(value.fields.first());
        let field = field.and_then(|(fields, name)| self.csv.field(fields, name));
        let is_bound = value.percent && field.is_some_and(|field| field.starts_with('>'));
        match (is_bound, self.value(line, value)) {
            (true, Ok((least, ..))) => {
                Cell::text(format!("over {}%", number::grouped(least * 100.0, 0)))
            }
            (_, found) => Cell::of(found, value.show()),
        }
    }

    fn plots(&self, plot: &contents::Plot) -> Vec<Plot> {
        let groups = self.groups();
        let apart = groups.chunks(if plot.each_group { 1 } else { groups.len() });
        apart.map(|groups| self.plot(plot, groups)).collect()
    }

    fn plot(&self, plot: &contents::Plot, groups: &[Option<&'a Group>]) -> Plot {
        let lines = groups.iter().flat_map(|group| self.lines(*group));
        let lines = lines.filter(|line| {
            line.without.is_none() && !plot.omit.iter().any(|omitted| omitted == line.here)
        });
        let items = lines.map(|line| {
            let label = match line.fields {
                Some(_) => fill(&plot.label, &self.names(&line)),
                None => line.head.clone(),
            };
            // Below a curve there is room for 4K, but not for 4KB.
            let is_curve = plot.form == Form::Curves;
            let label = if is_curve { label.trim_end_matches('B').to_owned() } else { label };
            let series = plot
                .series
                .iter()
                .map(|series| (series.mark, &self.template.values[&series.value]));
            let series =
                series.filter(|(_, value)| line.fields.is_some() || value.fields.is_empty());
            let mark = |(kind, value)| Mark {
                kind,
                value: self.value(&line, value).map_err(|it| it.word),
            };
            Item { label, marks: series.map(mark).collect() }
        });
        Plot {
            form: plot.form,
            title: plot.title.replace("{title}", self.title(groups[0])),
            unit: plot.unit.clone(),
            scale: plot.scale,
            reference: plot.reference,
            items: items.collect(),
            legend: plot.series.iter().map(|series| (series.mark, series.name.clone())).collect(),
        }
    }

    fn remark(&self, remark: &Remark) -> Option<String> {
        let mut names = Names::new();
        for (name, value) in &remark.values {
            let case = self.case(value, None);
            let (middle, low, high) = value.measured(self.figures, self.bench, case, "").ok()?;
            let show = value.show();
            let all = [("", middle), (" low", low), (" high", high)];
            names.extend(all.map(|(end, number)| (format!("{name}{end}"), show(number))));
        }
        if let Some(fact) = &remark.fact {
            let (_, facts) = self.figures.origin(self.bench, &remark.case)?;
            names.push(("fact".to_owned(), facts.get(fact)?.as_str()?.to_owned()));
        }
        Some(fill(&remark.text, &names))
    }
}

impl Value {
    /// Returns the value of a published line; `lines` are those of its group.
    pub(super) fn published(
        &self,
        csv: &Csv,
        lines: &[&Fields],
        line: &Fields,
        names: &[(String, String)],
    ) -> Option<Range> {
        let range = |line: &Fields| {
            let runs = self.fields.iter().map(|name| csv.number(line, &fill(name, names)));
            let mut runs: Vec<f64> = runs.collect::<Option<_>>()?;
            runs.sort_by(f64::total_cmp);
            Some((*runs.get(runs.len() / 2)?, runs[0], runs[runs.len() - 1]))
        };
        let found = range(line)?;
        let over = match (&self.over, &self.over_line) {
            (Some(field), _) => csv.number(line, field)?,
            (None, Some(name)) => range(lines.iter().find(|line| line[0] == name)?)?.0,
            (None, None) => return Some(self.scaled(found)),
        };
        let quotient = found.0 / over;
        Some(self.scaled((quotient, quotient, quotient)))
    }

    /// Returns the measured value of the value's candidate, or of `here` if the value names none.
    pub(super) fn measured(
        &self,
        figures: &Figures,
        bench: &str,
        case: &str,
        here: &str,
    ) -> Result<Range, Missing> {
        let candidate = self.candidate.as_deref().unwrap_or(here);
        let find = |metric| figures.find(bench, case, candidate, metric, self.baseline.as_deref());
        let range = match (&self.ratio, &self.median) {
            (Some(metric), _) => find(metric).and_then(ratio_of),
            (None, Some(metric)) => find(metric).and_then(median_of),
            (None, None) => Err(Missing::not_run("only the published figure exists")),
        };
        range.map(|range| self.scaled(range))
    }

    fn scaled(&self, (value, low, high): Range) -> Range {
        let scale = self.scale.unwrap_or(1.0);
        let (value, low, high) =
            if self.complement { (1.0 - value, 1.0 - high, 1.0 - low) } else { (value, low, high) };
        (value * scale, low * scale, high * scale)
    }

    fn show(&self) -> fn(f64) -> String {
        if self.percent { number::percent } else { number::figure }
    }
}

fn fill(text: &str, names: &[(String, String)]) -> String {
    let insert = |text: String, (name, value): &(String, String)| {
        text.replace(&format!("{{{name}}}"), value)
    };
    names.iter().fold(text.to_owned(), insert)
}

/// Returns `512KB` as `512 KB`, with a no-break space.
fn spaced(name: &str) -> String {
    match name.find(|c: char| !c.is_ascii_digit()) {
        Some(at) if at > 0 && name.ends_with('B') => {
            format!("{}\u{a0}{}", &name[..at], &name[at..])
        }
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::kept;
    use super::*;

    fn all<'c>(contents: &'c Contents, figures: &Figures) -> Vec<Comparison<'c>> {
        let chapters = contents.chapters.iter();
        chapters.flat_map(|chapter| of_chapter(contents, chapter, figures).unwrap()).collect()
    }

    fn lines<'a>(
        comparison: &'a Comparison<'_>,
    ) -> impl Iterator<Item = (&'a table::Line, &'a Table)> {
        comparison.tables.iter().flat_map(|table| {
            let lines = table.groups.iter().flat_map(|group| &group.lines);
            lines.map(move |line| (line, table))
        })
    }

    fn has_figure_here((line, table): &(&table::Line, &Table)) -> bool {
        let mut cells = line.cells.iter().zip(&table.columns);
        cells.any(|(cell, column)| {
            column.over != Over::Published && matches!(cell, Cell::Figure { .. })
        })
    }

    #[test]
    fn every_published_line_has_a_figure_or_a_reason() {
        let contents = Contents::read().unwrap();
        for figures in [kept(), Figures::default()] {
            for comparison in all(&contents, &figures) {
                for published in published::read(&comparison.contents.file).unwrap().lines {
                    let is_it = |line: &table::Line| line.published == Some(published.join(","));
                    let is_there = lines(&comparison).any(|(line, _)| is_it(line));
                    assert!(is_there, "{}: {published:?}", comparison.contents.file);
                }
                for (line, table) in lines(&comparison) {
                    assert_eq!(line.cells.len(), table.columns.len(), "{}", table.id);
                }
                let Comparison { plots, tables, remarks, .. } = &comparison;
                let shown = format!("{plots:?} {tables:?} {remarks:?}");
                let names = ["{here}", "{group}", "{title}", "{size}", "{block}"];
                assert!(!names.iter().any(|name| shown.contains(name)), "{shown}");
            }
        }
    }

    #[test]
    fn published_lines_have_figures_only_if_they_were_measured() {
        let contents = Contents::read().unwrap();
        for comparison in all(&contents, &kept()) {
            let published = || lines(&comparison).filter(|(line, _)| line.published.is_some());
            // Most of the kernel's functions have no counterpart here.
            let is_code = comparison.contents.file == "iov_code_size";
            let expected = if is_code { 6 } else { published().count() };
            assert_eq!(
                published().filter(has_figure_here).count(),
                expected,
                "{}",
                comparison.contents.file
            );
        }
        for comparison in all(&contents, &Figures::default()) {
            assert!(
                !lines(&comparison).any(|both| has_figure_here(&both)),
                "{}",
                comparison.contents.file
            );
        }
    }

    #[test]
    fn a_published_value_is_the_median_of_its_runs_or_a_quotient() {
        let csv = published::parse("# x\nsize,a,b,c\n1MB,3,1,2\n2MB,4,,2\n").unwrap();
        let lines: Vec<&Fields> = csv.lines.iter().collect();
        let fields = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let value = |value: &Value, line| value.published(&csv, &lines, lines[line], &[]);
        let runs = Value { fields: fields(&["a", "b", "c"]), ..Value::default() };
        assert_eq!(value(&runs, 0), Some((2.0, 1.0, 3.0)));
        assert_eq!(value(&runs, 1), None, "a run is absent");
        let one = Value { fields: fields(&["a"]), ..Value::default() };
        let over = Value { over: Some("c".to_owned()), ..one.clone() };
        assert_eq!(value(&over, 1), Some((2.0, 2.0, 2.0)));
        let over_line = Value { over_line: Some("2MB".to_owned()), ..one.clone() };
        assert_eq!(value(&over_line, 0), Some((0.75, 0.75, 0.75)));
        let left = Value { complement: true, scale: Some(100.0), ..one };
        assert_eq!(value(&left, 0), Some((-200.0, -200.0, -200.0)));
        assert_eq!(spaced("512KB"), "512\u{a0}KB");
        assert_eq!(spaced("4k"), "4k");
    }
}
