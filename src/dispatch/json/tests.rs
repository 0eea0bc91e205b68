//! Agreement with `serde_json` on what is JSON.

use proptest::prelude::*;

use super::*;

fn accepts(text: &[u8]) -> bool {
    let mut scanner = Scanner::new(text, DEPTH_CEILING);
    scanner.skip_value().and_then(|()| scanner.finish()).is_ok()
}

/// Lengths around the ends of blocks of 64 bytes and of pages of 1,024.
fn lengths() -> impl Iterator<Item = usize> {
    (0..20).chain(58..72).chain(124..132).chain(1_016..1_028)
}

#[test]
fn strings_end_where_they_end_wherever_blocks_end() {
    for length in lengths() {
        for escape in ["", "\\n", "\\\"", "\\u00e9", "\\\\", "\\\\\\\"", "\\/\\r"] {
            for place in (0..=length.min(140)).chain(length.max(150) - 10..=length) {
                let text = format!(
                    "\"{}{escape}{}\"{}",
                    "a".repeat(place),
                    "b".repeat(length - place),
                    " ".repeat(40)
                );
                let found = Scanner::new(text.as_bytes(), 1).string().unwrap();
                assert_eq!(
                    found.inside,
                    Span::new(1, 1 + length + escape.len()),
                    "{text:?}"
                );
                assert_eq!(found.escaped, !escape.is_empty());
            }
        }
    }
}

#[test]
fn strings_end_where_they_end_however_far_apart_they_are() {
    for gap in lengths().chain(2_040..2_056) {
        // The first string ends in an escape, which must not reach into the second.
        for first in ["\"\"", "\"\\\\\"", "\"\\\"\""] {
            let text = format!("[{first}{},\"a\\nb\"]", " ".repeat(gap));
            let mut scanner = Scanner::new(text.as_bytes(), 1);
            scanner
                .skip_value()
                .and_then(|()| scanner.finish())
                .unwrap();
            let wrong = text.replace("\\n", "\\x");
            let refused = Scanner::new(wrong.as_bytes(), 1).skip_value();
            let (what, at) = ("unknown escape", wrong.len() - 5);
            assert_eq!(refused, Err(Malformed::Expected { what, at }), "{wrong:?}");
        }
    }
}

#[test]
fn what_is_wrong_in_a_string_is_told_with_its_place_wherever_blocks_end() {
    for length in lengths() {
        // What is wrong, and how far behind its first byte.
        for (wrong, what, offset) in [
            ("\\x", "unknown escape", 0),
            ("\\\n", "unknown escape", 0),
            ("\\\\\\a", "unknown escape", 2),
            ("\\u00g0", "expected four hexadecimal digits", 2),
            ("\\u12\"", "expected four hexadecimal digits", 2),
            ("\t", "control character inside a string", 0),
            ("\\\\\u{1f}", "control character inside a string", 2),
        ] {
            for tail in ["\\q\n\"", &" ".repeat(70)] {
                let text = format!("\"{}{wrong}{tail}", "a".repeat(length));
                let found = Scanner::new(text.as_bytes(), 1).string();
                let at = 1 + length + offset;
                assert_eq!(found, Err(Malformed::Expected { what, at }), "{text:?}");
            }
        }
    }
}

#[test]
fn a_text_that_ends_inside_a_string_is_refused_wherever_blocks_end() {
    for length in lengths() {
        for (last, what, offset) in [
            ("", "a string without its end", 0),
            ("\\", "unknown escape", 0),
            ("\\\\", "a string without its end", 2),
            ("\\\"", "a string without its end", 2),
            ("\\u123", "expected four hexadecimal digits", 2),
        ] {
            let text = format!("\"{}{last}", "a".repeat(length));
            let found = Scanner::new(text.as_bytes(), 1).string();
            let at = 1 + length + offset;
            assert_eq!(found, Err(Malformed::Expected { what, at }), "{text:?}");
        }
    }
}

#[test]
fn what_was_left_out_does_not_reach_into_what_follows() {
    for gap in lengths().chain(2_040..2_056) {
        // Escapes that are none, and one at the end of a page, in what is left out; then strings that are right, or wrong.
        for left_out in ["\"\\x\"", "\"\\\\\"", "\"\t\"", "1 2 nul"] {
            let text = |last: &str| {
                let (before, after) = ("\\n".repeat(gap / 2), " ".repeat(gap));
                format!("[\"{before}\",[{left_out},\"{after}\"],\"{last}\"]")
            };
            let strings = |text: &str| {
                let mut scanner = Scanner::new(text.as_bytes(), 2);
                scanner.open(Kind::Array)?;
                let mut first = true;
                while scanner.element(first)? {
                    first = false;
                    scanner.pass_value()?;
                }
                scanner.finish()
            };
            assert_eq!(strings(&text("\\\"ok")), Ok(()), "{gap} {left_out}");
            let wrong = text("\\q");
            let (what, at) = ("unknown escape", wrong.len() - 4);
            assert_eq!(
                strings(&wrong),
                Err(Malformed::Expected { what, at }),
                "{gap} {left_out}"
            );
        }
    }
}

