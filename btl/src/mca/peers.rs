//! Peers: which processes a module can reach, from what they published.
//!
//! A peer that runs without oxib, speaks another version, or is not reachable through this port is
//! simply left to Open MPI's other transports; one whose layout differs is left out with a message,
//! for its user made a mistake. A process says that once, about the first such peer; what the
//! processes of a node have in common is said by the first of them.

use super::modex_io::{self, Published};
use super::module::{Module, from_raw, to_raw};
use super::show::{Report, once_on_node};
use crate::protocol::modex::{Advert, DeviceKind, Modex, Port};
use crate::protocol::pairing::pairs;
use crate::transport::{AddError, EpId};
use cpc::GidPair;
use opal_sys::*;
use std::ffi::c_int;
use std::net::Ipv6Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use verbs::Gid;

/// What this process published; the modules compare peers with it.
static OURS: Mutex<Option<Modex>> = Mutex::new(None);

/// The job has no other transport.
static ALONE: AtomicBool = AtomicBool::new(false);

/// Another transport takes a process' messages to itself.
static HAS_SELF: AtomicBool = AtomicBool::new(false);

/// A peer that cannot be reached has been reported.
static REPORTED: AtomicBool = AtomicBool::new(false);

/// What transports the job has.
#[derive(Clone, Copy, Debug)]
pub struct Job {
    /// None but oxib.
    pub alone: bool,
    /// One that takes a process' messages to itself.
    pub has_self: bool,
}

/// Publishes and remembers our addresses.
///
/// # Errors
/// What does not fit, or what the runtime said.
pub fn publish(abi: &Abi, ours: Modex, job: Job) -> Result<(), String> {
    let bytes = ours.encode().map_err(|e| e.to_string())?;
    modex_io::publish(abi, &bytes).map_err(|e| e.to_string())?;
    ALONE.store(job.alone, Ordering::Relaxed);
    HAS_SELF.store(job.has_self, Ordering::Relaxed);
    *OURS.lock().unwrap_or_else(PoisonError::into_inner) = Some(ours);
    Ok(())
}

/// Why a peer is not reached through this module.
#[derive(Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// Nothing wrong: another transport serves it.
    Other(String),
    /// Nothing wrong where another transport serves it; where none was asked for, the user should
    /// know.
    Apart(String),
    /// They do not fit, as the peer sees, too: the user should know.
    Mismatch(String),
    /// Something that it takes cannot be had here: the user should know.
    Shortage(String),
}

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Unreachable::Other(reason)
            | Unreachable::Apart(reason)
            | Unreachable::Mismatch(reason)
            | Unreachable::Shortage(reason) => f.write_str(reason),
        }
    }
}

impl Unreachable {
    fn concerns_the_user(&self, alone: bool) -> bool {
        match self {
            Unreachable::Other(_) => false,
            Unreachable::Apart(_) => alone,
            Unreachable::Mismatch(_) | Unreachable::Shortage(_) => true,
        }
    }

    /// Says it, if it concerns the user and is the first. `neighbours`: the peer is on our node, and so are
    /// others that meet the same.
    #[cold]
    fn tell(&self, abi: &Abi, neighbours: bool) {
        let alone = ALONE.load(Ordering::Relaxed);
        if !self.concerns_the_user(alone) || REPORTED.swap(true, Ordering::Relaxed) {
            return log::debug!("left to other transports: {self}");
        }
        let goes_on = "Open MPI goes on with its other transports, if there are any.";
        let report = Report::own(
            format!("Two processes of this job cannot reach each other over oxib;\n{goes_on}"),
            "",
        );
        let report = report.with("Process", abi.my_name().to_string()).with("Why", self.to_string());
        if neighbours && !matches!(self, Unreachable::Shortage(_)) {
            once_on_node(abi, "apart", || report.write());
        } else {
            report.write();
        }
    }
}

/// `btl_add_procs`: fills in an endpoint for each process that we reach. The bitmap is NULL when
/// Open MPI asks for one process, later.
pub fn add_all(
    module: &'static Module,
    procs: &[*mut opal_proc_t],
    endpoints: &mut [*mut mca_btl_base_endpoint_t],
    reachable: *mut opal_bitmap_t,
) -> c_int {
    let me = module.abi().my_name();
    for (index, (process, endpoint)) in procs.iter().zip(endpoints).enumerate() {
        if process.is_null() {
            continue;
        }
        // SAFETY: Open MPI hands over live processes.
        let name = unsafe { (**process).proc_name };
        let added = if name == me { module.add_itself(*process) } else { module.add_peer(*process) };
        match added {
            Ok(id) => {
                *endpoint = to_raw(id);
                // SAFETY: the bitmap of this very call, or NULL.
                if let Err(status) = unsafe { module.abi().set_bit(reachable, index) } {
                    return status;
                }
            }
            // SAFETY: Open MPI hands over live processes.
            Err(reason) => reason.tell(module.abi(), unsafe { (**process).is_on_local_node() }),
        }
    }
    OPAL_SUCCESS
}

