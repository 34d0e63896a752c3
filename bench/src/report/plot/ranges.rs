//! Bars below each other, each with the range its value was seen in.

use super::super::html::{escape, put};
use super::super::number;
use super::scale::Axis;
use super::{Kind, Scale, WIDTH};

/// What is left for values, at the right.
const VALUES: f64 = 62.0;
const LENGTH: f64 = WIDTH - VALUES - 8.0;
const LEFT: f64 = 2.0;
const TOP: f64 = 4.0;
const LABEL: f64 = 18.0;
/// Each line of a label after its first.
const LINE: f64 = 15.0;
/// What fits beside the values, of a font's usual width.
const LINE_CHARS_MAX: usize = 50;
const BAR: f64 = 13.0;
const THICK: f64 = 8.0;
const GAP: f64 = 6.0;
const FOOT: f64 = 22.0;

#[derive(Debug)]
pub(in super::super) struct Ranges {
    pub(in super::super) title: String,
    /// What the axis counts, and which end of it is the good one.
    pub(in super::super) unit: String,
    pub(in super::super) scale: Scale,
    /// A value that others are seen against, as one is among ratios.
    pub(in super::super) reference: Option<f64>,
    pub(in super::super) items: Vec<Item>,
    /// What each kind of mark stands for; none where there is one kind only.
    pub(in super::super) legend: Vec<(Kind, String)>,
}

#[derive(Debug)]
pub(in super::super) struct Item {
    pub(in super::super) label: String,
    pub(in super::super) marks: Vec<Mark>,
}

#[derive(Debug)]
pub(in super::super) struct Mark {
    kind: Kind,
    /// The median, the lowest and the highest.
    value: Option<(f64, f64, f64)>,
    /// What is written where there is no value.
    absent: &'static str,
}

impl Mark {
    pub(in super::super) fn new(
        kind: Kind,
        value: Option<(f64, f64, f64)>,
        absent: &'static str,
    ) -> Self {
        Self { kind, value, absent }
    }

    fn words(&self) -> String {
        let Some((value, low, high)) = self.value else { return self.absent.to_owned() };
        match number::spread(low, high, number::figure) {
            Some(spread) => format!("{} ({spread})", number::figure(value)),
            None => number::figure(value),
        }
    }
}

impl Ranges {
    pub(super) fn height(&self) -> f64 {
        let items = self.items.iter().map(|item| {
            let lines = lines(&item.label).len() - 1;
            LABEL + LINE * lines as f64 + BAR * item.marks.len() as f64 + GAP
        });
        TOP + items.sum::<f64>() + FOOT
    }

    pub(super) fn description(&self) -> String {
        let of = |item: &Item| {
            let words: Vec<String> = item.marks.iter().map(|mark| self.mark_words(mark)).collect();
            format!("{}: {}", item.label, words.join(", "))
        };
        format!("{}: {}", self.unit, self.items.iter().map(of).collect::<Vec<_>>().join("; "))
    }

    /// The words of a mark, with what it stands for where there are several.
    fn mark_words(&self, mark: &Mark) -> String {
        match self.legend.iter().find(|(kind, _)| *kind == mark.kind) {
            Some((_, stands_for)) if self.legend.len() > 1 => {
                format!("{stands_for} {}", mark.words())
            }
            _ => mark.words(),
        }
    }

