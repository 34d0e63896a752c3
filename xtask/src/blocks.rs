//! The fenced blocks of a page of the manual. `cli/tests/manual.rs` reads pages with this, too.

/// The language of what a program prints; every other one is run.
pub(crate) const OUTPUT: &str = "text";

/// The languages of what is run: by rustdoc, by `cli/tests/manual.rs`, by `scripts/manual.sh`.
pub(crate) const RUN: [&str; 4] = ["rust", "sh", "python", "c"];

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// What stands behind the opening fence.
    pub(crate) language: &'a str,
    /// The number of the line of the opening fence, from 1.
    pub(crate) line: usize,
    /// What stands between the fences.
    pub(crate) text: String,
    /// Nothing but blank lines stands between it and the block before it.
    pub(crate) follows: bool,
}

/// The blocks of a page, in order.
///
/// # Errors
/// What cannot be told apart, with the number of the line: a fence that is indented or made of
/// something else than three backquotes, one that is not closed.
pub(crate) fn blocks(page: &str) -> Result<Vec<Block<'_>>, String> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    let mut open: Option<Block<'_>> = None;
    let mut follows = false;
    for (index, line) in page.lines().enumerate() {
        let number = index + 1;
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => {
                blocks.extend(open.take());
                follows = true;
            }
            (Some(block), _) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, Some(language)) if !language.starts_with('`') => {
                open = Some(Block { language, line: number, text: String::new(), follows });
            }
            (None, _) if line.trim_start().starts_with("```") || line.starts_with("~~~") => {
                return Err(format!(
                    "{number}: a fence is three backquotes at the start of a line"
                ));
            }
            (None, _) => follows &= line.trim().is_empty(),
        }
    }
    match open {
        Some(block) => Err(format!("{}: this block is not closed", block.line)),
        None => Ok(blocks),
    }
}