impl Module {
    /// Makes the endpoint of this process, for one-sided operations on its own memory.
    ///
    /// # Errors
    /// Why there is none.
    fn add_itself(&'static self, process: *mut opal_proc_t) -> Result<EpId, Unreachable> {
        if !self.has_atomics() || !HAS_SELF.load(Ordering::Relaxed) {
            return Err(Unreachable::Other("a process reaches itself over another transport".into()));
        }
        let me = self.abi().my_name();
        self.with(|state| {
            let Some(transport) = &mut state.transport else {
                return Err(Unreachable::Other("closed".into()));
            };
            let id = transport
                .add_itself(me.word())
                .map_err(|error| Unreachable::Shortage(format!("{me}: {error}")))?;
            state.procs.insert(id, process);
            Ok(id)
        })
    }

    /// Makes the endpoint of one process.
    ///
    /// # Errors
    /// Why it is not reached.
    pub fn add_peer(&'static self, process: *mut opal_proc_t) -> Result<EpId, Unreachable> {
        // SAFETY: Open MPI hands over live processes, and keeps those that it names.
        let name = unsafe { (*process).proc_name };
        let theirs = fetch(self, name)?;
        let (port, gids) = {
            let ours = OURS.lock().unwrap_or_else(PoisonError::into_inner);
            let ours = ours.as_ref().ok_or_else(|| Unreachable::Other("nothing is published".into()))?;
            let (port, gids) = pair(ours, &theirs, self.index(), name)?;
            (port.clone(), gids)
        };
        if let Some(GidPair { ours, theirs }) = gids {
            let words = |gid: Gid| Ipv6Addr::from(gid.0);
            log::debug!(
                "{name}: {} meets it over GID {}, its is {}",
                self.port_name(),
                words(ours),
                words(theirs)
            );
        }
        let _reports_have_them = softib::carry_reasons();
        let adverts: Vec<cpc::Advert> = port.adverts.into_iter().map(to_cpc).collect();
        self.with(|state| {
            let Some(transport) = &mut state.transport else {
                return Err(Unreachable::Other("closed".into()));
            };
            let id = transport.add_over(name.word(), &adverts, gids).map_err(|error| match error {
                AddError::Select(_) => Unreachable::Mismatch(format!("{name}: {error}")),
                _ => Unreachable::Shortage(format!("{name}: {error}")),
            })?;
            state.procs.insert(id, process);
            Ok(id)
        })
    }
}

fn fetch(module: &Module, name: opal_process_name_t) -> Result<Modex, Unreachable> {
    let bytes = match modex_io::fetch(module.abi(), name) {
        Ok(Published::Addresses(bytes)) => bytes,
        Ok(Published::Nothing(None)) => return Err(Unreachable::Other(format!("{name} runs without oxib"))),
        Ok(Published::Nothing(Some(reason))) => {
            return Err(Unreachable::Mismatch(format!("{name} takes no part. {reason}")));
        }
        Err(error) => return Err(Unreachable::Other(format!("addresses of {name}: {error}"))),
    };
    Modex::decode(&bytes).map_err(|error| {
        module.transport((), |t| t.stats.refused += 1);
        Unreachable::Mismatch(format!("addresses of {name} are refused: {error}"))
    })
}

