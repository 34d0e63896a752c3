//! Bars below each other, each with the spread of its value.

use super::super::html::put;
use super::super::number;
use super::scale::Axis;
use super::{Kind, Mark, Plot, Scale, WIDTH, path, text};

/// The width of the values, at the right.
const VALUES: f64 = 62.0;
const LENGTH: f64 = WIDTH - VALUES - 8.0;
const LEFT: f64 = 2.0;
const TOP: f64 = 4.0;
const LABEL: f64 = 18.0;
/// The height of each line of a label after its first.
const LINE: f64 = 15.0;
/// The characters that fit on a line of a label, in a font of usual width.
const LINE_CHARS_MAX: usize = 50;
const BAR: f64 = 13.0;
const THICK: f64 = 8.0;
const GAP: f64 = 6.0;
const FOOT: f64 = 22.0;

pub(super) fn height(plot: &Plot) -> f64 {
    let items = plot.items.iter().map(|item| {
        let lines = lines(&item.label).len() - 1;
        LABEL + LINE * lines as f64 + BAR * item.marks.len() as f64 + GAP
    });
    TOP + items.sum::<f64>() + FOOT
}

pub(super) fn draw(out: &mut String, plot: &Plot) {
    let axis = plot.axis(LENGTH);
    let bottom = height(plot) - FOOT;
    let upright = |x: f64| format!("M{x:.1} {TOP}V{bottom:.1}");
    for (nth, tick) in axis.ticks.iter().enumerate() {
        let x = LEFT + axis.at(*tick);
        path(out, "grid", &upright(x));
        let anchor = if nth == 0 { "start" } else { "middle" };
        text(out, "tick", (x, bottom + 15.0), anchor, &axis.label(*tick));
    }
    if let Some(reference) = plot.reference {
        path(out, "reference", &upright(LEFT + axis.at(reference)));
    }
    let mut y = TOP;
    for item in &plot.items {
        for (nth, line) in lines(&item.label).iter().enumerate() {
            y += if nth == 0 { LABEL } else { LINE };
            text(out, "label", (LEFT, y - 6.0), "start", line);
        }
        for mark in &item.marks {
            plot.begin_mark(out, item, mark);
            draw_mark(out, plot, &axis, mark, y);
            out.push_str("</g>");
            y += BAR;
        }
        y += GAP;
    }
}

fn draw_mark(out: &mut String, plot: &Plot, axis: &Axis, mark: &Mark, y: f64) {
    let beside = (WIDTH - 2.0, y + THICK);
    let (value, low, high) = match mark.value {
        Ok(range) => range,
        Err(absent) => return text(out, "absent", beside, "end", absent),
    };
    // Bars of ratios begin at the reference.
    let origin = match (plot.scale, plot.reference) {
        (Scale::Log, Some(reference)) => axis.at(reference),
        _ => axis.origin(),
    };
    let end = axis.at(value);
    bar(out, mark.kind, (LEFT + origin.min(end), y), (end - origin).abs().max(1.0));
    let (low, high, middle) = (LEFT + axis.at(low), LEFT + axis.at(high), y + THICK / 2.0);
    if high - low > 1.5 {
        let (top, under) = (middle - 3.0, middle + 3.0);
        let line = format!("M{low:.1} {middle:.1}H{high:.1}");
        path(out, "halo", &line);
        let ends = format!("M{low:.1} {top:.1}V{under:.1}M{high:.1} {top:.1}V{under:.1}");
        path(out, "spread", &(line + &ends));
    }
    let class = format!("value {}", mark.kind.class());
    text(out, &class, beside, "end", &number::figure(value));
}

pub(super) fn bar(out: &mut String, kind: Kind, (x, y): (f64, f64), width: f64) {
    let class = kind.class();
    put!(
        out,
        r#"<rect class="bar {class}" x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{THICK}" rx="1.5"/>"#
    );
}

/// Breaks a label into lines that fit, between words. A word that is too long is cut.
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
    use super::super::Form;
    use super::super::tests::{drawn, plot};
    use super::*;

    const _: () = assert!(LEFT + LENGTH <= WIDTH - VALUES, "the bars would overlap the values");

    #[test]
    fn bars_are_as_long_as_their_values_and_stay_inside() {
        let values = [(1.0, 0.5, 2.0), (2.0, 2.0, 2.0), (4.0, 4.0, 4.0)].map(Some);
        let plot = plot(Form::Bars, Scale::Linear, &values);
        let (out, widths) = drawn(&plot, "width");
        assert!((widths[1] / widths[0] - 2.0).abs() < 0.01 && widths[2] <= LENGTH, "{widths:?}");
        assert!(drawn(&plot, "x").1.iter().all(|x| (0.0..=WIDTH).contains(x)));
        assert!(drawn(&plot, "y").1.iter().all(|y| (0.0..=height(&plot)).contains(y)));
        assert_eq!(out.matches("class=\"spread\"").count(), 1, "{out}");
    }

    #[test]
    fn an_absent_value_is_a_word_without_a_bar() {
        let (out, widths) = drawn(&plot(Form::Bars, Scale::Linear, &[None]), "width");
        assert!(out.contains(">not run</text>") && widths.is_empty(), "{out}");
    }

    #[test]
    fn long_labels_are_broken_between_words() {
        let label = "fused copy+checksum needed to match a separate copy and checksum";
        let broken = ["fused copy+checksum needed to match a separate", "copy and checksum"];
        assert_eq!(lines(label), broken);
        assert_eq!(lines(""), [""]);
        let cut = lines(&"x".repeat(200));
        assert_eq!((cut.len(), cut[0].chars().count()), (1, LINE_CHARS_MAX));
    }
}
