//! Text into HTML, and tables of a [`Table`].

use super::model::{Cell, Column, Group, Line, Missing, Over, Table};

/// Text that means itself, in an element as well as in a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // HTML has no such characters, and a terminal would obey some of them.
            c if c.is_control() && c != '\n' => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A name of the page's own making, from any text.
pub(super) fn slug(text: &str) -> String {
    let mut slug = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            slug.push(character.to_ascii_lowercase());
        } else if !slug.ends_with('-') {
            slug.push('-');
        }
    }
    slug.trim_matches('-').to_owned()
}

/// Adds markup to a page under construction.
///
/// Only markup: what comes from a file goes through [`escape`] first.
macro_rules! put {
    ($out:expr, $($part:tt)*) => {
        $out.push_str(&format!($($part)*))
    };
}
pub(super) use put;

/// A table, and beneath it why cells have no figure.
pub(super) fn table(out: &mut String, table: &Table) {
    let mut reasons: Vec<&str> = Vec::new();
    let id = escape(&table.id);
    let dense = if table.dense { " dense" } else { "" };
    out.push_str("<div class=\"tabled\">");
    put!(out, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-labelledby=\"{id}-c\">");
    put!(out, "<table id=\"{id}\" class=\"figures{dense}\">");
    put!(out, "<caption id=\"{id}-c\"><span>{}</span></caption>", escape(&table.caption));
    head(out, table);
    for group in &table.groups {
        body(out, table, group, &mut reasons);
    }
    out.push_str("</table></div>");
    if !reasons.is_empty() {
        put!(out, "<ol class=\"reasons\">");
        for (nth, why) in reasons.iter().enumerate() {
            put!(out, "<li id=\"{id}-r{}\">{}</li>", nth + 1, escape(why));
        }
        out.push_str("</ol>");
    }
    out.push_str("</div>");
}

fn head(out: &mut String, table: &Table) {
    let first = escape(&table.head);
    out.push_str("<thead>");
    let over = table.columns.iter().any(|column| column.over != Over::Nothing);
    if over {
        put!(out, "<tr><th scope=\"col\" rowspan=\"2\">{first}</th>");
        let mut at = 0;
        while at < table.columns.len() {
            let column = &table.columns[at];
            let width =
                table.columns[at..].iter().take_while(|next| next.over == column.over).count();
            match column.over {
                Over::Nothing => {
                    for column in &table.columns[at..at + width] {
                        let (class, title) = (class_of(column), escape(&column.title));
                        put!(out, "<th scope=\"col\" rowspan=\"2\" class=\"{class}\">{title}</th>");
                    }
                }
                over => {
                    let (class, words) = (over.class(), over.words());
                    put!(
                        out,
                        "<th scope=\"colgroup\" colspan=\"{width}\" class=\"over {class}\">{words}</th>"
                    );
                }
            }
            at += width;
        }
        out.push_str("</tr><tr>");
        for column in table.columns.iter().filter(|column| column.over != Over::Nothing) {
            column_head(out, column);
        }
    } else {
        put!(out, "<tr><th scope=\"col\">{first}</th>");
        for column in &table.columns {
            column_head(out, column);
        }
    }
    out.push_str("</tr></thead>");
}

fn column_head(out: &mut String, column: &Column) {
    put!(out, "<th scope=\"col\" class=\"{}\">{}</th>", class_of(column), escape(&column.title));
}

fn class_of(column: &Column) -> &'static str {
    if column.is_number { "n" } else { "t" }
}

fn body<'t>(out: &mut String, table: &'t Table, group: &'t Group, reasons: &mut Vec<&'t str>) {
    let decimals: Vec<usize> = (0..table.columns.len()).map(|at| decimals(group, at)).collect();
    out.push_str("<tbody>");
    if let Some(title) = &group.title {
        put!(
            out,
            "<tr class=\"group\"><th scope=\"rowgroup\" colspan=\"{}\"><span>{}</span></th></tr>",
            table.columns.len() + 1,
            escape(title)
        );
    }
    for line in &group.lines {
        row(out, table, line, &decimals, reasons);
    }
    out.push_str("</tbody>");
}

