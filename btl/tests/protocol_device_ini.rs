//! Files of device parameters: which section applies, which value wins, errors that point, and no
//! panic on any bytes.

#![allow(clippy::expect_used, clippy::panic, reason = "helpers of tests")]

use mca_btl_oxib::protocol::device_ini::{Devices, IniError, KEYS, MAX_FILE, Settings};
use mca_btl_oxib::protocol::layout::{IWARP, Layout};
use proptest::prelude::*;

const DEVICE: (u32, u32) = (0x2c9, 4119);

/// A section for [`DEVICE`], without the lines that say what applies.
const HEAD: &str = "[ours]\nvendor_id = 0x2c9\nvendor_part_id = 4119\n";

fn devices(files: &[&str]) -> Devices {
    let mut devices = Devices::default();
    for (index, text) in files.iter().enumerate() {
        devices
            .read(&format!("{index}.ini"), text.as_bytes())
            .unwrap_or_else(|error| panic!("{error}\n{text}"));
    }
    devices
}

fn settings(files: &[&str]) -> Settings {
    devices(files).settings(DEVICE)
}

fn refuse(content: &[u8]) -> IniError {
    Devices::default().read("a.ini", content).expect_err("an error")
}

fn mtu(settings: &Settings) -> Option<Option<u32>> {
    settings.mtu.as_ref().map(|mtu| mtu.value)
}

#[test]
fn a_section_means_each_of_its_vendors_with_each_of_its_parts() {
    let text = "[a]\nvendor_id = 1, 0x2\nvendor_part_id = 10,0x0B , 12\nmtu = 512\n";
    let devices = devices(&[text]);
    let set = |vendor, part| mtu(&devices.settings((vendor, part))).is_some();
    for (vendor, part) in [(1, 10), (1, 11), (1, 12), (2, 10), (2, 11), (2, 12)] {
        assert!(set(vendor, part), "{vendor} {part}");
    }
    assert!(!set(3, 10) && !set(1, 13) && !set(10, 1));
}

#[test]
fn every_key_is_read_in_any_case_of_letters_beside_comments_and_line_ends_of_windows() {
    let text = "# first\r\n\r\n[ ours ] # why\r\nVendor_ID=713#.\r\n  VENDOR_PART_ID\t=\t0X1017 \r\n\
                receive_queues = P,128,64 : no, # no\r\n";
    let error = refuse(text.as_bytes());
    assert_eq!((error.line, error.column), (6, 24), "{error}");
    let text =
        text.replace(" : no,", ":S,4096,32") + "mtu = 2048\nmax_inline_data = 0x40\nignore_device = 1\n";
    let settings = settings(&[&text]);
    let layout = settings.receive_queues.as_ref().expect("a layout");
    assert_eq!(layout.value.to_string(), "P,128,64,48,32,4,8:S,4096,32,24,6,8,1");
    assert_eq!(
        (mtu(&settings), settings.max_inline.as_ref().map(|s| s.value)),
        (Some(Some(2048)), Some(Some(64)))
    );
    assert_eq!(settings.ignored().map(ToString::to_string).as_deref(), Some("0.ini:9 [ours]"));
}

#[test]
fn auto_is_a_value_that_wins_over_a_number() {
    let number = format!("{HEAD}mtu = 512\nmax_inline_data = 64\n");
    for inline in ["auto", "-1"] {
        let auto = format!("{HEAD}mtu = auto\nmax_inline_data = {inline}\n");
        let settings = settings(&[&number, &auto]);
        assert_eq!(mtu(&settings), Some(None));
        assert_eq!(settings.max_inline.map(|inline| inline.value), Some(None));
    }
}

#[test]
fn later_sections_and_files_win_key_by_key_and_every_file_of_a_list_counts() {
    let first = format!("{HEAD}mtu = 512\nmax_inline_data = 64\n{HEAD}mtu = 1024\n");
    let last = format!("{HEAD}mtu = 4096\n");
    let settings = settings(&[&first, &last]);
    let at = |origin: &dyn ToString| origin.to_string();
    assert_eq!(
        settings.mtu.as_ref().map(|s| (s.value, at(&s.origin))),
        Some((Some(4096), "1.ini:4 [ours]".into()))
    );
    let inline = settings.max_inline.expect("of the first section");
    assert_eq!((inline.value, at(&inline.origin)), (Some(64), "0.ini:5 [ours]".into()));
}

#[test]
fn the_default_section_speaks_where_no_section_of_the_device_does_wherever_it_stands() {
    let own = format!("{HEAD}mtu = 512\n");
    let all = "[Default]\nmtu = 256\nmax_inline_data = 32\nignore_device = 1\n";
    let devices = devices(&[&own, all]);
    let known = devices.settings(DEVICE);
    assert_eq!((mtu(&known), known.max_inline.as_ref().map(|s| s.value)), (Some(Some(512)), Some(Some(32))));
    assert!(known.ignored().is_some());
    assert_eq!(mtu(&devices.settings((9, 9))), Some(Some(256)));
    let origins: Vec<String> = devices.origins(DEVICE).map(ToString::to_string).collect();
    assert_eq!(origins, ["1.ini:1 [Default]", "0.ini:1 [ours]"]);
}

