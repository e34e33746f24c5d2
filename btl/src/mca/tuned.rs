//! What a port is opened with: what the user has set, else what the files of device parameters say,
//! else the default. Each value by itself.
#![forbid(unsafe_code)]

use super::params::Params;
use crate::protocol::device_ini::{Devices, Setting};
use crate::protocol::layout::{self, Layout};
use crate::transport::config::Eager;
use crate::transport::device::Port;
use std::fmt::Display;

/// Inline bytes that `auto` asks for: the smallest queue's messages of the default layout.
const DEFAULT_INLINE: u32 = 136;

/// The same on the kernel's soft RoCE, as much as it takes: it copies each message into packets, and one that is inline needs no buffer
/// and no look at a memory region.
const RXE_INLINE: u32 = 512;

/// Vendor and part of soft RoCE, which softib has, too.
const RXE: (u32, u32) = (0x00ff_ffff, 0);

/// Slots of a ring of eager RDMA.
const SLOTS: u16 = 1024;

/// The same on the software device, where messages of up to 12 KiB go there: what they are written to is not in its reader's own caches any more, from
/// where each line would have to be taken (docs/tuning.md).
const SOFT_SLOTS: u16 = 4096;

/// Looks after which a ring of eager RDMA that has not been used is looked at less often: a millisecond or two.
const COOLING: u32 = 1 << 16;

/// Eager limit where messages are gathered. From here on a rendezvous takes about as long, and needs no memory for what is not expected.
const GATHERED_EAGER: usize = 65_664;

/// The same on the kernel's soft RoCE, where copies are as long and a round trip is dear (docs/tuning.md).
const RXE_EAGER: usize = 41_088;

/// The layout of the port. The default has shared queues, which need RNR, and that iWARP lacks:
/// there it has a default of its own.
pub fn layout(port: &Port, params: &Params) -> Layout {
    let chosen = params.chosen.receive_queues;
    let layout = pick(chosen, &params.layout, port.settings.receive_queues.as_ref());
    let default = |text| Layout::parse(text).ok();
    if !port.context.is_iwarp() || Some(layout) != default(layout::DEFAULT).as_ref() {
        return layout.clone();
    }
    default(layout::IWARP).unwrap_or_else(|| layout.clone())
}

/// Bytes that may go inline.
pub fn max_inline(port: &Port, params: &Params) -> u32 {
    let inline = pick(params.chosen.max_inline, &params.max_inline, port.settings.max_inline.as_ref());
    inline.unwrap_or(if is_rxe(port) { RXE_INLINE } else { DEFAULT_INLINE })
}

/// The kernel's soft RoCE.
fn is_rxe(port: &Port) -> bool {
    port.vendor == RXE && !port.soft
}

/// Whether messages are handed to the device in their pieces: on the software device, unless the user or a file limits what goes inline, or
/// `reconnects` asks for copies.
pub fn gathers(port: &Port, params: &Params) -> bool {
    let inline = pick(params.chosen.max_inline, &params.max_inline, port.settings.max_inline.as_ref());
    port.soft && inline.is_none() && params.reconnects == 0
}

/// Whether short messages go by eager RDMA, and how: on the software device and on soft RoCE, unless the user or a file says no, and where they say
/// yes. With checksums, unless that is set, on a device that is not known to write in the order of addresses.
pub fn eager(port: &Port, params: &Params) -> Option<Eager> {
    let by_file = port.settings.use_eager_rdma.as_ref().map(|setting| setting.value);
    let asked = params.use_eager_rdma.or(by_file).unwrap_or(port.soft || is_rxe(port));
    let in_order = port.soft || by_file == Some(true);
    asked.then_some(Eager {
        slots: params.eager_rdma_num.unwrap_or(if port.soft { SOFT_SLOTS } else { SLOTS }),
        threshold: params.eager_rdma_threshold,
        most: params.max_eager_rdma,
        cooling: COOLING,
        checks: params.eager_rdma_checksum.unwrap_or(!in_order),
    })
}

/// Up to how many bytes a message is sent at once, if the user has set nothing: `usual`, or more where messages are gathered, which costs
/// no copy at the sender and takes two thirds to half of the time of a rendezvous, and on soft RoCE (docs/tuning.md).
pub fn eager_limit(port: &Port, params: &Params, usual: usize) -> usize {
    match layout(port, params).is_xrc() {
        true => usual,
        false if gathers(port, params) => GATHERED_EAGER,
        false if is_rxe(port) => RXE_EAGER,
        false => usual,
    }
}

