//! Published tables, as they lie in `bench/published/`.

/// The fields of each line of a table. The first line, which names them, and comments are left out.
pub(crate) fn csv_lines(table: &str) -> impl Iterator<Item = Vec<&str>> {
    let lines = table.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    lines.skip(1).map(|line| line.split(',').map(str::trim).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_the_head_are_left_out() {
        let lines: Vec<_> = csv_lines("# from a mail\n\nname,ms\na, 5\nb,6\n").collect();
        assert_eq!(lines, [["a", "5"], ["b", "6"]]);
    }
}
