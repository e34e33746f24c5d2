//! Who this process is on the imaginary fabric: its node, its devices and their ports.
//!
//! ```text
//! settings   what the environment, or the program, asks for
//! node       the registry of named nodes: one number a name
//! gid        the port's GID table and what its rows are for
//! address    where a packet goes, and the route header it carries
//! ```
//!
//! Processes that name no node are one node, number 1. Each name (`SOFTIB_NODE`) stands for a host of its own. GUIDs derive from boot
//! id, user, name and port: every process can tell its own before anything is opened, and processes of one node agree. A port is known by its
//! place among all ports of the process, device by device: its LID is the node's number and so many strides.

pub(crate) mod address;
pub(crate) mod gid;
pub(crate) mod node;
mod settings;

pub use crate::shm::card::LinkLayer;
pub use address::ones_complement_sum as header_sum;
pub use gid::PortAddress;
pub(crate) use settings::{Copies, check_memory, cm_timeout, processors};
pub use settings::{Settings, SettingsError, Variable};

use crate::errno::Errno;
use crate::reason::{Cause, because};
use crate::shm::card::Card;
use crate::shm::folder::uid;
use crate::shm::segment::{boot_id, learn_boot_id};
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// How the devices' names begin; a number follows.
pub(crate) const NAME: &str = "softib";

/// Longest message (the port's max_msg_sz).
pub(crate) const MAX_MESSAGE: u32 = 1 << 30;

/// What [`choose`] has set.
static CHOSEN: Mutex<Option<Settings>> = Mutex::new(None);

/// Takes checked settings in the place of the environment variables.
pub(crate) fn choose(settings: Settings) {
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
}

/// What the program, else the environment, asks for.
pub(crate) fn settings() -> Result<Settings, SettingsError> {
    let chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    chosen.map_or_else(Settings::from_environment, Ok)
}

/// The link layer that the first port of this process has, or would have if it were opened.
pub fn link_layer() -> LinkLayer {
    settings().map_or(LinkLayer::InfiniBand, |settings| settings.link_layer(0))
}

/// The link layer of port `num` of a device; None: there is no such port.
pub fn link_layer_of(device: usize, num: u8) -> Option<LinkLayer> {
    let settings = settings().ok()?;
    let known = device < settings.devices && (1..=settings.ports).contains(&usize::from(num));
    known.then(|| settings.link_layer(device * settings.ports + usize::from(num) - 1))
}

/// The GUID of a device of this process' node, in network order: that of its first port.
pub(crate) fn guid(device: usize) -> [u8; 8] {
    let settings = settings().unwrap_or_default();
    guid_of(settings.node.as_deref(), device * settings.ports)
}

/// FNV-1a: identities only have to be stable and to differ.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

/// The GUID of port `at` of a node. What tells ports apart cannot be in a node's name.
fn guid_of(node: Option<&str>, at: usize) -> [u8; 8] {
    let host = boot_id().into_iter().chain(uid().to_be_bytes());
    let named = host.chain(node.unwrap_or_default().bytes());
    let port = (at > 0).then_some([0, at as u8]).into_iter().flatten();
    let mut guid = hash(named.chain(port)).to_be_bytes();
    // Locally administered EUI-64.
    guid[0] = 0x02;
    guid
}

/// The ports of all devices of this process: those of softib0, then those of softib1, and so on.
#[derive(Debug)]
pub(crate) struct Ports {
    cards: Vec<Card>,
    per_device: usize,
    /// The P_Key table, the same at all of them.
    pub pkeys: Vec<u16>,
    /// Those that are down, and neither send nor receive: bits by place.
    down: u8,
    /// They are iWARP ports, all of them.
    pub iwarp: bool,
    /// The claim to the node's number; the default node needs none.
    membership: Option<node::Membership>,
}

