//! Plots as SVG: what they show, and the axis that both kinds share.
//!
//! ```text
//!   ranges                          curves
//!   label                            │      ○
//!   ████████├──┤       1.23          │   ○   ●
//!   another                          │ ○  ●
//!   █████├─┤           0.97          └──────────
//!   └────┬────┬────                    4K 8K 16K
//! ```
//!
//! A plot is as wide as a phone's page, and stands beside others where there is room.

mod curves;
mod ranges;
mod scale;

pub(super) use curves::{Curves, Point, Series};
pub(super) use ranges::{Item, Mark, Ranges};
pub(super) use scale::Scale;

use super::html::{escape, put};

/// The width of every plot, in its own units: about a phone's pixels.
const WIDTH: f64 = 360.0;

#[derive(Debug)]
pub(super) enum Plot {
    Ranges(Ranges),
    Curves(Curves),
}

/// Whose a mark is. It has a colour and a form of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Ours,
    /// Ours, in another way or place.
    OursToo,
    Published,
    /// Published, the other of two.
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

/// A plot with its title above and what its marks mean below.
pub(super) fn figure(out: &mut String, id: &str, plot: &Plot) {
    let (title, description, height, legend) = match plot {
        Plot::Ranges(ranges) => {
            (&ranges.title, ranges.description(), ranges.height(), ranges.legend.clone())
        }
        Plot::Curves(curves) => {
            (&curves.title, curves.description(), curves.height(), curves.legend())
        }
    };
    put!(out, "<figure class=\"plot\"><figcaption>{}", escape(title));
    let unit = match plot {
        Plot::Ranges(ranges) => &ranges.unit,
        Plot::Curves(curves) => &curves.unit,
    };
    put!(out, "<small>{}</small></figcaption>", escape(unit));
    let id = escape(id);
    put!(
        out,
        "<svg id=\"{id}\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">"
    );
    put!(out, "<title id=\"{id}-t\">{}</title>", escape(title));
    put!(out, "<desc id=\"{id}-d\">{}</desc>", escape(&description));
    match plot {
        Plot::Ranges(ranges) => ranges.draw(out),
        Plot::Curves(curves) => curves.draw(out),
    }
    out.push_str("</svg>");
    if legend.len() > 1 {
        out.push_str("<ul class=\"legend\">");
        for (kind, words) in &legend {
            put!(out, "<li><svg viewBox=\"0 0 16 12\" aria-hidden=\"true\" class=\"swatch\">");
            match plot {
                Plot::Ranges(_) => {
                    put!(
                        out,
                        "<rect class=\"bar {}\" x=\"1\" y=\"2\" width=\"14\" height=\"8\" rx=\"1.5\"/>",
                        kind.class()
                    );
                }
                Plot::Curves(_) => {
                    put!(out, "<path class=\"line {}\" d=\"M0 6H16\"/>", kind.class());
                    curves::marker(out, *kind, 8.0, 6.0);
                }
            }
            put!(out, "</svg>{}</li>", escape(words));
        }
        out.push_str("</ul>");
    }
    out.push_str("</figure>");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plot_says_in_words_what_it_shows() {
        let item = |label: &str, value| Item {
            label: label.to_owned(),
            marks: vec![Mark::new(Kind::Peer, Some((value, value, value)), "not run")],
        };
        let ranges = Ranges {
            title: "Speed <cold>".to_owned(),
            unit: "GB/s".to_owned(),
            scale: Scale::Linear,
            reference: None,
            items: vec![item("a&b", 2.0), item("c", 1.0)],
            legend: vec![],
        };
        let mut out = String::new();
        figure(&mut out, "p", &Plot::Ranges(ranges));
        assert!(out.contains("<title id=\"p-t\">Speed &lt;cold&gt;</title>"), "{out}");
        assert!(out.contains("a&amp;b: 2.00; c: 1.00"), "{out}");
        assert!(out.contains("aria-labelledby=\"p-t p-d\""));
    }
}
