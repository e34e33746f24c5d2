//! Who this process is on the imaginary fabric: its node and its port.
//!
//! ```text
//! settings   what the environment, or the program, asks for
//! node       the registry of named nodes: one LID a name
//! gid        the port's GID table and what its rows are for
//! address    where a packet goes, and the route header it carries
//! card       what peers may know of a port: a part of the segment's header
//! ```
//!
//! Processes that name no node are one node, LID 1. Each name (`SOFTIB_NODE`) stands for a host of its own. GUIDs derive from boot
//! id, user and name: every process can tell its own before anything is opened, and processes of one node agree.

pub(crate) mod address;
pub(crate) mod card;
pub(crate) mod gid;
pub(crate) mod node;
mod settings;

pub use address::ones_complement_sum as header_sum;
pub use settings::{LinkLayer, Settings, SettingsError, Variable};

use crate::errno::Errno;
use crate::shm::segment::{boot_id, uid};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The device's name.
pub(crate) const NAME: &str = "softib0";

/// What [`configure`] has set.
static CHOSEN: Mutex<Option<Settings>> = Mutex::new(None);

/// Chooses the node and the port of this process, in the place of the environment variables. Settings hold from the next time the device
/// is opened after all its contexts have been closed; `EBUSY` while it is open.
pub fn configure(settings: Settings) -> Result<(), Errno> {
    settings.check().map_err(|_| Errno::INVAL)?;
    if crate::engine::current().is_some() {
        return Err(Errno::BUSY);
    }
    *CHOSEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(settings);
    Ok(())
}

/// What the program, else the environment, asks for.
pub(crate) fn settings() -> Result<Settings, SettingsError> {
    let chosen = CHOSEN.lock().unwrap_or_else(PoisonError::into_inner).clone();
    chosen.map_or_else(Settings::from_environment, Ok)
}

/// The settings, for opening the device: what is wrong with them is said once on standard error.
fn settings_or_complaint() -> Result<Settings, Errno> {
    static ONCE: std::sync::Once = std::sync::Once::new();
    settings().map_err(|error| {
        ONCE.call_once(|| eprintln!("softib: {error}"));
        Errno::INVAL
    })
}

/// The type of a filled row of the GID table (`ibv_gid_type`); None for any other, or when the device is not open.
pub fn gid_type(index: usize) -> Option<u32> {
    let engine = crate::engine::current()?;
    let state = engine.enter();
    let port = &state.w.port;
    port.gids.get(index).map(|_| gid::kind(port.link_layer, index))
}

/// The link layer that this process' port has, or would have if it were opened.
pub fn link_layer() -> LinkLayer {
    settings().map_or(LinkLayer::InfiniBand, |settings| settings.link_layer)
}

/// The GUID of the node that this process belongs to, in network order.
pub(crate) fn guid() -> [u8; 8] {
    guid_of(settings().ok().and_then(|settings| settings.node).as_deref())
}

/// FNV-1a: identities only have to be stable and to differ.
fn hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3))
}

fn guid_of(node: Option<&str>) -> [u8; 8] {
    let host = boot_id().into_iter().chain(uid().to_be_bytes());
    let mut guid = hash(host.chain(node.unwrap_or_default().bytes())).to_be_bytes();
    // Locally administered EUI-64.
    guid[0] = 0x02;
    guid
}

/// The port of this process.
#[derive(Debug)]
pub(crate) struct Port {
    pub link_layer: LinkLayer,
    /// 0 on Ethernet.
    pub lid: u16,
    pub guid: [u8; 8],
    pub gids: Vec<[u8; 16]>,
    pub pkeys: Vec<u16>,
    /// Down: it neither sends nor receives.
    pub up: bool,
    /// The claim to the node's number; the default node needs none.
    membership: Option<node::Membership>,
}

impl Port {
    /// Joins the node that the settings name.
    pub fn open(dir: &Path) -> Result<Port, Errno> {
        let settings = settings_or_complaint()?;
        let membership = settings.node.as_deref().map(|name| node::join(dir, name)).transpose()?;
        let number = membership.as_ref().map_or(node::DEFAULT, node::Membership::number);
        let guid = guid_of(settings.node.as_deref());
        let lid = if settings.link_layer == LinkLayer::InfiniBand { number } else { 0 };
        let gids = gid::table(settings.link_layer, &guid, number, &settings.gids);
        let (link_layer, pkeys) = (settings.link_layer, settings.pkeys);
        Ok(Port { link_layer, lid, guid, gids, pkeys, up: true, membership })
    }

    /// The GID in row `index`, all zeroes if nothing has been put there; None when there is no such row.
    pub fn gid(&self, index: usize) -> Option<[u8; 16]> {
        let empty = (index < gid::rows(self.link_layer)).then_some([0; 16]);
        self.gids.get(index).copied().or(empty)
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
        assert_eq!(guid_of(Some("a")), guid_of(Some("a")));
        assert_ne!(guid_of(Some("a")), guid_of(Some("b")));
        assert_ne!(guid_of(Some("a")), guid_of(None));
    }
}
