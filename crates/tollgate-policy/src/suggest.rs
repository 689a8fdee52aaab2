//! "Did you mean …?"

/// The candidate that `text` is most likely a slip of, if one is close enough.
pub(crate) fn closest<'c>(
    text: &str,
    candidates: impl IntoIterator<Item = &'c str>,
) -> Option<&'c str> {
    // A text this long is no slip of one of our words, and the distance takes time and room.
    if text.len() > 40 {
        return None;
    }
    let tolerated = (text.chars().count() / 3).clamp(1, 3);
    candidates
        .into_iter()
        .map(|candidate| (distance(&text.to_ascii_lowercase(), candidate), candidate))
        .filter(|(distance, _)| *distance <= tolerated)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// How many letters must be added, removed, replaced or swapped with their neighbour.
pub(crate) fn distance(left: &str, right: &str) -> usize {
    let left: Vec<char> = left.chars().collect();
    let right: Vec<char> = right.chars().collect();
    let mut rows = vec![(0..=right.len()).collect::<Vec<usize>>()];
    for (i, from) in left.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in right.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(from != to);
            let mut least = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == right[j - 1] && left[i - 1] == *to {
                least = least.min(rows[i - 1][j - 1] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[left.len()][right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_of_the_pen_are_recognised() {
        let words = ["rate", "burst", "queue", "algorithm"];
        assert_eq!(closest("rte", words), Some("rate"));
        assert_eq!(closest("brust", words), Some("burst"));
        assert_eq!(closest("algoritm", words), Some("algorithm"));
        assert_eq!(closest("Queue", words), Some("queue"));
        assert_eq!(closest("colour", words), None);
    }
}
