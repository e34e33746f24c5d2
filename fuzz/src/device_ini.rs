//! A file of device parameters.

use mca_btl_oxib::protocol::device_ini::{Devices, MAX_FILE};

pub(crate) fn run(data: &[u8]) {
    let mut devices = Devices::default();
    match devices.read("a.ini", data) {
        Ok(()) => applied(data, &devices),
        Err(error) => {
            let lines = data.split(|byte| *byte == b'\n').count();
            assert!((1..=lines).contains(&error.line), "the line is one of the file");
            let line = data.split(|byte| *byte == b'\n').nth(error.line - 1).unwrap_or_default();
            assert!((1..=line.len() + 1).contains(&error.column), "the column is one of the line");
            assert!(error.to_string().starts_with("a.ini:"), "the message says where");
            assert_eq!(devices.origins(ADAPTER).count(), 0, "nothing of a refused file is kept");
        }
    }
}

/// Vendor and part of a device that files of the corpus are about.
const ADAPTER: (u32, u32) = (0x2c9, 4119);

/// What a file says of a device is the same after a second reading of it, from the second one.
fn applied(data: &[u8], devices: &Devices) {
    assert!(data.len() <= MAX_FILE);
    for device in [ADAPTER, (0, 0), (u32::MAX, u32::MAX)] {
        let once = devices.settings(device);
        assert!(once.receive_queues.iter().all(|layout| !layout.value.queues().is_empty()));
        assert!(once.mtu.iter().all(|mtu| mtu.value.is_none_or(|bytes| (256..=4096).contains(&bytes))));
        let mut twice = devices.clone();
        twice.read("b.ini", data).expect("what has been read can be read again");
        let again = twice.settings(device);
        let from_second = |line: Option<usize>, now: Option<(usize, &str)>| {
            assert_eq!(now, line.map(|line| (line, "b.ini")), "later files win");
        };
        from_second(
            once.mtu.map(|s| s.origin.line),
            again.mtu.as_ref().map(|s| (s.origin.line, &*s.origin.file)),
        );
        from_second(
            once.ignore.map(|s| s.origin.line),
            again.ignore.as_ref().map(|s| (s.origin.line, &*s.origin.file)),
        );
        assert_eq!(once.receive_queues.map(|s| s.value), again.receive_queues.map(|s| s.value));
        assert_eq!(once.max_inline.map(|s| s.value), again.max_inline.map(|s| s.value));
    }
}
