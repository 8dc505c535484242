//! The name that was probably meant, for messages about one that is not known.

/// The known name nearest to `name`: the same letters in another case or with other separators, or few letters off.
pub fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace(['_', '-', '.'], "");
    let wanted = plain(name);
    let (letters, found) = known.into_iter().map(|one| (distance(&wanted, &plain(one)), one)).min()?;
    // One letter in a short name, more in a long one; a name of two letters is like any other.
    let near = if wanted.len() < 3 { 0 } else { (wanted.len() / 3).clamp(1, 3) };
    (letters <= near).then_some(found)
}

/// Letters to add, drop, change or swap with their neighbour (optimal string alignment).
pub fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, b) in other.iter().enumerate() {
            let mut least = (last[j] + usize::from(a != b)).min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *a == other[j - 1] && one[i - 1] == *b {
                least = least.min(before[j - 1] + 1);
            }
            row.push(least);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_few_letters_off_is_found_and_a_stranger_is_not() {
        let known = ["name", "template", "autoStopInterval", "sandbox_id"];
        for (given, meant) in [
            ("nmae", Some("name")),
            ("Name", Some("name")),
            ("auto_stop_interval", Some("autoStopInterval")),
            ("sandboxID", Some("sandbox_id")),
            ("templates", Some("template")),
            ("colour", None),
            ("x", None),
        ] {
            assert_eq!(nearest(given, known), meant, "{given}");
        }
        assert_eq!(nearest("name", []), None);
    }
}