#[test]
fn a_container_that_is_left_out_may_be_as_deep_as_the_limit() {
    for (levels, passes) in [(63, true), (64, false)] {
        let text = format!("[{}{}]", "[".repeat(levels), "]".repeat(levels));
        let mut scanner = Scanner::new(text.as_bytes(), 64);
        scanner.open(Kind::Array).unwrap();
        let (limit, at) = (64, 64);
        let expected = if passes {
            Ok(())
        } else {
            Err(Malformed::TooDeep { limit, at })
        };
        assert_eq!(scanner.pass_value(), expected);
    }
}

#[test]
fn ten_thousand_levels_are_refused_and_not_followed() {
    for open in ["[", "{\"a\":"] {
        let text = open.repeat(10_000);
        let refused = Scanner::new(text.as_bytes(), 512).skip_value();
        assert_eq!(
            refused,
            Err(Malformed::TooDeep {
                limit: 512,
                at: open.len() * 512
            })
        );
    }
}

#[test]
fn depth_at_the_limit_passes_and_one_more_does_not() {
    for (levels, passes) in [(64, true), (65, false)] {
        let text = format!("{}{}", "[".repeat(levels), "]".repeat(levels));
        assert_eq!(
            Scanner::new(text.as_bytes(), 64).skip_value().is_ok(),
            passes,
            "{levels} levels of 64"
        );
    }
}

#[test]
fn lone_surrogates_have_no_meaning_and_pairs_do() {
    let decode = |text: &'static str| {
        let text = Scanner::new(text.as_bytes(), 1)
            .string()
            .map(|found| (found, text))
            .unwrap();
        text.0.decode(text.1.as_bytes()).map(Cow::into_owned)
    };
    assert_eq!(decode(r#""\ud83d\ude00""#), Some("😀".as_bytes().to_vec()));
    assert_eq!(decode(r#""\ud83d""#), None);
    assert_eq!(decode(r#""\ud83dA""#), None);
    assert_eq!(decode(r#""\ude00""#), None);
}

pub(super) fn fragments() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just(","),
        Just(":"),
        Just("\""),
        Just("\\"),
        Just("\\u00"),
        Just("\"a\""),
        Just("\"k\":"),
        Just("\"\\u0041\""),
        Just("0"),
        Just("-1.5e+3"),
        Just("01"),
        Just("1."),
        Just("true"),
        Just("nul"),
        Just("null"),
        Just(" "),
        Just("\n"),
        Just("\u{1}"),
        Just("é"),
        Just("\"\\n\""),
    ];
    // Long enough to reach into the next block, or page.
    let long = (
        prop_oneof![Just("a"), Just(" "), Just("\\\\"), Just("\\n"), Just("1")],
        prop_oneof![50..70_usize, 500..530_usize],
    );
    let long = long.prop_map(|(what, times)| what.repeat(times));
    let piece = prop_oneof![8 => piece.prop_map(str::to_owned), 1 => long];
    prop::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn accepts_what_serde_json_accepts(text in fragments()) {
        let theirs = serde_json::from_str::<&serde_json::value::RawValue>(&text).is_ok();
        prop_assert_eq!(accepts(text.as_bytes()), theirs, "{}", text);
    }

    #[test]
    fn strings_mean_what_serde_json_says(text in r#"([a-zé"\\]|\\n|\\u00[0-9a-f]{2}|\\ud83d|\\ude00|\\/|[a-z]{20}){0,40}"#) {
        let quoted = format!("\"{text}\"");
        let mut scanner = Scanner::new(quoted.as_bytes(), 1);
        let ours = scanner.string().and_then(|found| scanner.finish().map(|()| found)).ok();
        let ours = ours.and_then(|found| found.decode(quoted.as_bytes()).map(Cow::into_owned));
        let theirs = serde_json::from_str::<String>(&quoted).ok().map(String::into_bytes);
        prop_assert_eq!(ours, theirs);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        accepts(&bytes);
    }
}