/// Gives the ports the path MTU of their files, where the user has set none.
pub fn limit_mtu(ports: &mut [Port], params: &Params) {
    for port in ports {
        let mtu = pick(params.chosen.mtu, &params.mtu, port.settings.mtu.as_ref()).unwrap_or(0);
        port.limit_mtu(mtu);
        if let Some(alternate) = &mut port.alternate {
            alternate.limit_mtu(mtu);
        }
    }
}

fn pick<'a, T>(chosen: bool, parameter: &'a T, file: Option<&'a Setting<T>>) -> &'a T {
    file.filter(|_| !chosen).map_or(parameter, |setting| &setting.value)
}

/// One line for each section that is about the port's device and for each of its values.
pub fn tell(port: &Port, devices: &Devices, params: &Params) {
    let name = port.context.name();
    let (vendor, part) = port.vendor;
    for origin in devices.origins(port.vendor) {
        log::debug!("{name} (vendor {vendor:#x}, part {part:#x}): device parameters of {origin} apply");
    }
    let settings = &port.settings;
    tell_value(name, "receive_queues", params.chosen.receive_queues, settings.receive_queues.as_ref());
    let auto = |value: Option<u32>| value.map_or_else(|| "auto".to_owned(), |bytes| bytes.to_string());
    let mtu = settings.mtu.clone().map(|setting| setting.map(auto));
    tell_value(name, "mtu", params.chosen.mtu, mtu.as_ref());
    let inline = settings.max_inline.clone().map(|setting| setting.map(auto));
    tell_value(name, "max_inline", params.chosen.max_inline, inline.as_ref());
    log::debug!(
        "{name} port {}: receive queues {}, mtu {}",
        port.num,
        layout(port, params),
        port.mtu.bytes()
    );
    if is_rxe(port) && eager(port, params).is_some_and(|eager| !eager.checks) {
        log::warn!(
            "{name}: messages by eager RDMA without checksums may be damaged: soft RoCE writes the bytes of a request in the order in which its \
             kernel's memcpy does, and on some processors that is not the order of their addresses. Leave btl_oxib_eager_rdma_checksum at auto, \
             unless this is a test"
        );
    }
}

