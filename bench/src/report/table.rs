//! Tables with a name for each line in the first column, and their HTML.

use super::html::{escape, put, slug};
use super::number;

/// A median or ratio with its lowest and highest value.
pub(super) type Range = (f64, f64, f64);

/// A missing figure: the word to show in its place, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Missing {
    pub(super) word: &'static str,
    pub(super) why: String,
}

#[derive(Debug)]
pub(super) struct Table {
    /// The identifier of the element on the page.
    pub(super) id: String,
    pub(super) caption: String,
    /// The title of the first column.
    pub(super) head: String,
    pub(super) columns: Vec<Column>,
    pub(super) groups: Vec<Group>,
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: String,
    pub(super) over: Over,
    pub(super) is_number: bool,
}

/// The origin of a column's figures. Either all columns of a table have an origin, or none has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Nothing,
    Published,
    Here,
    /// Here, in a guest.
    Guest,
}

/// A group of lines.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) title: Option<String>,
    pub(super) lines: Vec<Line>,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) head: String,
    /// A note in small print below the head.
    pub(super) note: Option<String>,
    pub(super) is_ours: bool,
    /// The line of a published table to which this line belongs.
    pub(super) published: Option<String>,
    /// One for each column.
    pub(super) cells: Vec<Cell>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Text(String),
    Figure {
        value: String,
        spread: Option<String>,
    },
    /// Ratios, each with the name of its baseline.
    Ratios(Vec<(Range, String)>),
    /// A word with a colour of its own: reached, missed, not run.
    State(&'static str),
    /// A missing figure, with the reason below the table.
    Without(Missing),
}

impl Table {
    /// Creates a table with one group and no group title.
    pub(super) fn new(
        id: impl Into<String>,
        caption: impl Into<String>,
        head: impl Into<String>,
        columns: Vec<Column>,
        lines: Vec<Line>,
    ) -> Self {
        let (id, caption, head) = (id.into(), caption.into(), head.into());
        Self { id, caption, head, columns, groups: vec![Group { title: None, lines }] }
    }
}

impl Column {
    pub(super) fn number(title: &str) -> Self {
        Self { is_number: true, ..Self::text(title) }
    }

    pub(super) fn text(title: &str) -> Self {
        Self { title: title.to_owned(), over: Over::Nothing, is_number: false }
    }

    fn class(&self) -> &'static str {
        if self.is_number { "n" } else { "t" }
    }
}

impl Over {
    fn class_and_words(self) -> (&'static str, &'static str) {
        match self {
            Self::Nothing => ("", ""),
            Self::Published => ("pub", "published"),
            Self::Here => ("here", "here"),
            Self::Guest => ("guest", "here, in a guest"),
        }
    }
}

impl Line {
    pub(super) fn of(head: &str, cells: Vec<Cell>) -> Self {
        Self { head: head.to_owned(), note: None, is_ours: false, published: None, cells }
    }
}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn figure(value: impl Into<String>) -> Self {
        Self::Figure { value: value.into(), spread: None }
    }

    pub(super) fn of(found: Result<Range, Missing>, show: fn(f64) -> String) -> Self {
        match found {
            Ok((value, low, high)) => {
                Self::Figure { value: show(value), spread: number::spread(low, high, show) }
            }
            Err(missing) => Self::Without(missing),
        }
    }

    pub(super) fn without(word: &'static str, why: &str) -> Self {
        Self::Without(Missing { word, why: why.to_owned() })
    }
}

impl Missing {
    pub(super) fn not_run(why: impl Into<String>) -> Self {
        Self { word: "not run", why: why.into() }
    }

    pub(super) fn not_published(why: &str) -> Self {
        Self { word: "not published", why: why.to_owned() }
    }
}

