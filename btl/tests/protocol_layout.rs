//! The `receive_queues` grammar: defaults, errors that point, round trips, and no panic on any
//! string.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use mca_btl_oxib::protocol::layout::{Field, Kind, Layout, LayoutError, MAX_TEXT, Queue, Srq};
use proptest::prelude::*;

fn parse(text: &str) -> Layout {
    Layout::parse(text).unwrap_or_else(|error| panic!("{error}"))
}

fn refuse(text: &str) -> LayoutError {
    Layout::parse(text).expect_err(text)
}

#[test]
fn missing_and_empty_fields_take_the_defaults_of_openib() {
    assert_eq!(parse("P,128,256").to_string(), "P,128,256,192,128,4,32");
    assert_eq!(parse("P,128,").to_string(), "P,128,256,192,128,4,32");
    assert_eq!(parse("P,128,,,,").to_string(), "P,128,256,192,128,4,32");
    assert_eq!(parse("P,128,256,192,128").to_string(), "P,128,256,192,128,4,32");
    assert_eq!(parse("P,128,16,,4").to_string(), "P,128,16,12,4,8,4");
    assert_eq!(parse("S,2048,1024,1008,64").to_string(), "S,2048,1024,1008,64,256,48");
    assert_eq!(parse("S,2048,256").to_string(), "S,2048,256,192,48,64,12");
    assert_eq!(parse("X,65536,256,128,32").to_string(), "X,65536,256,128,32,64,12");
    assert_eq!(parse("S,128,256,192,128,,7").to_string(), "S,128,256,192,128,64,7");
}

#[test]
fn defaults_that_fall_out_of_their_bounds_move_to_the_nearest() {
    // openib: rd_low 1 of 1 (refused by itself), rd_win 8 of 4 (credits never return), rd_rsv 512
    // (field overflow).
    assert_eq!(parse("P,128,1").to_string(), "P,128,1,0,1,2,1");
    assert_eq!(parse("P,128,4,0").to_string(), "P,128,4,0,4,2,4");
    assert_eq!(parse("P,128,4").to_string(), "P,128,4,3,2,4,4");
    assert_eq!(parse("P,128,256,192,1").to_string(), "P,128,256,192,1,255,32");
    assert_eq!(parse("S,128,1").to_string(), "S,128,1,0,1,1,0");
    assert_eq!(parse("S,128,2").to_string(), "S,128,2,1,1,1,1");
}

#[test]
fn the_defaults_of_every_openib_release_parse() {
    for text in [
        "P,128,256,192,128:S,2048,256,128,32:S,12288,256,128,32:S,65536,256,128,32",
        "P,128,256,192,128:S,2048,1024,1008,64:S,12288,1024,1008,64:S,65536,1024,1008,64",
        "S,128,256,192,128:S,2048,1024,1008,64:S,12288,1024,1008,64:S,65536,1024,1008,64",
        "X,128,256,192,128:X,2048,256,128,32:X,12288,256,128,32:X,65536,256,128,32",
    ] {
        assert_eq!(parse(text).queues().len(), 4);
        assert_eq!(parse(text).check_limits(12288, 65536), Ok(()));
    }
}

#[test]
fn queues_are_found_by_size_and_kind() {
    let layout = parse("S,64,8:P,256,8:P,1024,8:S,65536,8");
    assert_eq!(layout.smallest_p(), Some(1));
    assert_eq!((layout.largest(), layout.largest_payload()), (3, 65536));
    let fits = [(0, 0), (64, 0), (65, 1), (256, 1), (257, 2), (1025, 3), (65536, 3)];
    for (len, queue) in fits {
        assert_eq!(layout.for_payload(len), Some(queue), "{len} bytes");
    }
    assert_eq!(layout.for_payload(65537), None);
    assert_eq!(parse("S,64,8").smallest_p(), None);
    let queue = layout.queues()[1];
    let window = queue.window().expect("a P queue");
    assert_eq!((window.rd_num(), window.rd_win(), window.repost_at(), window.rd_rsv()), (8, 4, 2, 4));
    assert_eq!(queue.first_window(), Some(window.part(4)), "rd_init");
    assert_eq!(queue.srq(), None);
    assert_eq!((layout.queues()[0].window(), layout.queues()[0].first_window()), (None, None));
    assert_eq!(layout.queues()[0].srq(), Some(Srq { sd_max: 1, rd_init: 2, srq_limit: 1 }));
}