impl Ports {
    /// Joins the node that the settings name.
    pub fn open(dir: &Path) -> Result<Ports, Errno> {
        let known = settings().and_then(|settings| settings::check_environment().map(|()| settings));
        let settings = known.map_err(|error| because(Errno::INVAL, Cause::Setting, error))?;
        learn_boot_id()?;
        let membership = settings.node.as_deref().map(|name| node::join(dir, name)).transpose()?;
        let number = membership.as_ref().map_or(node::DEFAULT, node::Membership::number);
        let count = settings.devices * settings.ports;
        let cards = (0..count).map(|at| card_of(&settings, number, at)).collect();
        let iwarp = settings.link_layer(0) == LinkLayer::Iwarp;
        let (per_device, pkeys) = (settings.ports, settings.pkeys);
        Ok(Ports { cards, per_device, pkeys, down: 0, iwarp, membership })
    }

    /// All of them, in order.
    pub fn all(&self) -> &[Card] {
        &self.cards
    }

    /// The one at `place`, which [`Ports::place`] has said.
    pub fn card(&self, place: u8) -> &Card {
        self.cards.get(usize::from(place)).unwrap_or(&self.cards[0])
    }

    /// Every port is up.
    #[inline]
    pub fn are_up(&self) -> bool {
        self.down == 0
    }

    /// The one at `place` is up.
    pub fn is_up(&self, place: u8) -> bool {
        self.down >> (place & 7) & 1 == 0
    }

    /// Takes the one at `place` down, or brings it up. Whether that is a change.
    pub fn set_up(&mut self, place: u8, up: bool) -> bool {
        let (bit, was) = (1 << (place & 7), self.down);
        self.down = if up { was & !bit } else { was | bit };
        self.down != was
    }

    /// Those of a device.
    pub fn of_device(&self, device: usize) -> &[Card] {
        let first = device * self.per_device;
        self.cards.get(first..first + self.per_device).unwrap_or_default()
    }

    /// Where port `num` (1, 2, ...) of a device stands among all. EINVAL: the device has no such port.
    pub fn place(&self, device: usize, num: u8) -> Result<u8, Errno> {
        let place = device * self.per_device + usize::from(num).wrapping_sub(1);
        let known = (1..=self.per_device).contains(&usize::from(num)) && place < self.cards.len();
        if known { Ok(place as u8) } else { Err(Errno::INVAL) }
    }

    /// The number that the port at `place` has on its device.
    pub fn number(&self, place: u8) -> u8 {
        place % self.per_device() + 1
    }

    /// The device of the port at `place`.
    pub fn device(&self, place: u8) -> usize {
        usize::from(place) / self.per_device
    }

    /// Ports of each device.
    pub fn per_device(&self) -> u8 {
        self.per_device as u8
    }

    /// The P_Key in row `index`; 0, which matches nothing, when there is no such row.
    pub fn pkey(&self, index: u16) -> u16 {
        self.pkeys.get(usize::from(index)).copied().unwrap_or(0)
    }

    /// The descriptor that carries the claim to the node's number.
    pub fn lock_descriptor(&self) -> Option<i32> {
        self.membership.as_ref().map(node::Membership::descriptor)
    }

    /// Leaves the node, for a process that ends without dropping its engine.
    pub fn leave(&self) {
        if let Some(membership) = &self.membership {
            membership.leave();
        }
    }
}

/// How many bits of `address`, an address of a port of this process, are its network, if the settings say that.
pub fn prefix_of(address: IpAddr) -> Option<u8> {
    let settings = settings().ok()?;
    settings.gids.iter().flatten().find(|known| known.ip == address)?.prefix
}

/// Whether the settings give the first port this address.
pub fn has_address(address: IpAddr) -> bool {
    of_first_port(address).is_some()
}

fn of_first_port(address: IpAddr) -> Option<PortAddress> {
    let settings = settings().ok()?;
    settings.gids.first()?.iter().find(|known| known.ip == address).copied()
}

/// Whether `to` can be reached from `from`, an address that the settings give the first port: it is on the same network, or there is a
/// router.
pub fn leads(from: IpAddr, to: IpAddr) -> bool {
    let routed = settings().is_ok_and(|settings| settings.router) && from.is_ipv4() == to.is_ipv4();
    let on_network = |own: PortAddress| routed || own.prefix.is_none() || own.shares(to);
    of_first_port(from).is_some_and(on_network)
}