/// Writes a table, and below it the reasons of missing figures.
pub(super) fn write(out: &mut String, table: &Table) {
    let mut reasons: Vec<&str> = Vec::new();
    let (id, caption) = (escape(&table.id), escape(&table.caption));
    put!(
        out,
        r#"<div class="tabled"><div class="scroll" tabindex="0" role="region" aria-labelledby="{id}-c"><table id="{id}" class="figures"><caption id="{id}-c"><span>{caption}</span></caption>"#
    );
    write_head(out, table);
    for group in &table.groups {
        out.push_str("<tbody>");
        if let Some(title) = &group.title {
            let (width, title) = (table.columns.len() + 1, escape(title));
            put!(out, r#"<tr class="group"><th scope="rowgroup" colspan="{width}">"#);
            put!(out, "<span>{title}</span></th></tr>");
        }
        let decimals: Vec<usize> =
            (0..table.columns.len()).map(|column| decimals(group, column)).collect();
        for line in &group.lines {
            write_line(out, table, line, &decimals, &mut reasons);
        }
        out.push_str("</tbody>");
    }
    out.push_str("</table></div>");
    if !reasons.is_empty() {
        out.push_str(r#"<ol class="reasons">"#);
        for (nth, why) in reasons.iter().enumerate() {
            put!(out, r#"<li id="{id}-r{}">{}</li>"#, nth + 1, escape(why));
        }
        out.push_str("</ol>");
    }
    out.push_str("</div>");
}

fn write_head(out: &mut String, table: &Table) {
    let spans: Vec<&[Column]> = table.columns.chunk_by(|a, b| a.over == b.over).collect();
    let has_spans = table.columns.iter().any(|column| column.over != Over::Nothing);
    let rows = if has_spans { 2 } else { 1 };
    let head = escape(&table.head);
    put!(out, r#"<thead><tr><th scope="col" rowspan="{rows}">{head}</th>"#);
    if has_spans {
        for span in spans {
            let (width, (class, words)) = (span.len(), span[0].over.class_and_words());
            put!(
                out,
                r#"<th scope="colgroup" colspan="{width}" class="over {class}">{words}</th>"#
            );
        }
        out.push_str("</tr><tr>");
    }
    for column in &table.columns {
        let (class, title) = (column.class(), escape(&column.title));
        put!(out, r#"<th scope="col" class="{class}">{title}</th>"#);
    }
    out.push_str("</tr></thead>");
}

fn write_line<'t>(
    out: &mut String,
    table: &'t Table,
    line: &'t Line,
    decimals: &[usize],
    reasons: &mut Vec<&'t str>,
) {
    let published = line.published.as_ref();
    let published = published.map(|line| format!(r#" data-published="{}""#, escape(line)));
    let ours = if line.is_ours { r#" class="ours""# } else { "" };
    let head = escape(&line.head);
    put!(out, r#"<tr{ours}{}><th scope="row">{head}"#, published.unwrap_or_default());
    if let Some(note) = &line.note {
        put!(out, "<small>{}</small>", escape(note));
    }
    out.push_str("</th>");
    for ((cell, column), decimals) in line.cells.iter().zip(&table.columns).zip(decimals) {
        put!(out, r#"<td class="{} {}">"#, column.class(), column.over.class_and_words().0);
        match cell {
            Cell::Text(text) => out.push_str(&escape(text)),
            Cell::Figure { value, spread } => {
                put!(
                    out,
                    r#"<span class="v">{}{}</span>"#,
                    escape(value),
                    padding(value, *decimals)
                );
                if let Some(spread) = spread {
                    put!(out, "<small>{}</small>", escape(spread));
                }
            }
            Cell::Ratios(ratios) => {
                for &((value, low, high), ref of) in ratios {
                    let (value, of) = (number::figure(value), escape(of));
                    let spread = number::spread(low, high, number::figure);
                    let spread =
                        spread.map_or_else(String::new, |it| format!(" <small>({it})</small>"));
                    put!(out, r#"<span class="r"><b>{value}</b>{spread} of {of}</span>"#);
                }
            }
            Cell::State(state) => {
                put!(out, r#"<span class="state {}">{state}</span>"#, slug(state));
            }
            Cell::Without(Missing { word, why }) => {
                let known = reasons.iter().position(|known| known == why);
                let nth = known.unwrap_or(reasons.len());
                if known.is_none() {
                    reasons.push(why);
                }
                let (id, nth) = (escape(&table.id), nth + 1);
                put!(
                    out,
                    r##"<span class="without">{word} <a href="#{id}-r{nth}">[{nth}]</a></span>"##
                );
            }
        }
        out.push_str("</td>");
    }
    out.push_str("</tr>");
}

/// The largest number of decimals in a column of a group.
fn decimals(group: &Group, column: usize) -> usize {
    let of = |line: &Line| match line.cells.get(column) {
        Some(Cell::Figure { value, .. }) => value.split_once('.').map_or(0, |(_, rest)| rest.len()),
        _ => 0,
    };
    group.lines.iter().map(of).max().unwrap_or(0)
}

/// Pads a figure with invisible decimals, so that decimal points are aligned.
fn padding(value: &str, decimals: usize) -> String {
    let missing = match value.split_once('.') {
        Some((_, own)) => "0".repeat(decimals.saturating_sub(own.len())),
        None if decimals > 0 => format!(".{}", "0".repeat(decimals)),
        None => String::new(),
    };
    if missing.is_empty() {
        return missing;
    }
    format!(r#"<i class="p" aria-hidden="true">{missing}</i>"#)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(cells: Vec<Cell>) -> String {
        let lines = cells.into_iter().map(|cell| Line::of("line", vec![cell])).collect();
        let mut out = String::new();
        write(&mut out, &Table::new("t", "T", "what", vec![Column::number("n")], lines));
        out
    }

    #[test]
    fn decimal_points_are_aligned() {
        let out = written(["1,234", "0.5", "12.34"].map(Cell::figure).into());
        for padded in ["1,234<i class=\"p\" aria-hidden=\"true\">.00<", ">0.5<i", ">12.34</span>"] {
            assert!(out.contains(padded), "{padded}: {out}");
        }
    }

    #[test]
    fn each_reason_is_given_once_below_the_table() {
        let reasons = ["no <fio>", "no <fio>", "other"];
        let out = written(reasons.map(|why| Cell::without("not run", why)).into());
        assert_eq!(out.matches("no &lt;fio&gt;").count(), 1);
        assert_eq!(out.matches("#t-r1").count(), 2);
        assert!(out.contains("id=\"t-r2\">other"));
    }
}