/// text, position, field, found, a part of what is expected
const DEFECTS: &[(&str, usize, Field, &str, &str)] = &[
    ("", 0, Field::Type, "", "P, S or X"),
    ("p,128,256", 0, Field::Type, "p", "upper case"),
    (" P,128,256", 0, Field::Type, " P", "no spaces"),
    ("P,128,256:", 10, Field::Type, "", "P, S or X"),
    ("P,128,256::S,256,8", 10, Field::Type, "", "P, S or X"),
    ("P", 1, Field::Size, "", "32 to 1073741824 bytes"),
    ("P,,256", 2, Field::Size, "", "32 to"),
    ("P,31,256", 2, Field::Size, "31", "32 to"),
    ("P,0x80,256", 2, Field::Size, "0x80", "a number"),
    ("P,+128,256", 2, Field::Size, "+128", "a number"),
    ("P,128 ,256", 2, Field::Size, "128 ", "a number"),
    ("P,99999999999999999999,256", 2, Field::Size, "99999999999999999999", "1073741824"),
    ("P,128", 5, Field::RdNum, "", "the number of buffers"),
    ("P,128,0", 6, Field::RdNum, "0", "1 to 32767"),
    ("P,128,32768", 6, Field::RdNum, "32768", "1 to 32767"),
    ("P,128,-4", 6, Field::RdNum, "-4", "1 to 32767"),
    ("P,128,256,256", 10, Field::RdLow, "256", "0 to 255 (less than rd_num)"),
    ("P,128,256,192,0", 14, Field::RdWin, "0", "1 to 256 (rd_num)"),
    ("P,128,256,192,257", 14, Field::RdWin, "257", "1 to 256 (rd_num)"),
    ("P,128,256,192,128,1", 18, Field::RdRsv, "1", "2 to 255"),
    ("P,128,256,192,128,256", 18, Field::RdRsv, "256", "2 to 255"),
    ("P,128,256,192,128,4,0", 20, Field::RdInit, "0", "1 to 256 (rd_num)"),
    ("P,128,256,192,128,4,257", 20, Field::RdInit, "257", "1 to 256 (rd_num)"),
    ("P,128,256,192,128,4,9,1", 22, Field::Extra, "1", "P,size,rd_num,rd_low,rd_win,rd_rsv,rd_init"),
    ("S,128,256,192,0", 14, Field::SdMax, "0", "1 to 32767"),
    ("S,128,256,192,48,257", 17, Field::RdInit, "257", "1 to 256 (rd_num)"),
    ("S,128,256,192,48,64,257", 20, Field::SrqLimit, "257", "0 to 256 (rd_num)"),
    ("S,128,256,192,48,64,12,1", 23, Field::Extra, "1", "srq_limit"),
    ("P,256,8:S,128,8", 10, Field::Size, "128", "257 to 1073741824 bytes (sizes ascend, queue 1 has 256)"),
    ("P,256,8:S,256,8", 10, Field::Size, "256", "257 to"),
    ("P,128,8:X,256,8", 8, Field::Type, "X", "P or S: they do not mix with X"),
    ("X,128,8:S,256,8", 8, Field::Type, "S", "X: it does not mix"),
    ("P,128,8:S,2\u{e9}6,8", 10, Field::Size, "2\u{e9}6", "a number"),
];

#[test]
fn every_defect_is_located_and_named() {
    for &(text, at, field, found, expected) in DEFECTS {
        let error = refuse(text);
        assert_eq!((error.at(), error.field(), error.found()), (at, field, found), "{error}");
        assert!(error.expected().contains(expected), "{error}\n  should expect: {expected}");
    }
}

