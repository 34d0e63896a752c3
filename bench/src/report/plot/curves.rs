//! Values over sizes: lines with marks, and the ranges the values were seen in.

use super::super::html::{escape, put};
use super::super::number;
use super::scale::Axis;
use super::{Kind, Scale, WIDTH};

const LEFT: f64 = 46.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 8.0;
const FOOT: f64 = 24.0;
const HEIGHT: f64 = 250.0;
const ACROSS: f64 = WIDTH - LEFT - RIGHT;
const UP: f64 = HEIGHT - TOP - FOOT;

#[derive(Debug)]
pub(in super::super) struct Curves {
    pub(in super::super) title: String,
    pub(in super::super) unit: String,
    pub(in super::super) scale: Scale,
    pub(in super::super) reference: Option<f64>,
    /// What is below the marks, from left to right.
    pub(in super::super) places: Vec<String>,
    pub(in super::super) series: Vec<Series>,
}

/// A mark's median, lowest and highest; none where it was not run.
pub(in super::super) type Point = Option<(f64, f64, f64)>;

#[derive(Debug)]
pub(in super::super) struct Series {
    pub(in super::super) name: String,
    pub(in super::super) kind: Kind,
    /// One for each place.
    pub(in super::super) points: Vec<Point>,
}

impl Curves {
    #[expect(clippy::unused_self, reason = "as that of the other kind")]
    pub(super) fn height(&self) -> f64 {
        HEIGHT
    }

    pub(super) fn legend(&self) -> Vec<(Kind, String)> {
        self.series.iter().map(|series| (series.kind, series.name.clone())).collect()
    }

    pub(super) fn description(&self) -> String {
        let of = |series: &Series| {
            let points = series.points.iter().zip(&self.places).map(|(point, place)| match point {
                Some((value, _, _)) => format!("{place} {}", number::figure(*value)),
                None => format!("{place} not run"),
            });
            format!("{}: {}", series.name, points.collect::<Vec<_>>().join(", "))
        };
        let series: Vec<String> = self.series.iter().map(of).collect();
        format!("{}: {}", self.unit, series.join("; "))
    }

    pub(super) fn draw(&self, out: &mut String) {
        let points = self.series.iter().flat_map(|series| series.points.iter().flatten());
        let values = points.flat_map(|&(value, low, high)| [value, low, high]);
        let axis = Axis::of(self.scale, values.chain(self.reference), UP);
        let across = |nth: usize| across(nth, self.places.len());
        let up = |value: f64| TOP + UP - axis.at(value);
        for tick in &axis.ticks {
            let (y, right) = (up(*tick), WIDTH - RIGHT);
            put!(out, "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{right}\"/>");
            let (x, y, label) = (LEFT - 6.0, y + 4.0, axis.label(*tick));
            put!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{label}</text>"
            );
        }
        if let Some(reference) = self.reference {
            let (y, right) = (up(reference), WIDTH - RIGHT);
            put!(out, "<path class=\"reference\" d=\"M{LEFT} {y:.1}H{right}\"/>");
        }
        for (nth, place) in self.places.iter().enumerate() {
            let (x, y) = (across(nth), HEIGHT - 7.0);
            put!(
                out,
                "<text class=\"tick\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>",
                escape(place)
            );
        }
        for series in &self.series {
            let class = series.kind.class();
            let mut path = String::new();
            let mut pen_is_up = true;
            for (nth, point) in series.points.iter().enumerate() {
                if let Some((value, _, _)) = point {
                    let (verb, x, y) = (if pen_is_up { 'M' } else { 'L' }, across(nth), up(*value));
                    put!(path, "{verb}{x:.1} {y:.1}");
                }
                pen_is_up = point.is_none();
            }
            put!(out, "<path class=\"line {class}\" d=\"{path}\"/>");
        }
        for series in &self.series {
            for (nth, point) in series.points.iter().enumerate() {
                let Some((value, low, high)) = *point else { continue };
                let x = across(nth);
                let place = self.places.get(nth).map_or("", String::as_str);
                let words = format!("{}, {place}: {}", series.name, number::figure(value));
                let words = match number::spread(low, high, number::figure) {
                    Some(spread) => format!("{words} ({spread})"),
                    None => words,
                };
                put!(out, "<g><title>{}</title>", escape(&words));
                let (top, under) = (up(high), up(low));
                if under - top > 2.0 {
                    let (left, right) = (x - 3.0, x + 3.0);
                    put!(
                        out,
                        "<path class=\"spread\" d=\"M{x:.1} {top:.1}V{under:.1}M{left:.1} {top:.1}H{right:.1}M{left:.1} {under:.1}H{right:.1}\"/>"
                    );
                }
                marker(out, series.kind, x, up(value));
                out.push_str("</g>");
            }
        }
    }
}

