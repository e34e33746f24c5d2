//! What a process asks its devices and ports to be.

use super::gid::PortAddress;
use crate::shm::card::LinkLayer;
use crate::shm::layout::PORTS;
use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

/// Longest name of a node, in bytes.
pub(crate) const NAME_MAX: usize = 60;
/// Rows of the P_Key table, and addresses on top of those that every port has.
const PKEYS_MAX: usize = 16;
const GIDS_MAX: usize = 6;
/// The default partition, full membership.
const DEFAULT_PKEY: u16 = 0xffff;

/// Node, devices and ports of a process. Processes of one node should agree in all but the P_Keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The host that this process pretends to be on (`SOFTIB_NODE`); None: the default one.
    pub node: Option<String>,
    /// How many devices there are (`SOFTIB_DEVICES`), from 1.
    pub devices: usize,
    /// How many ports each has (`SOFTIB_PORTS`), from 1; at most 8 in all.
    pub ports: usize,
    /// The ports' kinds in order (`SOFTIB_LINK_LAYER`); the last is that of all further ones. iWARP: all are.
    pub link_layers: Vec<LinkLayer>,
    /// The P_Key table (`SOFTIB_PKEYS`), host order, 1 to 16 rows.
    pub pkeys: Vec<u16>,
    /// Addresses for the ports' GID tables, port by port, on top of those that every port has (`SOFTIB_GIDS`), at most 6 each.
    pub gids: Vec<Vec<PortAddress>>,
    /// A router connects the networks of these addresses (`SOFTIB_ROUTER`).
    pub router: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            node: None,
            devices: 1,
            ports: 1,
            link_layers: vec![LinkLayer::InfiniBand],
            pkeys: vec![DEFAULT_PKEY],
            gids: Vec::new(),
            router: false,
        }
    }
}

/// The setting whose value is wrong, and what it should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variable {
    /// A node's name: 1 to 60 bytes without control characters.
    Node,
    /// From 1; 8 with the ports of all.
    Devices,
    /// From 1; 8 with those of all devices.
    Ports,
    /// `infiniband` and `ethernet`, port by port, or `iwarp`.
    LinkLayer,
    /// 1 to 16 numbers with a partition other than 0.
    PKeys,
    /// Up to 6 IPv4 or IPv6 addresses for each port.
    Gids,
    /// `0` or `1`.
    Router,
    /// `0`, `node`, `late` or `1`.
    Copies,
    /// A number of milliseconds.
    CmTimeout,
    /// `0` or `1`.
    CheckMemory,
    /// From 1.
    Processors,
}

/// A setting that cannot be understood; names the variable, its value, and what was expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SettingsError {
    /// Which setting.
    pub variable: Variable,
    /// Its value.
    pub value: String,
}

