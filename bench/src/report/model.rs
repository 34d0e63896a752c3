//! What is on the page, before it is markup: tables, plots, and what they say.

use super::number;
use super::plot::Plot;

/// A median or ratio with its lowest and highest value.
pub(super) type Range = (f64, f64, f64);

/// There is no figure: a word for its place, and the reason.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Missing {
    pub(super) word: &'static str,
    pub(super) why: String,
}

/// A table whose first column names its lines.
#[derive(Debug)]
pub(super) struct Table {
    /// The element's name on the page.
    pub(super) id: String,
    pub(super) caption: String,
    /// What the first column holds.
    pub(super) head: String,
    pub(super) columns: Vec<Column>,
    pub(super) groups: Vec<Group>,
    /// Whether it is one to look things up in rather than to read.
    pub(super) dense: bool,
}

#[derive(Debug)]
pub(super) struct Column {
    pub(super) title: String,
    pub(super) over: Over,
    pub(super) is_number: bool,
}

/// Whose figures a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Over {
    Nothing,
    Published,
    Here,
    /// Here, in a guest.
    Guest,
}

/// Lines that belong together, under a title of their own where they have one.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) title: Option<String>,
    pub(super) lines: Vec<Line>,
}

#[derive(Debug)]
pub(super) struct Line {
    pub(super) head: String,
    /// Small, below the head.
    pub(super) note: Option<String>,
    pub(super) is_ours: bool,
    /// The line of a published table that it shows.
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
    /// Ratios with their spreads, each against what is named.
    Ratios(Vec<(String, Option<String>, String)>),
    /// A word with a colour of its own: reached, missed, not run.
    State(&'static str),
    /// The reason is below the table.
    Without(Missing),
}

/// One published table beside what was measured here.
#[derive(Debug)]
pub(super) struct Comparison {
    /// The published file's name, without folder and ending.
    pub(super) name: String,
    pub(super) title: String,
    /// What the figures are of, and what may be compared.
    pub(super) text: String,
    /// The metadata of the published file.
    pub(super) about: String,
    pub(super) plots: Vec<Plot>,
    pub(super) tables: Vec<Table>,
    /// Remarks with figures of their own.
    pub(super) remarks: Vec<String>,
}

impl Table {
    pub(super) fn new(
        id: &str,
        caption: &str,
        head: &str,
        columns: Vec<Column>,
        groups: Vec<Group>,
    ) -> Self {
        Self {
            id: id.to_owned(),
            caption: caption.to_owned(),
            head: head.to_owned(),
            columns,
            groups,
            dense: false,
        }
    }

    pub(super) fn dense(self) -> Self {
        Self { dense: true, ..self }
    }
}

impl Column {
    pub(super) fn number(title: &str, over: Over) -> Self {
        Self { title: title.to_owned(), over, is_number: true }
    }

    pub(super) fn text(title: &str, over: Over) -> Self {
        Self { title: title.to_owned(), over, is_number: false }
    }
}

impl Over {
    pub(super) fn class(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Published => "pub",
            Self::Here => "here",
            Self::Guest => "guest",
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Nothing => "",
            Self::Published => "published",
            Self::Here => "here",
            Self::Guest => "here, in a guest",
        }
    }
}

impl Group {
    pub(super) fn plain(lines: Vec<Line>) -> Self {
        Self { title: None, lines }
    }

    pub(super) fn titled(title: &str, lines: Vec<Line>) -> Self {
        Self { title: Some(title.to_owned()), lines }
    }
}

impl Line {
    pub(super) fn of(head: &str, cells: Vec<Cell>) -> Self {
        Self { head: head.to_owned(), note: None, is_ours: false, published: None, cells }
    }

    pub(super) fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

}

impl Cell {
    pub(super) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A figure that is shown as it is.
    pub(super) fn figure_of(value: &str) -> Self {
        Self::Figure { value: value.to_owned(), spread: None }
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