/// Where the mark of a place is, of `count` places.
fn across(nth: usize, count: usize) -> f64 {
    LEFT + ACROSS * (nth as f64 + 0.5) / count.max(1) as f64
}

/// The form of a kind: filled ones are ours.
pub(super) fn marker(out: &mut String, kind: Kind, x: f64, y: f64) {
    let class = kind.class();
    match kind {
        Kind::Ours => {
            put!(out, "<circle class=\"mark {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\"/>");
        }
        Kind::OursToo => {
            let (x, y) = (x - 3.5, y - 3.5);
            put!(
                out,
                "<rect class=\"mark {class}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"7\" height=\"7\"/>"
            );
        }
        Kind::Published => {
            put!(out, "<circle class=\"mark {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\"/>");
        }
        Kind::PublishedToo => {
            let (top, left) = (y - 4.5, x - 4.5);
            put!(
                out,
                "<path class=\"mark {class}\" d=\"M{x:.1} {top:.1}l4.5 4.5l-4.5 4.5L{left:.1} {y:.1}Z\"/>"
            );
        }
        Kind::Peer => {
            let (left, under) = (x - 4.0, y + 3.5);
            put!(out, "<path class=\"mark {class}\" d=\"M{left:.1} {under:.1}h8l-4 -7.5Z\"/>");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curves(points: Vec<Point>) -> Curves {
        Curves {
            title: "t".to_owned(),
            unit: "us".to_owned(),
            scale: Scale::Log,
            reference: None,
            places: points.iter().enumerate().map(|(nth, _)| format!("{nth}K")).collect(),
            series: vec![Series { name: "after".to_owned(), kind: Kind::Ours, points }],
        }
    }

    #[test]
    fn a_gap_breaks_the_line() {
        let point = |value| Some((value, value, value));
        let plot = curves(vec![point(1.0), point(10.0), None, point(100.0)]);
        let mut out = String::new();
        plot.draw(&mut out);
        let line = out.split("class=\"line k-ours\" d=\"").nth(1).unwrap();
        let line = line.split('"').next().unwrap();
        assert_eq!((line.matches('M').count(), line.matches('L').count()), (2, 1), "{line}");
        assert_eq!(out.matches("<circle").count(), 3);
        assert!(plot.description().contains("2K not run"));
    }

    #[test]
    fn marks_stay_inside_and_rise_with_their_values() {
        let plot = curves(vec![Some((1.0, 0.5, 2.0)), Some((300.0, 300.0, 9_000.0))]);
        let mut out = String::new();
        plot.draw(&mut out);
        let heights: Vec<f64> = out
            .split(" cy=\"")
            .skip(1)
            .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
            .collect();
        assert!(heights[0] > heights[1], "higher values lie higher: {heights:?}");
        assert!(heights.iter().all(|y| (TOP..=TOP + UP).contains(y)), "{heights:?}");
        assert_eq!(out.matches("class=\"spread\"").count(), 2);
        assert!(across(0, 1) > LEFT && across(7, 8) < WIDTH - RIGHT);
    }
}