impl fmt::Display for SettingsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, expected) = match self.variable {
            Variable::Node => ("SOFTIB_NODE", "a name of 1 to 60 bytes without control characters"),
            Variable::Devices => ("SOFTIB_DEVICES", "a number from 1; devices times ports at most 8"),
            Variable::Ports => ("SOFTIB_PORTS", "a number from 1; devices times ports at most 8"),
            Variable::LinkLayer => (
                "SOFTIB_LINK_LAYER",
                "infiniband, ethernet or iwarp, or port by port like infiniband,ethernet (iwarp only for all)",
            ),
            Variable::PKeys => {
                ("SOFTIB_PKEYS", "1 to 16 numbers of 16 bits like 0xffff,0x8001, none of partition 0")
            }
            Variable::Gids => (
                "SOFTIB_GIDS",
                "up to 6 addresses like fd00::5,192.0.2.7/24, those of the next port behind a semicolon",
            ),
            Variable::Router => ("SOFTIB_ROUTER", "0 or 1"),
            Variable::Copies => (
                "SOFTIB_CMA",
                "0 (never), node (within a node), late (where a peer is late) or 1 (wherever it is allowed)",
            ),
            Variable::CmTimeout => ("SOFTIB_CM_TIMEOUT", "a number of milliseconds"),
            Variable::CheckMemory => ("SOFTIB_CHECK_MEMORY", "0 or 1"),
            Variable::Processors => ("SOFTIB_PROCESSORS", "a number from 1"),
        };
        write!(f, "{name}={:?}: expected {expected}", self.value)
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// What the environment variables say.
    pub fn from_environment() -> Result<Settings, SettingsError> {
        Settings::from_variables(variable)
    }

    /// What these variables say: `variable` knows the value of each that is set to something.
    pub fn from_variables(variable: impl Fn(&str) -> Option<String>) -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        if let Some(name) = variable("SOFTIB_NODE") {
            settings.node = Some(name);
        }
        if let Some(text) = variable("SOFTIB_LINK_LAYER") {
            settings.link_layers =
                list(&text, link_layer).ok_or_else(|| error(Variable::LinkLayer, &text))?;
        }
        if let Some(text) = variable("SOFTIB_DEVICES") {
            settings.devices = text.parse().map_err(|_| error(Variable::Devices, &text))?;
        }
        if let Some(text) = variable("SOFTIB_PORTS") {
            settings.ports = text.parse().map_err(|_| error(Variable::Ports, &text))?;
        }
        if let Some(text) = variable("SOFTIB_PKEYS") {
            settings.pkeys = list(&text, number).ok_or_else(|| error(Variable::PKeys, &text))?;
        }
        if let Some(text) = variable("SOFTIB_GIDS") {
            settings.gids = addresses(&text).ok_or_else(|| error(Variable::Gids, &text))?;
        }
        settings.router = switch(variable("SOFTIB_ROUTER"), Variable::Router)?;
        settings.check().map(|()| settings)
    }

    /// The kind of port `at` of all.
    pub(crate) fn link_layer(&self, at: usize) -> LinkLayer {
        let last = self.link_layers.last();
        self.link_layers.get(at).or(last).copied().unwrap_or_default()
    }

    /// Whether all values are possible.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        if let Some(name) = &self.node
            && (name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control))
        {
            return Err(error(Variable::Node, name));
        }
        if !(1..=PORTS).contains(&self.devices) {
            return Err(error(Variable::Devices, &self.devices.to_string()));
        }
        if !(1..=PORTS / self.devices).contains(&self.ports) {
            return Err(error(Variable::Ports, &self.ports.to_string()));
        }
        let iwarp = self.link_layers.iter().filter(|kind| **kind == LinkLayer::Iwarp).count();
        if self.link_layers.is_empty() || iwarp != 0 && iwarp != self.link_layers.len() {
            return Err(error(Variable::LinkLayer, &format!("{:?}", self.link_layers)));
        }
        let fair =
            (1..=PKEYS_MAX).contains(&self.pkeys.len()) && self.pkeys.iter().all(|key| key & 0x7fff != 0);
        if !fair {
            return Err(error(Variable::PKeys, &format!("{:x?}", self.pkeys)));
        }
        let fair = |of_port: &Vec<PortAddress>| of_port.len() <= GIDS_MAX && of_port.iter().all(is_fair);
        if self.gids.len() > PORTS || !self.gids.iter().all(fair) {
            return Err(error(Variable::Gids, &format!("{:?}", self.gids)));
        }
        Ok(())
    }
}

/// An address that a port can have, on a network of a size that there is.
fn is_fair(address: &PortAddress) -> bool {
    let most = if address.ip.is_ipv4() { 32 } else { 128 };
    let network = address.prefix.is_none_or(|len| (1..=most).contains(&len));
    network && !address.ip.is_unspecified() && !address.ip.is_multicast()
}

fn error(variable: Variable, value: &str) -> SettingsError {
    SettingsError { variable, value: value.to_owned() }
}

/// Between which processes process_vm_* may be used (`SOFTIB_CMA`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Copies {
    /// None.
    Never,
    /// Processes of one node.
    WithinNode,
    /// All, but only for what a peer that looks at its rings does not move in time.
    Late,
    /// All, where the system allows it.
    Anywhere,
}

impl Copies {
    /// What the environment asks for.
    pub fn from_environment() -> Result<Copies, SettingsError> {
        variable("SOFTIB_CMA").map_or(Ok(Copies::Anywhere), |text| Copies::parse(&text))
    }

    fn parse(text: &str) -> Result<Copies, SettingsError> {
        match text {
            "0" => Ok(Copies::Never),
            "node" => Ok(Copies::WithinNode),
            "late" => Ok(Copies::Late),
            "1" => Ok(Copies::Anywhere),
            _ => Err(error(Variable::Copies, text)),
        }
    }
}

/// How long a message of the connection manager may go unanswered (`SOFTIB_CM_TIMEOUT`), if the environment says.
pub(crate) fn cm_timeout() -> Result<Option<Duration>, SettingsError> {
    let parse = |text: String| text.parse().map_err(|_| error(Variable::CmTimeout, &text));
    Ok(variable("SOFTIB_CM_TIMEOUT").map(parse).transpose()?.map(Duration::from_millis))
}

/// Whether RDMA asks if registered memory is still the same (`SOFTIB_CHECK_MEMORY`).
pub(crate) fn check_memory() -> Result<bool, SettingsError> {
    switch(variable("SOFTIB_CHECK_MEMORY"), Variable::CheckMemory)
}

