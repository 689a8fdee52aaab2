//! Rust text parted into code and comments, line for line.
//!
//! A rule about code must not stumble over a word in a comment or a string, nor a rule about
//! comments over a string: the rules' own files are full of such words. This knows just enough of
//! Rust's tokens for that.

/// Two texts with the lines of the file, each blank where the other or a literal stands.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) code: String,
    pub(super) comments: String,
}

impl Source {
    pub(super) fn parse(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut source = Self { code: String::new(), comments: String::new() };
        let mut at = 0;
        while at < chars.len() {
            let (kind, end) = token(&chars, at);
            for &c in &chars[at..end] {
                let blank_unless = |wanted| if c == '\n' || kind == wanted { c } else { ' ' };
                source.code.push(blank_unless(Kind::Code));
                source.comments.push(blank_unless(Kind::Comment));
            }
            at = end;
        }
        source
    }
}

/// Lines of a text, counted from 1, that hold a word. A word ends where no letter, digit or `_`
/// follows; one that begins or ends with another sign ends there.
pub(super) fn lines_with<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    let numbered = text.lines().enumerate();
    numbered.filter(move |(_, line)| has_word(line, word)).map(|(index, _)| index + 1)
}

pub(super) fn has_word(line: &str, word: &str) -> bool {
    let joins = |a: Option<char>, b: Option<char>| a.is_some_and(is_name) && b.is_some_and(is_name);
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let after = line[at + word.len()..].chars().next();
        !joins(before, word.chars().next()) && !joins(word.chars().next_back(), after)
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Code,
    Comment,
    Literal,
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The token that begins at `at`, and where it ends.
fn token(chars: &[char], at: usize) -> (Kind, usize) {
    let rest = &chars[at..];
    let (kind, length) = match rest {
        ['/', '/', ..] => (Kind::Comment, length_while(rest, |c| c != '\n')),
        ['/', '*', ..] => (Kind::Comment, block_comment(rest)),
        ['"', ..] => (Kind::Literal, quoted(rest, '"')),
        // A quote begins a character, or a lifetime when no second quote follows.
        ['\'', '\\', ..] | ['\'', _, '\'', ..] => (Kind::Literal, quoted(rest, '\'')),
        [c, ..] if is_name(*c) => match raw_string(rest) {
            Some(length) => (Kind::Literal, length),
            None => (Kind::Code, length_while(rest, is_name)),
        },
        _ => (Kind::Code, 1),
    };
    (kind, at + length)
}

fn length_while(rest: &[char], holds: impl Fn(char) -> bool) -> usize {
    rest.iter().take_while(|&&c| holds(c)).count()
}

/// Block comments nest.
fn block_comment(rest: &[char]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < rest.len() {
        match &rest[at..] {
            ['/', '*', ..] => (depth, at) = (depth + 1, at + 2),
            ['*', '/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn quoted(rest: &[char], quote: char) -> usize {
    let mut at = 1;
    while at < rest.len() && rest[at] != quote {
        at += if rest[at] == '\\' { 2 } else { 1 };
    }
    rest.len().min(at + 1)
}

/// `r"…"`, `br##"…"##`, `cr"…"`: ends at a quote with as many `#` as it began with.
fn raw_string(rest: &[char]) -> Option<usize> {
    let prefix = match rest {
        ['r', ..] => 1,
        ['b' | 'c', 'r', ..] => 2,
        _ => return None,
    };
    let hashes = length_while(&rest[prefix..], |c| c == '#');
    let start = prefix + hashes;
    if rest.get(start) != Some(&'"') {
        return None;
    }
    let body = &rest[start + 1..];
    let ends_at =
        |at: &usize| body[*at] == '"' && length_while(&body[at + 1..], |c| c == '#') >= hashes;
    let length = (0..body.len()).find(ends_at).map_or(body.len(), |at| at + 1 + hashes);
    Some(start + 1 + length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, code: &str, comments: &str) {
        let source = Source::parse(text);
        assert_eq!(source.code.split_whitespace().collect::<Vec<_>>().join(" "), code);
        assert_eq!(source.comments.split_whitespace().collect::<Vec<_>>().join(" "), comments);
        assert_eq!(source.code.lines().count(), text.lines().count());
        assert_eq!(source.comments.lines().count(), text.lines().count());
    }

    #[test]
    fn code_comments_and_literals_are_told_apart() {
        check("let a = 1; // why\nlet b = 2;\n", "let a = 1; let b = 2;", "// why");
        check("f(/* a /* b */ c */ x)", "f( x)", "/* a /* b */ c */");
        check(r#"f("// no \" comment", x) // yes"#, "f( , x)", "// yes");
        check("f(\"two\nlines\") // yes", "f( )", "// yes");
        check("///  doc \"quote\nfn f() {}", "fn f() {}", "/// doc \"quote");
    }

    #[test]
    fn raw_strings_end_where_their_hashes_do() {
        check("f(r#\"a \"quoted\" // b\"#, x)", "f( , x)", "");
        check("f(br##\"a \"# b\"##, x) // c", "f( , x)", "// c");
        check("r#type + bar", "r#type + bar", "");
        check("f(r\"\\\", x)", "f( , x)", "");
        check("r#\"never ends", "", "");
    }

    #[test]
    fn a_lifetime_is_no_character() {
        check("fn f<'a>(x: &'a str) {} // y", "fn f<'a>(x: &'a str) {}", "// y");
        check(
            "match c { '\"' => 1, '\\'' => 2, '/' => 3 } // y",
            "match c { => 1, => 2, => 3 }",
            "// y",
        );
        check("b'\"' // y", "b", "// y");
    }

    #[test]
    fn text_that_ends_anywhere_is_read_to_its_end() {
        for text in ["\"open", "'", "'\\", "/* open", "/", "\"\\", "r", "br#", "r#\"\"", "é'"] {
            let source = Source::parse(text);
            assert_eq!(source.code.chars().count(), text.chars().count(), "{text}");
        }
    }

    #[test]
    fn a_word_is_found_only_whole() {
        assert!(has_word("let now = Instant::now();", "Instant::now"));
        assert!(!has_word("MyInstant::now()", "Instant::now"));
        assert!(has_word("quanta::Clock", "quanta::"));
        assert!(!has_word("forbid(unsafe_code)", "unsafe"));
        assert!(has_word("    #[ignore = \"slow\"]", "#[ignore"));
        assert_eq!(lines_with("a\nb a\nab\n", "a").collect::<Vec<_>>(), [1, 2]);
    }
}