/// The peer's port that our port number `index` talks to, and over which GIDs, on RoCE.
fn pair<'a>(
    ours: &Modex,
    theirs: &'a Modex,
    index: usize,
    name: opal_process_name_t,
) -> Result<(&'a Port, Option<GidPair>), Unreachable> {
    if let Some(reason) = differs(ours, theirs) {
        return Err(Unreachable::Apart(format!("{name} {reason}")));
    }
    let mine = ours.ports.get(index).ok_or_else(|| Unreachable::Other("no such port of ours".into()))?;
    let pairs = pairs(&ours.ports, &theirs.ports);
    let joined = pairs.iter().find(|pair| pair.ours == index);
    let (port, rows) = joined
        .and_then(|pair| Some((theirs.ports.get(pair.theirs)?, pair.rows)))
        .ok_or_else(|| apart(!pairs.is_empty(), ours, theirs, index, name))?;
    if port.layout != mine.layout {
        return Err(Unreachable::Mismatch(format!(
            "{name} has other receive queues: {} there, {} here; give all processes the same btl_oxib_receive_queues",
            port.layout, mine.layout
        )));
    }
    let gid = |port: &Port, row: usize| port.rows.rows.get(row).map(|row| Gid(row.gid));
    let gids = |(own, its)| Some(GidPair { ours: gid(mine, own)?, theirs: gid(port, its)? });
    Ok((port, rows.and_then(gids)))
}

/// Why the devices of two processes do not reach each other, whatever their ports.
fn differs(ours: &Modex, theirs: &Modex) -> Option<String> {
    let kind = |modex: &Modex| match modex.device {
        DeviceKind::Soft => "the software device",
        DeviceKind::Hard => "RDMA hardware",
    };
    if ours.device != theirs.device {
        return Some(format!("uses {}, this process {}: see btl_oxib_device", kind(theirs), kind(ours)));
    }
    if ours.device == DeviceKind::Hard || ours.shares_segments(theirs) {
        return None;
    }
    Some(if ours.boot_id != theirs.boot_id {
        "runs on another host, and the software device reaches processes of its own host only".to_owned()
    } else if ours.uid != theirs.uid {
        format!(
            "runs as user {}, this process as user {}: the software device reaches processes of its own user only",
            theirs.uid, ours.uid
        )
    } else {
        format!(
            "has its segments in {}, this process in {}: set the same SOFTIB_DIR for all (mpirun -x SOFTIB_DIR)",
            theirs.segment_dir, ours.segment_dir
        )
    })
}

/// Why module `index` has no port to talk to. That none of ours has one is told once, by the first.
fn apart(joined: bool, ours: &Modex, theirs: &Modex, index: usize, name: opal_process_name_t) -> Unreachable {
    if joined || index > 0 || theirs.ports.is_empty() {
        return Unreachable::Other(format!("{name} has no port for this one of ours"));
    }
    Unreachable::Mismatch(format!(
        "{name} has no port on a subnet of ours: {} there, {} here; check btl_oxib_if_include, btl_oxib_if_exclude and, \
         on RoCE, btl_oxib_gid_index of both",
        subnets(theirs),
        subnets(ours)
    ))
}

/// The kinds and subnets of a process' ports, in words.
fn subnets(modex: &Modex) -> String {
    let of = |port: &Port| match Ipv6Addr::from(port.gid).to_ipv4_mapped() {
        Some(address) => format!("{:?} IPv4 {address}", port.link_layer),
        None => format!("{:?} {:016x}", port.link_layer, u64::from_be_bytes(port.subnet_prefix())),
    };
    modex.ports.iter().map(of).collect::<Vec<_>>().join(", ")
}

fn to_cpc(advert: Advert) -> cpc::Advert {
    cpc::Advert { name: advert.name, priority: advert.priority, blob: advert.blob }
}