#[test]
fn the_message_points_at_the_place() {
    let message = refuse("P,128,256,192,128:S,2048,1024,1024,64").to_string();
    let expected = [
        "receive_queues: queue 2, rd_low, at byte 30: found \"1024\", \
         expected a number from 0 to 1023 (less than rd_num)",
        "    P,128,256,192,128:S,2048,1024,1024,64",
        "                                  ^^^^",
    ];
    assert_eq!(message, expected.join("\n"));
    let end = refuse("P,128").to_string();
    assert!(end.contains("found the end"), "{end}");
    assert!(end.ends_with("\n    P,128\n         ^"), "{end}");
    let empty = refuse("P,,256").to_string();
    assert!(empty.contains("found nothing"), "more follows: {empty}");
}

#[test]
fn the_message_stays_readable_with_long_or_unprintable_text() {
    let many: Vec<String> = (0..14).map(|i| format!("P,{},256,192,128,4", 1000 + i)).collect();
    let long = refuse(&format!("{}:P,9,256:{}", many.join(":"), "S".repeat(100))).to_string();
    let lines: Vec<&str> = long.lines().collect();
    assert!(lines[1].len() < 120, "{long}");
    let caret = lines[2].find('^').expect("a caret");
    assert_eq!(lines[1].get(caret..=caret), Some("9"), "{long}");
    let bell = refuse("P,12\u{7}8,256").to_string();
    assert!(!bell.contains('\u{7}') && bell.contains("\\u{7}"), "{bell}");
}

#[test]
fn more_than_fifteen_queues_or_too_much_text_is_refused() {
    let list = |count| (0..count).map(|i| format!("P,{},8", 128 + i)).collect::<Vec<_>>().join(":");
    assert_eq!(parse(&list(15)).queues().len(), 15);
    let error = refuse(&list(16));
    assert_eq!((error.queue(), error.field(), error.at()), (16, Field::List, 15 * 8));
    let error = refuse(&format!("P,{}1,8", "\u{e9}".repeat(600)));
    assert_eq!((error.field(), error.at()), (Field::List, 1024));
    let long = |zeros| format!("P,{}128,8", "0".repeat(zeros));
    assert_eq!(parse(&long(MAX_TEXT - 7)), parse("P,128,8"), "as long as it may be");
    assert_eq!(refuse(&long(MAX_TEXT - 6)).at(), MAX_TEXT);
}

#[test]
fn a_layout_is_of_x_queues_or_of_others() {
    assert!(parse("X,128,8:X,256,8").is_xrc());
    assert!(!parse("P,128,8:S,256,8").is_xrc());
}

#[test]
fn limits_must_fit_in_the_last_queue() {
    let layout = parse("P,128,8:S,4096,8");
    assert_eq!(layout.check_limits(4096, 4096), Ok(()));
    let error = layout.check_limits(1024, 4097).expect_err("too large").to_string();
    assert!(error.contains("max_send_size is 4097") && error.contains("4096"), "{error}");
    let error = layout.check_limits(5000, 1024).expect_err("too large").to_string();
    assert!(error.contains("eager_limit is 5000"), "{error}");
}

fn queue(xrc: bool) -> impl Strategy<Value = Queue> {
    let numbers = prop_oneof![1..=8_u16, 1..=32767_u16];
    let depth = numbers.prop_flat_map(|num| (Just(num), 0..num, 1..=num, 0..=num));
    (depth, 1..=32767_u16, 2..=u8::MAX, any::<bool>()).prop_map(
        move |((num, low, up_to, limit), sd_max, rsv, p)| {
            let srq = Srq { sd_max, rd_init: up_to, srq_limit: limit };
            let kind = match (xrc, p) {
                (true, _) => Kind::Xrc(srq),
                (false, true) => {
                    Kind::PerPeer { rd_win: up_to, rd_rsv: rsv, rd_init: 1 + limit.min(num - 1) }
                }
                (false, false) => Kind::Shared(srq),
            };
            Queue { kind, size: 0, rd_num: num, rd_low: low }
        },
    )
}

