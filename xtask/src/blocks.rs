//! The fenced blocks of a page of the manual. `cli/tests/manual.rs` includes this file, too.

/// The language of a block of output; blocks of all other languages are run.
pub(crate) const OUTPUT: &str = "text";

/// The languages of blocks that are run: by rustdoc, by `cli/tests/manual.rs`, by `scripts/manual.sh`.
pub(crate) const RUN: [&str; 4] = ["rust", "sh", "python", "c"];

/// A fenced block.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Block<'a> {
    /// The text after the opening fence.
    pub(crate) language: &'a str,
    /// The line number of the opening fence, from 1.
    pub(crate) line: usize,
    /// The text between the fences.
    pub(crate) text: String,
    /// `true` if only blank lines are between this block and the one before it.
    pub(crate) follows: bool,
}

/// Returns the blocks of a page, in order.
///
/// # Errors
/// The line number and the reason, for a fence that is indented or is not three backquotes, and for a
/// block that is not closed.
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
