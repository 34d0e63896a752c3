//! Values by size: lines with marks, and the spread of each value.

use super::super::html::put;
use super::{Kind, Plot, WIDTH, path, text};

pub(super) const HEIGHT: f64 = 250.0;
const LEFT: f64 = 46.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 8.0;
const FOOT: f64 = 24.0;
const ACROSS: f64 = WIDTH - LEFT - RIGHT;
const UP: f64 = HEIGHT - TOP - FOOT;

pub(super) fn draw(out: &mut String, plot: &Plot) {
    let axis = plot.axis(UP);
    let across = |nth: usize| across(nth, plot.items.len());
    let up = |value: f64| TOP + UP - axis.at(value);
    let level = |value: f64| format!("M{LEFT} {:.1}H{}", up(value), WIDTH - RIGHT);
    for tick in &axis.ticks {
        path(out, "grid", &level(*tick));
        text(out, "tick", (LEFT - 6.0, up(*tick) + 4.0), "end", &axis.label(*tick));
    }
    if let Some(reference) = plot.reference {
        path(out, "reference", &level(reference));
    }
    for (nth, item) in plot.items.iter().enumerate() {
        text(out, "tick", (across(nth), HEIGHT - 7.0), "middle", &item.label);
    }
    for (of, (kind, _)) in plot.legend.iter().enumerate() {
        let mut line = String::new();
        let mut pen = 'M';
        for (nth, item) in plot.items.iter().enumerate() {
            // A gap breaks the line.
            let Ok((value, ..)) = item.marks[of].value else {
                pen = 'M';
                continue;
            };
            put!(line, "{pen}{:.1} {:.1}", across(nth), up(value));
            pen = 'L';
        }
        path(out, &format!("line {}", kind.class()), &line);
    }
    for (nth, item) in plot.items.iter().enumerate() {
        for mark in &item.marks {
            let Ok((value, low, high)) = mark.value else { continue };
            plot.begin_mark(out, item, mark);
            let (x, top, under) = (across(nth), up(high), up(low));
            if under - top > 2.0 {
                let (left, right) = (x - 3.0, x + 3.0);
                let ends =
                    format!("M{left:.1} {top:.1}H{right:.1}M{left:.1} {under:.1}H{right:.1}");
                path(out, "spread", &format!("M{x:.1} {top:.1}V{under:.1}{ends}"));
            }
            marker(out, mark.kind, x, up(value));
            out.push_str("</g>");
        }
    }
}

/// Returns the horizontal position of the mark `nth` of `count`.
fn across(nth: usize, count: usize) -> f64 {
    LEFT + ACROSS * (nth as f64 + 0.5) / count.max(1) as f64
}

/// Draws the mark of a kind; ours are filled.
pub(super) fn marker(out: &mut String, kind: Kind, x: f64, y: f64) {
    let form = match kind {
        Kind::Ours => "m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0Z",
        Kind::OursToo => "m-3.5 -3.5h7v7h-7Z",
        Kind::Published => "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0Z",
        Kind::PublishedToo => "m0 -4.5l4.5 4.5l-4.5 4.5l-4.5 -4.5Z",
        Kind::Peer => "m-4 3.5h8l-4 -7.5Z",
    };
    path(out, &format!("mark {}", kind.class()), &format!("M{x:.1} {y:.1}{form}"));
}

#[cfg(test)]
mod tests {
    use super::super::tests::{drawn, plot};
    use super::super::{Form, Scale};
    use super::*;

    #[test]
    fn a_gap_breaks_the_line() {
        let point = |value| Some((value, value, value));
        let values = [point(1.0), point(10.0), None, point(100.0)];
        let (out, _) = drawn(&plot(Form::Curves, Scale::Log, &values), "x");
        let line = out.split("class=\"line k-ours\" d=\"").nth(1).unwrap();
        let line = line.split('"').next().unwrap();
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 1), "{line}");
        assert_eq!(out.matches("class=\"mark").count(), 3);
    }

    #[test]
    fn marks_stay_inside_and_rise_with_their_values() {
        let values = [Some((1.0, 0.5, 2.0)), Some((300.0, 300.0, 9_000.0))];
        let (out, _) = drawn(&plot(Form::Curves, Scale::Log, &values), "x");
        let marks = out.split("class=\"mark k-ours\" d=\"M").skip(1);
        let heights: Vec<f64> =
            marks.map(|mark| mark.split([' ', 'm']).nth(1).unwrap().parse().unwrap()).collect();
        assert!(heights[0] > heights[1], "higher values lie higher: {heights:?}");
        assert!(heights.iter().all(|y| (TOP..=TOP + UP).contains(y)), "{heights:?}");
        assert_eq!(out.matches("class=\"spread\"").count(), 2);
        assert!(across(0, 1) > LEFT && across(7, 8) < WIDTH - RIGHT);
    }
}