fn queues() -> impl Strategy<Value = Vec<Queue>> {
    any::<bool>().prop_flat_map(|xrc| {
        let sizes = proptest::collection::btree_set(32..=(1_u32 << 30), 1..=15);
        (sizes, proptest::collection::vec(queue(xrc), 15)).prop_map(|(sizes, queues)| {
            sizes.into_iter().zip(queues).map(|(size, queue)| Queue { size, ..queue }).collect()
        })
    })
}

proptest! {
    #[test]
    fn canonical_strings_round_trip(queues in queues()) {
        let text: Vec<String> = queues.iter().map(Queue::to_string).collect();
        let text = text.join(":");
        let layout = Layout::parse(&text).map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(layout.queues(), &queues[..]);
        prop_assert_eq!(layout.to_string(), text);
        for queue in layout.queues() {
            prop_assert_eq!(queue.window().is_some(), queue.is_per_peer());
        }
    }

    #[test]
    fn any_string_either_parses_or_is_refused_at_a_place_inside_it(text in ".*") {
        check(&text)?;
    }

    #[test]
    fn strings_made_of_the_grammars_letters_keep_every_rule(text in "([PSX],)?[PSX0-9,: ]{0,60}") {
        check(&text)?;
    }

    /// Close to the grammar, so that most of it is reached: three to eight numbers a queue, many of
    /// them empty.
    #[test]
    fn near_misses_keep_every_rule(text in "[PSX](,([0-9]{0,5})?){2,7}(:[PSX](,([0-9]{0,5})?){2,7}){0,3}") {
        check(&text)?;
    }

    #[test]
    fn for_payload_is_the_smallest_that_fits(queues in queues(), len: usize) {
        let text: Vec<String> = queues.iter().map(Queue::to_string).collect();
        let layout = parse(&text.join(":"));
        let len = len % (layout.largest_payload() + 2);
        let fits = |queue: &Queue| queue.size as usize >= len;
        match layout.for_payload(len) {
            Some(index) => {
                prop_assert!(fits(&queues[index]));
                prop_assert!(!queues[..index].iter().any(fits));
            }
            None => prop_assert!(!queues.iter().any(fits)),
        }
    }
}

fn check(text: &str) -> Result<(), TestCaseError> {
    match Layout::parse(text) {
        Ok(layout) => {
            prop_assert_eq!(Layout::parse(&layout.to_string()), Ok(layout.clone()));
            let sizes: Vec<u32> = layout.queues().iter().map(|queue| queue.size).collect();
            prop_assert!(sizes.windows(2).all(|pair| pair[0] < pair[1]));
            for queue in layout.queues() {
                prop_assert!(queue.rd_low < queue.rd_num);
                prop_assert_eq!(queue.window().is_some(), queue.is_per_peer());
                if let (Some(window), Some(first)) = (queue.window(), queue.first_window()) {
                    prop_assert!((1..=window.rd_num()).contains(&first.rd_num()));
                    prop_assert!((1..=first.rd_num()).contains(&first.rd_win()));
                    prop_assert!((1..=first.rd_win()).contains(&first.repost_at()));
                }
                if let Some(srq) = queue.srq() {
                    prop_assert!(srq.sd_max >= 1 && srq.rd_init >= 1);
                    prop_assert!(srq.rd_init <= queue.rd_num && srq.srq_limit <= queue.rd_num);
                }
            }
        }
        Err(error) => {
            prop_assert!(error.at() <= text.len() && text.is_char_boundary(error.at()));
            prop_assert!(text[error.at()..].starts_with(error.found()));
            let message = error.to_string();
            prop_assert_eq!(message.lines().count(), 3, "{}", message);
        }
    }
    Ok(())
}

/// Both sides of a connection compute it: another value is another version of the CTS.
#[test]
fn the_fingerprint_is_the_fnv_1a_hash_of_the_canonical_string() {
    assert_eq!(parse("P,128,256").fingerprint(), 0x13a7_6043);
    assert_eq!(parse("P,128,256,192,128,4,32").fingerprint(), parse("P,128,").fingerprint());
    assert_ne!(parse("P,128,256").fingerprint(), parse("P,128,255").fingerprint());
}
