//! A matcher of path patterns that is too plain to be wrong, and too slow to be used. Fuzzing uses it too.

use tollgate_policy::Paths;

/// Whether a pattern, written as one may be, stands for `path`: as it is written, or in its one form.
pub(crate) fn stands_for(pattern: &str, path: &[u8]) -> bool {
    let folded = Paths::default().fold(pattern.into());
    [pattern, &folded].iter().any(|pattern| is_made_of(pattern.as_bytes(), path))
}

fn is_made_of(pattern: &[u8], path: &[u8]) -> bool {
    let segments = |text: &[u8]| -> Vec<Vec<u8>> {
        let text = text.strip_prefix(b"/").unwrap_or(text);
        text.split(|byte| *byte == b'/').map(<[u8]>::to_vec).collect()
    };
    let path = segments(path);
    // Of how many segments of the path, from its start, what was seen of the pattern can be made.
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    for segment in segments(pattern) {
        let stands_for = |it: &[u8]| match &segment[..] {
            b"*" | [b'{', .., b'}'] => !it.is_empty(),
            word => word == it,
        };
        reached = (0..reached.len())
            .map(|end| match &segment[..] {
                b"**" => reached[..=end].contains(&true),
                _ => end > 0 && reached[end - 1] && stands_for(&path[end - 1]),
            })
            .collect();
    }
    reached[path.len()]
}
