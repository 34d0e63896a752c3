//! The picture at the top of `README.md`: a few figures of the kept runs, as one SVG file.
//!
//! Like the page, the file refers to no other file, and follows the reader's light or dark colour scheme.

use anyhow::{Result, anyhow};

use super::contents::{Bar, Contents, Panel};
use super::figures::{Figures, median_of, ratio_of};
use super::html::{escape, put};
use super::plot::{self, Form, Item, Kind, Mark, Plot, Scale};
use super::table::Missing;

/// The space between panels, and the space above the bars of a panel for its title.
const GAP: f64 = 44.0;
const HEAD: f64 = 46.0;

/// The colours and fonts, with the classes of the page's plots.
const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif;fill:#1b2530}\
.title{font-size:15px;font-weight:600}.unit,.tick{font-size:11px;fill:#55626f}\
.value{font-weight:600}.grid{stroke:#e6e9eb;fill:none}.reference{stroke:#55626f;stroke-dasharray:3 3;fill:none}\
.spread{stroke:#1b2530;fill:none}.halo{stroke:#fff;stroke-width:3;opacity:.65;fill:none}\
.bar{fill:#87939d}.bar.k-ours{fill:#0a6a8a}\
@media(prefers-color-scheme:dark){text{fill:#e4e9ed}.unit,.tick{fill:#9fabb6}.grid{stroke:#27313a}\
.reference{stroke:#9fabb6}.spread{stroke:#e4e9ed}.halo{stroke:#11171c}.bar{fill:#7d8a95}.bar.k-ours{fill:#56bddb}}";

/// Draws the picture.
///
/// # Errors
/// Returns an error if a figure named in `bench/tables.toml` is in none of the runs.
pub(super) fn draw(contents: &Contents, figures: &Figures) -> Result<String> {
    let panels = &contents.picture;
    let plots = panels.iter().map(|panel| plot_of(panel, figures)).collect::<Result<Vec<_>>>()?;
    let width = plots.len() as f64 * (plot::WIDTH + GAP) - GAP;
    let tallest = plots.iter().map(plot::bars_height).fold(0.0, f64::max);
    let height = HEAD + tallest;
    let mut out = String::new();
    put!(
        out,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" role="img">"#
    );
    let words = |plot: &Plot| format!("{}: {}", plot.title, plot.description());
    let words: Vec<String> = plots.iter().map(words).collect();
    put!(out, "<title>{}</title><style>{STYLE}</style>\n", escape(&words.join(". ")));
    for (nth, plot) in plots.iter().enumerate() {
        let left = nth as f64 * (plot::WIDTH + GAP);
        put!(out, r#"<g transform="translate({left:.0} 0)">"#);
        put!(out, r#"<text class="title" x="2" y="16">{}</text>"#, escape(&plot.title));
        put!(out, r#"<text class="unit" x="2" y="33">{}</text>"#, escape(&plot.unit));
        put!(out, r#"<g transform="translate(0 {HEAD:.0})">"#);
        plot::draw_bars(&mut out, plot);
        out.push_str("</g></g>\n");
    }
    out.push_str("</svg>\n");
    Ok(out)
}

fn plot_of(panel: &Panel, figures: &Figures) -> Result<Plot> {
    let Panel { title, unit, bench, case, metric, over, bars } = panel;
    let item = |bar: &Bar| {
        let row = figures.find(bench, case, &bar.candidate, metric, over.as_deref());
        let value = row.and_then(|row| if over.is_some() { ratio_of(row) } else { median_of(row) });
        let missing = |why: Missing| anyhow!("the picture's '{}': {}", bar.candidate, why.why);
        let kind = if bar.ours { Kind::Ours } else { Kind::Peer };
        let mark = Mark { kind, value: Ok(value.map_err(missing)?) };
        Ok(Item { label: bar.label.clone(), marks: vec![mark] })
    };
    Ok(Plot {
        form: Form::Bars,
        title: title.clone(),
        unit: unit.clone(),
        scale: Scale::default(),
        reference: None,
        items: bars.iter().map(item).collect::<Result<_>>()?,
        legend: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::kept;
    use super::*;

    #[test]
    fn the_picture_shows_the_kept_runs() {
        let picture = draw(&Contents::read().unwrap(), &kept()).unwrap();
        let committed = include_str!("../../../docs/figures.svg");
        assert!(picture == committed, "run `longshore-bench report --picture docs/figures.svg`");
    }

    #[test]
    fn a_figure_that_was_not_measured_is_an_error() {
        let contents = Contents::read().unwrap();
        let failed = draw(&contents, &Figures::default()).unwrap_err().to_string();
        assert!(failed.contains(&contents.picture[0].bars[0].candidate), "{failed}");
    }
}
