//! What a process asks its port to be.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Longest name of a node, in bytes.
pub(crate) const NAME_MAX: usize = 60;
/// Rows of the P_Key table, and addresses on top of those that every port has.
const PKEYS_MAX: usize = 16;
const GIDS_MAX: usize = 6;
/// The default partition, full membership.
const DEFAULT_PKEY: u16 = 0xffff;

/// What carries the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LinkLayer {
    /// LIDs; a global route is a choice.
    #[default]
    InfiniBand,
    /// RoCE: GIDs only.
    Ethernet,
    /// iWARP: Ethernet as well, but connections are TCP's, and come by RDMA-CM only.
    Iwarp,
}

/// Node and port of a process. Processes of one node should agree in all but the P_Keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The host that this process pretends to be on (`SOFTIB_NODE`); None: the default one.
    pub node: Option<String>,
    /// `SOFTIB_LINK_LAYER`
    pub link_layer: LinkLayer,
    /// The P_Key table (`SOFTIB_PKEYS`), host order, 1 to 16 rows.
    pub pkeys: Vec<u16>,
    /// Addresses for the GID table on top of those that every port has (`SOFTIB_GIDS`), at most 6.
    pub gids: Vec<Ipv6Addr>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            node: None,
            link_layer: LinkLayer::InfiniBand,
            pkeys: vec![DEFAULT_PKEY],
            gids: Vec::new(),
        }
    }
}

/// The setting whose value is wrong, and what it should have been.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variable {
    /// A node's name: 1 to 60 bytes without control characters.
    Node,
    /// `infiniband`, `ethernet` or `iwarp`
    LinkLayer,
    /// 1 to 16 numbers with a partition other than 0.
    PKeys,
    /// Up to 6 IPv4 or IPv6 addresses.
    Gids,
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
            Variable::LinkLayer => ("SOFTIB_LINK_LAYER", "infiniband, ethernet or iwarp"),
            Variable::PKeys => {
                ("SOFTIB_PKEYS", "1 to 16 numbers of 16 bits like 0xffff,0x8001, none of partition 0")
            }
            Variable::Gids => ("SOFTIB_GIDS", "up to 6 addresses like fd00::5,192.0.2.7"),
        };
        write!(f, "{name}={:?}: expected {expected}", self.value)
    }
}

impl std::error::Error for SettingsError {}

impl Settings {
    /// What the environment variables say.
    pub fn from_environment() -> Result<Settings, SettingsError> {
        let mut settings = Settings::default();
        if let Some(name) = variable("SOFTIB_NODE") {
            settings.node = Some(name);
        }
        if let Some(text) = variable("SOFTIB_LINK_LAYER") {
            settings.link_layer = link_layer(&text).ok_or_else(|| error(Variable::LinkLayer, &text))?;
        }
        if let Some(text) = variable("SOFTIB_PKEYS") {
            settings.pkeys = list(&text, number).ok_or_else(|| error(Variable::PKeys, &text))?;
        }
        if let Some(text) = variable("SOFTIB_GIDS") {
            settings.gids = list(&text, address).ok_or_else(|| error(Variable::Gids, &text))?;
        }
        settings.check().map(|()| settings)
    }

    /// Whether all values are possible.
    pub(crate) fn check(&self) -> Result<(), SettingsError> {
        if let Some(name) = &self.node
            && (name.is_empty() || name.len() > NAME_MAX || name.chars().any(char::is_control))
        {
            return Err(error(Variable::Node, name));
        }
        let fair =
            (1..=PKEYS_MAX).contains(&self.pkeys.len()) && self.pkeys.iter().all(|key| key & 0x7fff != 0);
        if !fair {
            return Err(error(Variable::PKeys, &format!("{:x?}", self.pkeys)));
        }
        if self.gids.len() > GIDS_MAX
            || self.gids.iter().any(|gid| gid.is_unspecified() || gid.is_multicast())
        {
            return Err(error(Variable::Gids, &format!("{:?}", self.gids)));
        }
        Ok(())
    }
}

fn error(variable: Variable, value: &str) -> SettingsError {
    SettingsError { variable, value: value.to_owned() }
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

fn address(text: &str) -> Option<Ipv6Addr> {
    match text.parse().ok()? {
        IpAddr::V4(address) => Some(address.to_ipv6_mapped()),
        IpAddr::V6(address) => Some(address),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_item_by_item() {
        assert_eq!(list("0xffff, 0x8001,12", number), Some(vec![0xffff, 0x8001, 12]));
        assert_eq!(list("0xffff,", number), None);
        assert_eq!(list("0x10000", number), None);
        assert_eq!(list("192.0.2.7", address), Some(vec!["::ffff:192.0.2.7".parse().unwrap()]));
    }

    #[test]
    fn impossible_values_are_named() {
        let bad = Settings { pkeys: vec![0x8000], ..Settings::default() };
        assert_eq!(bad.check().unwrap_err().variable, Variable::PKeys);
        let bad = Settings { node: Some("a\nb".into()), ..Settings::default() };
        assert!(bad.check().unwrap_err().to_string().starts_with("SOFTIB_NODE=\"a\\nb\": expected"));
        let bad = Settings { gids: vec!["ff02::1".parse().unwrap()], ..Settings::default() };
        assert_eq!(bad.check().unwrap_err().variable, Variable::Gids);
    }
}