#[test]
fn a_section_may_use_what_default_ignores() {
    let used = settings(&["[default]\nignore_device = 1\n", &format!("{HEAD}ignore_device = 0\n")]);
    assert_eq!(used.ignored(), None);
}

#[test]
fn what_one_device_is_told_does_not_stay_for_the_next() {
    let devices = devices(&[&format!("{HEAD}mtu = 256\nignore_device = 1\n")]);
    assert!(devices.settings(DEVICE).ignored().is_some());
    assert_eq!(devices.settings((0x2c9, 4120)), Settings::default());
}

#[test]
fn keys_of_openib_without_effect_are_read() {
    for key in KEYS.iter().filter(|key| key.ignored.is_some()) {
        let text = format!("{HEAD}{} = 1\n", key.name);
        assert_eq!(settings(&[&text]), Settings::default(), "{}", key.name);
    }
}

#[test]
fn a_refused_file_adds_nothing() {
    let mut devices = devices(&[]);
    let text = format!("{HEAD}mtu = 256\n[b\n");
    assert!(devices.read("a.ini", text.as_bytes()).is_err());
    assert_eq!(devices.settings(DEVICE), Settings::default());
}

/// Lines of a section for [`DEVICE`] from line 4 on; line, column, what is found, what is expected.
const BAD_LINES: &[(&str, usize, usize, &str, &str)] = &[
    ("mtu 2048", 4, 9, "the end of the line", "= and a value after \"mtu 2048\""),
    ("mtu  # later", 4, 4, "the end of the line", "= and a value after \"mtu\""),
    ("mtu =", 4, 6, "the end of the line", "a value for mtu"),
    ("mtu = # none", 4, 6, "the end of the line", "a value for mtu"),
    ("mtu = 1000", 4, 7, "\"1000\"", "256, 512, 1024, 2048, 4096 or auto"),
    ("mtu = 8192", 4, 7, "\"8192\"", "4096 or auto"),
    ("mtu = 256\nmtu = 512", 5, 1, "\"mtu\"", "this one has it on line 4"),
    ("VENDOR_ID = 1", 4, 1, "\"VENDOR_ID\"", "this one has it on line 2"),
    (
        "  reveice_queues = P,128",
        4,
        3,
        "\"reveice_queues\"",
        "one of vendor_id, vendor_part_id, receive_queues",
    ),
    ("= 5", 4, 1, "nothing", "a key"),
    ("receive_queues = P,128,64:Q,2048,16", 4, 27, "\"Q\"", ", as type of queue 2"),
    ("receive_queues = P,128", 4, 23, "the end of the line", ", as rd_num of queue 1"),
    ("receive_queues = P,,64", 4, 20, "nothing", ", as size of queue 1"),
    ("max_inline_data = -2", 4, 19, "\"-2\"", "auto (-1)"),
    ("max_inline_data = 1048577", 4, 19, "\"1048577\"", "0 to 1048576"),
    ("ignore_device = yes", 4, 17, "\"yes\"", "0 (the device is used) or 1"),
    ("use_eager_rdma =", 4, 17, "the end of the line", "a value for use_eager_rdma"),
    ("[next", 4, 6, "the end of the line", "] after \"[next\""),
    ("[next] mtu = 5", 4, 8, "\"mtu = 5\"", "the end of the line after ]"),
    ("[ ]", 4, 1, "\"[ ]\"", "a name between"),
    ("[next]\nvendor_part_id = 1", 4, 1, "\"[next]\"", "a vendor_id in the section"),
    ("[next]\nvendor_id = 1\n\n[third]", 4, 1, "\"[next]\"", "a vendor_part_id in the section"),
    ("[a]\nvendor_id = 1,,2", 5, 15, "nothing", "a number"),
    ("[a]\nvendor_id = 1,", 5, 15, "the end of the line", "a number"),
    ("[a]\nvendor_id = 0x100000000", 5, 13, "\"0x100000000\"", "0 to 0xffffffff"),
    ("[a]\nvendor_id = 12ab", 5, 13, "\"12ab\"", "0x1017"),
    ("[a]\nvendor_id = 1, +2", 5, 16, "\"+2\"", "a number"),
    ("[default]\nvendor_id = 1", 5, 13, "\"1\"", "it is for all"),
    ("größe = 5", 4, 1, "\"größe\"", "a key"),
    ("mtu = größer", 4, 7, "\"größer\"", "256"),
    ("ü = 5 [", 4, 1, "\"ü\"", "a key"),
];