    pub(super) fn draw(&self, out: &mut String) {
        let marks = || self.items.iter().flat_map(|item| &item.marks);
        let values = marks().filter_map(|mark| mark.value).flat_map(|(a, b, c)| [a, b, c]);
        let axis = Axis::of(self.scale, values.chain(self.reference), LENGTH);
        let bottom = self.height() - FOOT;
        for (nth, tick) in axis.ticks.iter().enumerate() {
            let x = LEFT + axis.at(*tick);
            put!(out, "<path class=\"grid\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/>");
            let anchor = if nth == 0 { "start" } else { "middle" };
            let (y, label) = (bottom + 15.0, axis.label(*tick));
            put!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{label}</text>"
            );
        }
        if let Some(reference) = self.reference {
            let x = LEFT + axis.at(reference);
            put!(out, "<path class=\"reference\" d=\"M{x:.1} {TOP}V{bottom:.1}\"/>");
        }
        let mut y = TOP;
        for item in &self.items {
            for (nth, line) in lines(&item.label).iter().enumerate() {
                y += if nth == 0 { LABEL } else { LINE };
                let (at, line) = (y - 6.0, escape(line));
                put!(out, "<text class=\"label\" x=\"{LEFT}\" y=\"{at:.1}\">{line}</text>");
            }
            for mark in &item.marks {
                self.bar(out, &axis, mark, &item.label, y);
                y += BAR;
            }
            y += GAP;
        }
    }

    fn bar(&self, out: &mut String, axis: &Axis, mark: &Mark, label: &str, y: f64) {
        let class = mark.kind.class();
        let words = escape(&format!("{label}: {}", self.mark_words(mark)));
        put!(out, "<g><title>{words}</title>");
        let (right, base) = (WIDTH - 2.0, y + THICK);
        let Some((value, low, high)) = mark.value else {
            put!(
                out,
                "<text class=\"absent\" x=\"{right}\" y=\"{base:.1}\" text-anchor=\"end\">{}</text></g>",
                mark.absent
            );
            return;
        };
        // Ratios grow away from what they are seen against.
        let origin = match (self.scale, self.reference) {
            (Scale::Log, Some(reference)) => axis.at(reference),
            _ => axis.origin(),
        };
        let end = axis.at(value);
        let (from, width) = (LEFT + origin.min(end), (end - origin).abs().max(1.0));
        put!(
            out,
            "<rect class=\"bar {class}\" x=\"{from:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{THICK}\" rx=\"1.5\"/>"
        );
        let (low, high, middle) = (LEFT + axis.at(low), LEFT + axis.at(high), y + THICK / 2.0);
        if high - low > 1.5 {
            let (top, under) = (middle - 3.0, middle + 3.0);
            put!(
                out,
                "<path class=\"halo\" d=\"M{low:.1} {middle:.1}H{high:.1}\"/><path class=\"spread\" d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {top:.1}V{under:.1}M{high:.1} {top:.1}V{under:.1}\"/>"
            );
        }
        let value = number::figure(value);
        put!(
            out,
            "<text class=\"value {class}\" x=\"{right}\" y=\"{base:.1}\" text-anchor=\"end\">{value}</text></g>"
        );
    }
}

/// A label in lines that fit, broken between words. A word that is too long is cut.
fn lines(label: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in label.split_whitespace() {
        let word: String = if word.chars().count() > LINE_CHARS_MAX {
            word.chars().take(LINE_CHARS_MAX - 1).chain(['…']).collect()
        } else {
            word.to_owned()
        };
        let line = lines.last_mut().expect("there is a first line");
        if line.is_empty() {
            *line = word;
        } else if line.chars().count() + 1 + word.chars().count() <= LINE_CHARS_MAX {
            line.push(' ');
            line.push_str(&word);
        } else {
            lines.push(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(values: &[Option<(f64, f64, f64)>]) -> Ranges {
        let item = |value: &Option<(f64, f64, f64)>| Item {
            label: "x".to_owned(),
            marks: vec![Mark::new(Kind::Ours, *value, "not run")],
        };
        Ranges {
            title: "t".to_owned(),
            unit: "GB/s".to_owned(),
            scale: Scale::Linear,
            reference: None,
            items: values.iter().map(item).collect(),
            legend: vec![],
        }
    }

    fn attribute(svg: &str, name: &str) -> Vec<f64> {
        let marker = format!(" {name}=\"");
        svg.split(&marker).skip(1).filter_map(|rest| rest.split('"').next()?.parse().ok()).collect()
    }

    #[test]
    fn bars_are_as_long_as_their_values_and_stay_inside() {
        let plot = ranges(&[Some((1.0, 0.5, 2.0)), Some((2.0, 2.0, 2.0)), Some((4.0, 4.0, 4.0))]);
        let mut out = String::new();
        plot.draw(&mut out);
        let widths = attribute(&out, "width");
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01 && widths[2] <= LENGTH, "{widths:?}");
        assert!(attribute(&out, "x").iter().all(|x| (0.0..=WIDTH).contains(x)));
        assert!(attribute(&out, "y").iter().all(|y| (0.0..=plot.height()).contains(y)));
        assert_eq!(out.matches("class=\"spread\"").count(), 1, "where there is one: {out}");
    }

    #[test]
    fn long_labels_are_broken_between_words() {
        let label = "fused copy+checksum needed to match a separate copy and checksum";
        assert_eq!(
            lines(label),
            ["fused copy+checksum needed to match a separate", "copy and checksum"]
        );
        assert_eq!(lines(""), [""]);
        let cut = lines(&"x".repeat(200));
        assert_eq!((cut.len(), cut[0].chars().count()), (1, LINE_CHARS_MAX));
    }

    #[test]
    fn what_is_absent_is_said() {
        let plot = ranges(&[None]);
        let mut out = String::new();
        plot.draw(&mut out);
        assert!(out.contains(">not run</text>") && !out.contains("<rect"), "{out}");
        assert!(plot.description().ends_with("x: not run"));
    }

    #[test]
    fn bars_do_not_reach_into_the_values() {
        const { assert!(LEFT + LENGTH <= WIDTH - VALUES) };
    }
}