fn row<'t>(
    out: &mut String,
    table: &'t Table,
    line: &'t Line,
    decimals: &[usize],
    reasons: &mut Vec<&'t str>,
) {
    out.push_str(if line.is_ours { "<tr class=\"ours\"" } else { "<tr" });
    if let Some(fields) = &line.published {
        put!(out, " data-published=\"{}\"", escape(fields));
    }
    out.push('>');
    put!(out, "<th scope=\"row\">{}", escape(&line.head));
    if let Some(note) = &line.note {
        put!(out, "<small>{}</small>", escape(note));
    }
    out.push_str("</th>");
    for ((cell, column), decimals) in line.cells.iter().zip(&table.columns).zip(decimals) {
        let class = class_of(column);
        put!(out, "<td class=\"{class} {}\">", column.over.class());
        match cell {
            Cell::Text(text) => out.push_str(&escape(text)),
            Cell::Figure { value, spread } => {
                put!(
                    out,
                    "<span class=\"v\">{}{}</span>",
                    escape(value),
                    padding(value, *decimals)
                );
                if let Some(spread) = spread {
                    put!(out, "<small>{}</small>", escape(spread));
                }
            }
            Cell::Ratios(ratios) => {
                for (value, spread, of) in ratios {
                    put!(out, "<span class=\"r\"><b>{}</b>", escape(value));
                    if let Some(spread) = spread {
                        put!(out, " <small>({})</small>", escape(spread));
                    }
                    put!(out, " of {}</span>", escape(of));
                }
            }
            Cell::State(state) => {
                put!(out, "<span class=\"state {}\">{}</span>", slug(state), escape(state));
            }
            Cell::Without(Missing { word, why }) => {
                let nth = reasons.iter().position(|known| known == why).unwrap_or_else(|| {
                    reasons.push(why);
                    reasons.len() - 1
                }) + 1;
                let (id, word) = (escape(&table.id), escape(word));
                put!(
                    out,
                    "<span class=\"without\">{word} <a href=\"#{id}-r{nth}\">[{nth}]</a></span>"
                );
            }
        }
        out.push_str("</td>");
    }
    out.push_str("</tr>");
}

/// How many decimals the figures of a column have at most, in one group.
fn decimals(group: &Group, column: usize) -> usize {
    let cells = group.lines.iter().filter_map(|line| line.cells.get(column));
    let of = |cell: &Cell| match cell {
        Cell::Figure { value, .. } => value.split_once('.').map_or(0, |(_, rest)| rest.len()),
        _ => 0,
    };
    cells.map(of).max().unwrap_or(0)
}

/// What takes the room of the decimals that a figure lacks, so that points lie below each other.
fn padding(value: &str, decimals: usize) -> String {
    let own = value.split_once('.').map(|(_, rest)| rest.len());
    let missing = match own {
        Some(own) => "0".repeat(decimals.saturating_sub(own)),
        None if decimals > 0 => format!(".{}", "0".repeat(decimals)),
        None => String::new(),
    };
    if missing.is_empty() {
        return missing;
    }
    format!("<i class=\"p\" aria-hidden=\"true\">{missing}</i>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_wrote_cannot_become_markup() {
        let hostile = "</td><script>alert(\"1\")</script> & 'x'\u{1b}[2J";
        let escaped = escape(hostile);
        assert!(!escaped.contains(['<', '>', '"', '\'', '\u{1b}']), "{escaped}");
        assert_eq!(escape("a & b\n"), "a &amp; b\n");
    }

    #[test]
    fn slugs_are_names() {
        assert_eq!(slug("mix, hot, 16 maps"), "mix-hot-16-maps");
        assert_eq!(slug("\"><script>"), "script");
    }

    #[test]
    fn decimal_points_lie_below_each_other() {
        let numbers = |value: &str| Line::of(value, vec![Cell::figure_of(value)]);
        let lines = vec![numbers("1,234"), numbers("0.5"), numbers("12.34")];
        let columns = vec![Column::number("n", Over::Here)];
        let mut out = String::new();
        table(&mut out, &Table::new("t", "T", "what", columns, vec![Group::plain(lines)]));
        for padded in ["1,234<i class=\"p\" aria-hidden=\"true\">.00<", ">0.5<i", ">12.34</span>"] {
            assert!(out.contains(padded), "{padded}: {out}");
        }
    }

    #[test]
    fn each_reason_is_told_once_below_the_table() {
        let without = |head: &str, why: &str| Line::of(head, vec![Cell::without("not run", why)]);
        let lines = vec![without("a", "no <fio>"), without("b", "no <fio>"), without("c", "other")];
        let columns = vec![Column::number("n", Over::Nothing)];
        let mut out = String::new();
        table(&mut out, &Table::new("t", "T", "what", columns, vec![Group::plain(lines)]));
        assert_eq!(out.matches("no &lt;fio&gt;").count(), 1);
        assert_eq!(out.matches("#t-r1").count(), 2);
        assert!(out.contains("id=\"t-r2\">other"));
    }
}
