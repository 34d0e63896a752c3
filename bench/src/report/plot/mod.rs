//! Plots as SVG: their data, and the code that both forms share.
//!
//! ```text
//!   bars                            curves
//!   label                            │      ○
//!   ████████├──┤       1.23          │   ○   ●
//!   another                          │ ○  ●
//!   █████├─┤           0.97          └──────────
//!   └────┬────┬────                    4K 8K 16K
//! ```
//!
//! A plot is as wide as a phone's page. On a wider page, plots are side by side.

mod bars;
mod curves;
mod scale;

pub(super) use scale::Scale;

use serde::Deserialize;

use super::html::{escape, put};
use super::number;
use super::table::Range;

/// The width of every plot, in its own units: about a phone's pixels.
pub(super) const WIDTH: f64 = 360.0;

#[derive(Debug)]
pub(super) struct Plot {
    pub(super) form: Form,
    pub(super) title: String,
    /// The unit of the axis, and the better direction.
    pub(super) unit: String,
    pub(super) scale: Scale,
    /// A value to compare with, such as one among ratios.
    pub(super) reference: Option<f64>,
    pub(super) items: Vec<Item>,
    /// The meaning of each kind of mark; empty if there is only one kind.
    pub(super) legend: Vec<(Kind, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Form {
    /// Below each other, each with the spread of its value.
    Bars,
    /// By size: a line for each kind of mark, with a mark for each item.
    Curves,
}

#[derive(Debug)]
pub(super) struct Item {
    pub(super) label: String,
    pub(super) marks: Vec<Mark>,
}

#[derive(Debug)]
pub(super) struct Mark {
    pub(super) kind: Kind,
    /// The value, or a word for its absence.
    pub(super) value: Result<Range, &'static str>,
}

/// The owner of a mark. Each kind has its own colour and form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Ours,
    /// Ours, with another method or in another place.
    OursToo,
    Published,
    /// The second of two published series.
    PublishedToo,
    Peer,
}

impl Kind {
    fn class(self) -> &'static str {
        match self {
            Self::Ours => "k-ours",
            Self::OursToo => "k-too",
            Self::Published => "k-pub",
            Self::PublishedToo => "k-pub2",
            Self::Peer => "k-peer",
        }
    }
}

impl Plot {
    fn axis(&self, length: f64) -> scale::Axis {
        let marks = self.items.iter().flat_map(|item| &item.marks);
        let values = marks.filter_map(|mark| mark.value.ok()).flat_map(|(a, b, c)| [a, b, c]);
        scale::Axis::of(self.scale, values.chain(self.reference), length)
    }

    /// Returns everything that the plot shows, as words.
    pub(super) fn description(&self) -> String {
        let of = |item: &Item| {
            let words: Vec<String> = item.marks.iter().map(|mark| self.words(mark)).collect();
            format!("{}: {}", item.label, words.join(", "))
        };
        format!("{}: {}", self.unit, self.items.iter().map(of).collect::<Vec<_>>().join("; "))
    }

    /// Returns the value of a mark in words, with its meaning if there are several kinds.
    fn words(&self, mark: &Mark) -> String {
        let words = match mark.value {
            Err(absent) => absent.to_owned(),
            Ok((value, low, high)) => match number::spread(low, high, number::figure) {
                Some(spread) => format!("{} ({spread})", number::figure(value)),
                None => number::figure(value),
            },
        };
        match self.legend.iter().find(|(kind, _)| *kind == mark.kind) {
            Some((_, stands_for)) if self.legend.len() > 1 => format!("{stands_for} {words}"),
            _ => words,
        }
    }

    /// Opens a group of elements with the mark's words as tooltip, which a screen reader finds, too.
    fn begin_mark(&self, out: &mut String, item: &Item, mark: &Mark) {
        let words = format!("{}: {}", item.label, self.words(mark));
        put!(out, "<g><title>{}</title>", escape(&words));
    }
}