/// How many processes can look at their rings at the same time (`SOFTIB_PROCESSORS`): as many as the machine has processors, if the
/// environment says nothing.
pub(crate) fn processors() -> Result<usize, SettingsError> {
    let parse = |text: String| {
        text.parse().ok().filter(|count| *count != 0).ok_or_else(|| error(Variable::Processors, &text))
    };
    // SAFETY: it takes a number, and returns one.
    let online = || usize::try_from(unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) }).unwrap_or(1);
    variable("SOFTIB_PROCESSORS").map_or_else(|| Ok(online()), parse)
}

/// A variable that is off (`0`, or not set) or on (`1`).
fn switch(value: Option<String>, about: Variable) -> Result<bool, SettingsError> {
    match value.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(text) => Err(error(about, text)),
    }
}

/// Whether the variables that are no settings of ports can be understood.
pub(crate) fn check_environment() -> Result<(), SettingsError> {
    Copies::from_environment()?;
    check_memory()?;
    processors()?;
    cm_timeout().map(drop)
}

/// A variable that is set to something.
fn variable(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()).filter(|value| !value.is_empty())
}

fn link_layer(text: &str) -> Option<LinkLayer> {
    match text {
        "infiniband" => Some(LinkLayer::InfiniBand),
        "ethernet" => Some(LinkLayer::Ethernet),
        "iwarp" => Some(LinkLayer::Iwarp),
        _ => None,
    }
}

fn list<T>(text: &str, parse: impl Fn(&str) -> Option<T>) -> Option<Vec<T>> {
    text.split(',').map(|item| parse(item.trim())).collect()
}

fn number(text: &str) -> Option<u16> {
    match text.strip_prefix("0x") {
        Some(digits) => u16::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Addresses port by port; a port may have none.
fn addresses(text: &str) -> Option<Vec<Vec<PortAddress>>> {
    let of_port = |text: &str| {
        if text.trim().is_empty() { Some(Vec::new()) } else { list(text, address) }
    };
    text.split(';').map(of_port).collect()
}

fn address(text: &str) -> Option<PortAddress> {
    let (ip, prefix) = match text.split_once('/') {
        Some((ip, prefix)) => (ip, Some(prefix.parse().ok()?)),
        None => (text, None),
    };
    let ip = ip.parse().map(|ip: IpAddr| ip.to_canonical()).ok()?;
    Some(PortAddress { ip, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_item_by_item() {
        assert_eq!(list("0xffff, 0x8001,12", number), Some(vec![0xffff, 0x8001, 12]));
        assert_eq!(list("0xffff,", number), None);
        assert_eq!(list("0x10000", number), None);
        let at = |ip: &str, prefix| PortAddress { ip: ip.parse().unwrap(), prefix };
        let first = vec![at("192.0.2.7", None), at("fd00::5", Some(64))];
        let all = vec![first, vec![], vec![at("10.1.0.7", Some(24))]];
        assert_eq!(addresses("192.0.2.7, fd00::5/64;;10.1.0.7/24"), Some(all));
        assert_eq!(addresses("10.1.0.7/"), None);
    }

    #[test]
    fn a_word_that_means_no_copies_to_nobody_is_not_taken_for_everywhere() {
        assert_eq!(Copies::parse("node"), Ok(Copies::WithinNode));
        let refused = Copies::parse("no").unwrap_err().to_string();
        assert!(refused.starts_with("SOFTIB_CMA=\"no\": expected 0"), "{refused}");
    }

    #[test]
    fn impossible_values_are_named() {
        let bad = Settings { pkeys: vec![0x8000], ..Settings::default() };
        assert_eq!(bad.check().unwrap_err().variable, Variable::PKeys);
        let bad = Settings { node: Some("a\nb".into()), ..Settings::default() };
        assert!(bad.check().unwrap_err().to_string().starts_with("SOFTIB_NODE=\"a\\nb\": expected"));
        let bad = Settings { devices: 3, ports: 3, ..Settings::default() };
        assert_eq!(bad.check().unwrap_err().variable, Variable::Ports);
        let bad = Settings { devices: 9, ..Settings::default() };
        assert_eq!(bad.check().unwrap_err().variable, Variable::Devices);
        let mixed = vec![LinkLayer::InfiniBand, LinkLayer::Iwarp];
        let bad = Settings { ports: 2, link_layers: mixed, ..Settings::default() };
        assert_eq!(bad.check().unwrap_err().variable, Variable::LinkLayer);
        for text in ["ff02::1", "10.1.0.7/33", "10.1.0.7/0", "fd00::5/129"] {
            let bad = Settings { gids: addresses(text).unwrap(), ..Settings::default() };
            assert_eq!(bad.check().unwrap_err().variable, Variable::Gids, "{text}");
        }
    }
}