#[test]
fn errors_say_where_what_was_found_and_what_may_stand_there() {
    for &(lines, line, column, found, expected) in BAD_LINES {
        let error = refuse(format!("{HEAD}{lines}\n").as_bytes());
        assert_eq!(
            (&*error.file, error.line, error.column, &*error.found),
            ("a.ini", line, column, found),
            "{lines}"
        );
        assert!(error.expected.contains(expected), "{lines}: {error}");
    }
    assert_eq!(
        refuse(format!("{HEAD}mtu = 1000").as_bytes()).to_string(),
        "a.ini:4:7: found \"1000\", expected 256, 512, 1024, 2048, 4096 or auto"
    );
}

#[test]
fn a_key_before_the_first_section_bytes_that_are_no_text_and_endless_files_are_errors() {
    let error = refuse(b"# one\nmtu = 256\n");
    assert_eq!((error.line, error.column, &*error.expected), (2, 1, "a [section] before the first key"));
    let error = refuse(b"[a]\n# \xc3\xb6 \xff\n");
    assert_eq!((error.line, error.column, &*error.found), (2, 5, "the byte 0xff"));
    assert!(refuse(&vec![b'\n'; MAX_FILE + 1]).expected.contains("at most 1048576 bytes"));
    assert!(Devices::default().read("a.ini", &vec![b'\n'; MAX_FILE]).is_ok(), "as long as it may be");
    let long = refuse(format!("{HEAD}{} = 1", "x".repeat(500)).as_bytes());
    assert!(long.to_string().len() < 300, "{long}");
}

#[test]
fn an_empty_file_says_nothing() {
    for text in ["", "\n\n", "# only\n\t # comments", "[default]"] {
        assert_eq!(settings(&[text]), Settings::default());
    }
}

/// The file that comes with the plugin.
const SHIPPED: &str = include_str!("../../configs/oxib-device-params.ini");

#[test]
fn the_file_that_ships_changes_no_default_and_knows_softib() {
    let devices = devices(&[SHIPPED]);
    let softib = (0xff_ffff, 0);
    assert_eq!(devices.settings(softib), Settings::default());
    let names: Vec<&str> = devices.origins(softib).map(|origin| &*origin.section).collect();
    assert_eq!(names, ["softib and rxe"]);
    for iwarp in [(0x62_6d74, 1), (0x1425, 0x5410), (0x8086, 0x37d0)] {
        let layout = devices.settings(iwarp).receive_queues.expect("a layout").value;
        assert_eq!(layout, Layout::parse(IWARP).expect("the default"), "{iwarp:?}");
    }
    for line in SHIPPED.lines().filter(|line| line.contains('=')) {
        let quiet = ["vendor_id", "vendor_part_id", "receive_queues"];
        assert!(line.starts_with('#') || quiet.iter().any(|key| line.starts_with(key)), "{line}");
    }
    let sections = SHIPPED.lines().filter(|line| line.starts_with('[')).count();
    assert!(sections >= 12, "{sections}");
}

/// Lines that are nearly right.
fn line() -> impl Strategy<Value = String> {
    let word = prop::sample::select(vec![
        "[a]",
        "[default]",
        "[",
        "]",
        "vendor_id",
        "vendor_part_id",
        "mtu",
        "receive_queues",
        "max_inline_data",
        "ignore_device",
        "=",
        " = ",
        "1",
        "0x2c9",
        "4119",
        "256",
        "auto",
        "-1",
        ",",
        "P,128,64",
        ":",
        "#",
        "ü",
        "\r",
        "\0",
    ]);
    prop::collection::vec(word, 0..6).prop_map(|words| words.concat())
}

/// What the numbers of an error point at exists.
fn check(content: &[u8]) {
    if let Err(error) = Devices::default().read("a.ini", content) {
        let line = content.split(|byte| *byte == b'\n').nth(error.line - 1).expect("a line of the file");
        let length = String::from_utf8_lossy(line).chars().count();
        assert!((1..=length + 1).contains(&error.column), "{error}");
        assert!(!error.found.is_empty() && !error.expected.is_empty());
    }
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused_at_a_place_that_exists(content in prop::collection::vec(any::<u8>(), 0..200)) {
        check(&content);
    }

    #[test]
    fn lines_that_are_nearly_right_are_read_or_refused_at_a_place_that_exists(lines in prop::collection::vec(line(), 0..12)) {
        check(lines.join("\n").as_bytes());
    }

    #[test]
    fn ids_are_the_same_in_decimal_and_hexadecimal(vendor: u32, part: u32) {
        let text = format!("[a]\nvendor_id = {vendor}\nvendor_part_id = {part:#x}\nmtu = 256\n");
        prop_assert_eq!(mtu(&devices(&[&text]).settings((vendor, part))), Some(Some(256)));
    }
}