/// Writes a plot with its title above and its legend below.
pub(super) fn figure(out: &mut String, id: &str, plot: &Plot) {
    let (title, id, height) = (
        escape(&plot.title),
        escape(id),
        match plot.form {
            Form::Bars => bars::height(plot),
            Form::Curves => curves::HEIGHT,
        },
    );
    let unit = escape(&plot.unit);
    put!(
        out,
        r#"<figure class="plot"><figcaption>{title}<small>{unit}</small></figcaption><svg id="{id}" viewBox="0 0 {WIDTH} {height:.0}" role="img" aria-labelledby="{id}-t {id}-d">"#
    );
    put!(out, r#"<title id="{id}-t">{title}</title>"#);
    put!(out, r#"<desc id="{id}-d">{}</desc>"#, escape(&plot.description()));
    match plot.form {
        Form::Bars => bars::draw(out, plot),
        Form::Curves => curves::draw(out, plot),
    }
    out.push_str("</svg>");
    if plot.legend.len() > 1 {
        out.push_str(r#"<ul class="legend">"#);
        for (kind, words) in &plot.legend {
            out.push_str(r#"<li><svg viewBox="0 0 16 12" aria-hidden="true" class="swatch">"#);
            match plot.form {
                Form::Bars => bars::bar(out, *kind, (1.0, 2.0), 14.0),
                Form::Curves => {
                    path(out, &format!("line {}", kind.class()), "M0 6H16");
                    curves::marker(out, *kind, 8.0, 6.0);
                }
            }
            put!(out, "</svg>{}</li>", escape(words));
        }
        out.push_str("</ul>");
    }
    out.push_str("</figure>");
}

/// Draws bars without anything around them, `bars_height` high.
pub(super) fn draw_bars(out: &mut String, plot: &Plot) {
    bars::draw(out, plot);
}

pub(super) fn bars_height(plot: &Plot) -> f64 {
    bars::height(plot)
}

fn path(out: &mut String, class: &str, line: &str) {
    put!(out, r#"<path class="{class}" d="{line}"/>"#);
}

fn text(out: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, words: &str) {
    let words = escape(words);
    put!(
        out,
        r#"<text class="{class}" x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{words}</text>"#
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A plot of one series, with an item for each value.
    pub(super) fn plot(form: Form, scale: Scale, values: &[Option<Range>]) -> Plot {
        let item = |(nth, value): (usize, &Option<Range>)| Item {
            label: format!("{nth}K"),
            marks: vec![Mark { kind: Kind::Ours, value: value.ok_or("not run") }],
        };
        Plot {
            form,
            title: "Speed <cold>".to_owned(),
            unit: "GB/s".to_owned(),
            scale,
            reference: None,
            items: values.iter().enumerate().map(item).collect(),
            legend: vec![(Kind::Ours, "a & b".to_owned())],
        }
    }

    /// Returns the drawing, and the values of an attribute in it.
    pub(super) fn drawn(plot: &Plot, attribute: &str) -> (String, Vec<f64>) {
        let mut out = String::new();
        figure(&mut out, "p", plot);
        let marker = format!(" {attribute}=\"");
        let svg = out.split("</svg>").next().unwrap();
        let values = svg.split(&marker).skip(1).map(|rest| rest.split('"').next().unwrap());
        let values = values.map(|value| value.parse().unwrap()).collect();
        (out, values)
    }

    #[test]
    fn a_plot_has_a_description_in_words() {
        let mut plot = plot(Form::Bars, Scale::Linear, &[Some((2.0, 1.0, 2.0)), None]);
        plot.items[0].label = "a&b".to_owned();
        plot.legend.push((Kind::Peer, "c".to_owned()));
        let (out, _) = drawn(&plot, "x");
        assert!(out.contains("<title id=\"p-t\">Speed &lt;cold&gt;</title>"), "{out}");
        let words = "GB/s: a&amp;b: a &amp; b 2.00 (1.00 to 2.00); 1K: a &amp; b not run</desc>";
        assert!(out.contains(words), "{out}");
        assert!(out.contains("aria-labelledby=\"p-t p-d\"") && out.contains("</svg>c</li>"));
    }
}