/// Port `at` of all, of node `number`. Each has addresses of its own, and those that the settings add to it. With a router between
/// networks they are as good as one.
fn card_of(settings: &Settings, number: u16, at: usize) -> Card {
    let link_layer = settings.link_layer(at);
    let guid = guid_of(settings.node.as_deref(), at);
    let number = number + at as u16 * node::STRIDE;
    let further = settings.gids.get(at).map_or(&[][..], Vec::as_slice);
    let lid = if link_layer == LinkLayer::InfiniBand { number } else { 0 };
    let rows = gid::table(link_layer, &guid, number, further).into_iter();
    let (gids, nets) = rows.map(|(gid, net)| (gid, if settings.router { 0 } else { net })).unzip();
    Card { link_layer, lid, guid, gids, nets }
}

/// Whether packets with one P_Key may pass to a queue pair with the other: the same partition, and one of them a full member (IBTA 10.9.3).
pub(crate) fn pkeys_match(one: u16, other: u16) -> bool {
    (one ^ other) & 0x7fff == 0 && one & 0x7fff != 0 && (one | other) & 0x8000 != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limited_members_of_a_partition_reach_only_full_ones() {
        assert!(pkeys_match(0xffff, 0xffff) && pkeys_match(0xffff, 0x7fff) && pkeys_match(0x0001, 0x8001));
        assert!(!pkeys_match(0x7fff, 0x7fff) && !pkeys_match(0x8001, 0x8002) && !pkeys_match(0x8000, 0x8000));
    }

    #[test]
    fn nodes_have_guids_of_their_own() {
        assert_eq!(guid_of(Some("a"), 0), guid_of(Some("a"), 0));
        assert_ne!(guid_of(Some("a"), 0), guid_of(Some("b"), 0));
        assert_ne!(guid_of(Some("a"), 0), guid_of(None, 0));
    }

    #[test]
    fn packets_stay_on_the_network_of_their_row_unless_there_is_a_router() {
        let card = |host: u8, router| {
            let at = |net| PortAddress { ip: [10, net, 0, host].into(), prefix: Some(24) };
            let (gids, link_layers) = (vec![vec![at(1), at(2)]], vec![LinkLayer::Ethernet]);
            card_of(&Settings { gids, link_layers, router, ..Settings::default() }, host.into(), 0)
        };
        let rows = |router| {
            let (one, other) = (card(7, router), card(8, router));
            let to = |from: u8, row: usize| address::Address {
                dgid: other.gids[row],
                flow_label: 0,
                dlid: 0,
                sgid_index: from,
                hop_limit: 64,
                traffic_class: 0,
                sl: 0,
                global: true,
                port: 0,
            };
            [(1, 1), (3, 3), (5, 5), (3, 5), (1, 3)]
                .map(|(from, row)| to(from, row).find(&one, std::slice::from_ref(&other)).is_some())
        };
        assert_eq!(rows(false), [true, true, true, false, false]);
        assert_eq!(rows(true), [true; 5]);
    }

    #[test]
    fn ports_have_addresses_of_their_own_and_none_of_another_nodes() {
        let settings = Settings { devices: 2, ports: 4, ..Settings::default() };
        let cards = |number| (0..8).map(|at| card_of(&settings, number, at)).collect::<Vec<_>>();
        let mut lids: Vec<u16> =
            [1, 2, node::STRIDE - 1].into_iter().flat_map(cards).map(|card| card.lid).collect();
        assert!(lids.iter().all(|lid| (1..0xc000).contains(lid)), "{lids:?}");
        lids.sort_unstable();
        lids.dedup();
        assert_eq!(lids.len(), 24);
        let mut guids: Vec<_> = cards(1).into_iter().map(|card| card.guid).collect();
        guids.sort_unstable();
        guids.dedup();
        assert_eq!(guids.len(), 8);
    }
}