/// `btl_del_procs`.
pub fn remove_all(module: &'static Module, endpoints: &[*mut mca_btl_base_endpoint_t]) -> c_int {
    let ids: Vec<EpId> = endpoints.iter().filter(|e| !e.is_null()).map(|e| from_raw(*e)).collect();
    ids.iter().for_each(|id| log::debug!("endpoint {} is taken down", id.index));
    module.remove(&ids);
    OPAL_SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::layout::Layout;
    use crate::protocol::modex::LinkLayer;
    use crate::protocol::roce::{Row, Rows, Version};

    const NAME: opal_process_name_t = opal_process_name_t { jobid: 1, vpid: 2 };

    fn port(subnet: u8, layout: &str) -> Port {
        let mut gid = [0; 16];
        gid[0] = subnet;
        let layout = Layout::parse(layout).unwrap();
        Port {
            gid,
            lid: 1,
            mtu: 5,
            link_layer: LinkLayer::InfiniBand,
            layout,
            adverts: Vec::new(),
            rows: Rows::default(),
        }
    }

    fn modex(device: DeviceKind, uid: u32, ports: Vec<Port>) -> Modex {
        Modex { boot_id: [7; 16], uid, device, segment_dir: "/dev/shm".into(), ports }
    }

    #[test]
    fn ports_pair_up_subnet_by_subnet() {
        let layout = "P,4096,8";
        let ours = modex(DeviceKind::Hard, 0, vec![port(1, layout), port(2, layout), port(1, layout)]);
        let theirs = modex(DeviceKind::Hard, 0, vec![port(2, layout), port(1, layout)]);
        assert_eq!(pair(&ours, &theirs, 0, NAME).map(|(p, _)| p.gid[0]), Ok(1));
        assert_eq!(pair(&ours, &theirs, 1, NAME).map(|(p, _)| p.gid[0]), Ok(2));
        assert!(matches!(pair(&ours, &theirs, 2, NAME), Err(Unreachable::Other(_))));
    }

    #[test]
    fn ranks_without_a_common_subnet_are_told_once_with_both_sides() {
        let layout = "P,4096,8";
        let ours = modex(DeviceKind::Hard, 0, vec![port(1, layout), port(2, layout)]);
        let mut theirs = modex(DeviceKind::Hard, 0, vec![port(3, layout)]);
        let Err(Unreachable::Mismatch(text)) = pair(&ours, &theirs, 0, NAME) else { panic!("paired") };
        assert!(text.contains("0300000000000000 there") && text.contains("0200000000000000 here"), "{text}");
        assert!(matches!(pair(&ours, &theirs, 1, NAME), Err(Unreachable::Other(_))));
        theirs.ports.push(port(2, layout));
        assert!(matches!(pair(&ours, &theirs, 0, NAME), Err(Unreachable::Other(_))));
        assert!(pair(&ours, &theirs, 1, NAME).is_ok());
    }

    #[test]
    fn roce_ports_with_ipv4_gids_pair_up_and_one_with_another_gid_is_told_apart() {
        let at = |gid: &str| {
            let gid = gid.parse::<Ipv6Addr>().expect("an address").octets();
            let rows = Rows { version: Version::V2, rows: vec![Row { gid, prefix: None }] };
            Port { gid, link_layer: LinkLayer::Ethernet, rows, ..port(0, "P,4096,8") }
        };
        let process = |gid: &str| modex(DeviceKind::Hard, 0, vec![at(gid)]);
        let ours = process("::ffff:10.1.0.7");
        assert!(pair(&ours, &process("::ffff:10.1.0.8"), 0, NAME).is_ok());
        let Err(Unreachable::Mismatch(text)) = pair(&ours, &process("fe80::8"), 0, NAME) else {
            panic!("paired")
        };
        assert!(text.contains("Ethernet fe80000000000000 there, Ethernet IPv4 10.1.0.7 here"), "{text}");
        assert!(text.contains("btl_oxib_gid_index"), "{text}");
    }

    #[test]
    fn a_software_device_reaches_its_own_host_and_user_only() {
        let ours = modex(DeviceKind::Soft, 0, vec![port(1, "P,4096,8")]);
        let mut theirs = ours.clone();
        assert!(pair(&ours, &theirs, 0, NAME).is_ok());
        theirs.uid = 1;
        says(&ours, &theirs, "runs as user 1, this process as user 0");
        let hard = modex(DeviceKind::Hard, 0, vec![port(1, "P,4096,8")]);
        says(&ours, &hard, "uses RDMA hardware, this process the software device");
        let folder = Modex { segment_dir: "/elsewhere".into(), ..ours.clone() };
        says(&ours, &folder, "/elsewhere, this process in /dev/shm: set the same SOFTIB_DIR");
        let away = Modex { boot_id: [8; 16], uid: 1, ..ours.clone() };
        says(&ours, &away, "runs on another host");
    }

    /// The reason, and that it concerns the user only where oxib is the only transport.
    fn says(ours: &Modex, theirs: &Modex, words: &str) {
        let Err(why) = pair(ours, theirs, 0, NAME) else { panic!("paired") };
        assert!(why.to_string().contains(words), "{why}");
        assert!(why.concerns_the_user(true) && !why.concerns_the_user(false), "{why}");
    }

    #[test]
    fn different_layouts_are_refused_with_both_shown() {
        let ours = modex(DeviceKind::Soft, 0, vec![port(1, "P,4096,8")]);
        let theirs = modex(DeviceKind::Soft, 0, vec![port(1, "P,8192,8")]);
        let Err(Unreachable::Mismatch(text)) = pair(&ours, &theirs, 0, NAME) else { panic!("paired") };
        assert!(text.contains("P,4096,8") && text.contains("P,8192,8"), "{text}");
    }
}