fn tell_value<T: Display>(device: &str, parameter: &str, chosen: bool, file: Option<&Setting<T>>) {
    match file {
        None => (),
        Some(Setting { origin, .. }) if chosen => {
            log::debug!("{device}: btl_oxib_{parameter} is set and wins over {origin}");
        }
        Some(Setting { value, origin }) => log::debug!("{device}: {parameter} {value} from {origin}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mca::params::Chosen;
    use crate::transport::device::{self, Choice, Filter, PortConfig};
    use verbs::Driver;

    const FILE: &str = "[a]\nvendor_id = 0xffffff\nvendor_part_id = 0\nmtu = 512\nmax_inline_data = 64\n\
                        receive_queues = P,128,64,48,32,4\n";

    /// softib's port under a file.
    fn port(text: &str) -> Port {
        let mut known = Devices::default();
        known.read("a.ini", text.as_bytes()).expect("a section");
        let filter = Filter { known, ..Filter::default() };
        let config = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
        let soft = || Ok(Driver::from_table(softib::driver_table()));
        device::find(&Choice::Soft, &filter, config, soft).expect("softib").remove(0)
    }

    fn params(chosen: Chosen) -> Params {
        let params = Params::parse(None, |row| match row.name() {
            "mtu" => Some("1024"),
            "max_inline" => Some("auto"),
            _ => None,
        });
        Params { chosen, ..params.expect("good values") }
    }

    #[test]
    fn a_file_wins_over_the_default_and_a_value_that_is_set_over_the_file() {
        let mut ports = [port(FILE)];
        let unset = params(Chosen::default());
        assert_eq!(layout(&ports[0], &unset).to_string(), "P,128,64,48,32,4,8");
        assert_eq!(max_inline(&ports[0], &unset), 64);
        limit_mtu(&mut ports, &unset);
        assert_eq!(ports[0].mtu.bytes(), 512);

        let set = params(Chosen { receive_queues: true, max_inline: true, mtu: true });
        assert_eq!(layout(&ports[0], &set).to_string(), layout::DEFAULT);
        assert_eq!(max_inline(&ports[0], &set), DEFAULT_INLINE, "auto, as it is set");
        limit_mtu(&mut ports, &set);
        assert_eq!(ports[0].mtu.bytes(), 1024);
    }

    #[test]
    fn more_goes_inline_on_soft_roce_than_on_other_devices() {
        let auto = params(Chosen::default());
        assert_eq!(max_inline(&port(""), &auto), DEFAULT_INLINE, "softib has its numbers");
        let rxe = Port { soft: false, ..port("") };
        assert_eq!(max_inline(&rxe, &auto), RXE_INLINE);
        assert_eq!(max_inline(&Port { vendor: (0x2c9, 0x1017), ..rxe }, &auto), DEFAULT_INLINE);
        let set = Params { max_inline: Some(64), ..params(Chosen { max_inline: true, ..Chosen::default() }) };
        assert_eq!(max_inline(&Port { soft: false, ..port("") }, &set), 64);
    }

    #[test]
    fn eager_rdma_is_for_softib_soft_roce_and_those_who_ask_for_it_and_what_is_set_wins_over_a_file() {
        let by_file = |text: &str| eager(&port(text), &params(Chosen::default()));
        let adapter = |text: &str| Port { soft: false, ..port(text) };
        let soft = Eager { slots: SOFT_SLOTS, threshold: 16, most: 16, cooling: COOLING, checks: false };
        let rings = Eager { slots: SLOTS, ..soft };
        assert_eq!(by_file(""), Some(soft));
        assert_eq!(by_file("[default]\nuse_eager_rdma = 0\n"), None);
        let checked = Eager { checks: true, ..rings };
        assert_eq!(eager(&adapter(""), &params(Chosen::default())), Some(checked), "soft RoCE");
        let other = Port { vendor: (0x2c9, 0x1017), ..adapter("") };
        assert_eq!(eager(&other, &params(Chosen::default())), None);
        assert_eq!(
            eager(&adapter("[default]\nuse_eager_rdma = 1\n"), &params(Chosen::default())),
            Some(rings)
        );
        let set =
            |use_eager_rdma| Params { use_eager_rdma: Some(use_eager_rdma), ..params(Chosen::default()) };
        assert_eq!(eager(&other, &set(true)), Some(checked));
        assert_eq!(eager(&adapter("[default]\nuse_eager_rdma = 1\n"), &set(true)), Some(rings));
        let checks = |checks| Params { eager_rdma_checksum: Some(checks), ..set(true) };
        assert_eq!(eager(&other, &checks(false)), Some(rings));
        assert_eq!(eager(&port(""), &checks(true)), Some(Eager { checks: true, ..soft }));
        let of_64 = Params { eager_rdma_num: Some(64), ..params(Chosen::default()) };
        assert_eq!(eager(&port(""), &of_64), Some(Eager { slots: 64, ..soft }));
        assert_eq!(eager(&port(""), &set(false)), None);
        assert_eq!(eager(&port("[default]\nuse_eager_rdma = 1\n"), &set(false)), None);
    }

    #[test]
    fn messages_are_gathered_where_nobody_limits_what_goes_inline_and_none_is_replayed() {
        let auto = params(Chosen::default());
        assert!(gathers(&port(""), &auto));
        assert!(!gathers(&Port { soft: false, ..port("") }, &auto));
        assert!(!gathers(&port("[default]\nmax_inline_data = 32\n"), &auto));
        assert!(!gathers(&port(""), &Params { reconnects: 1, ..params(Chosen::default()) }));
        assert!(!gathers(&port(""), &Params { max_inline: Some(0), ..params(Chosen::default()) }));
        assert_eq!(eager_limit(&port(""), &auto, 12288), GATHERED_EAGER);
        assert_eq!(
            layout(&port(""), &auto).largest_payload(),
            GATHERED_EAGER,
            "64 KiB with ob1's header fit"
        );
        let rxe = Port { soft: false, ..port("") };
        assert_eq!(eager_limit(&rxe, &auto, 12288), RXE_EAGER);
        assert_eq!(eager_limit(&Port { vendor: (0x2c9, 0x1017), ..rxe }, &auto, 12288), 12288);
        let xrc = Layout::parse("X,2048,64:X,65536,64").expect("a layout");
        assert_eq!(eager_limit(&port(""), &Params { layout: xrc, ..auto }, 12288), 12288);
    }

    #[test]
    fn each_value_is_taken_by_itself() {
        let port = port("[default]\nmax_inline_data = 32\n");
        let set = params(Chosen { mtu: true, ..Chosen::default() });
        assert_eq!(
            (max_inline(&port, &set), layout(&port, &set).to_string().as_str()),
            (32, layout::DEFAULT)
        );
    }
}
