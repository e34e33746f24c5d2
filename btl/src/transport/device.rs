//! Which device and port a transport runs on.
//!
//! `auto` takes hardware ports, and the software device only when the job asked for oxib by name: an installed
//! plugin is opened in every job, and must cost nothing where nobody wants it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use verbs::{Context, Driver, Gid, LinkLayer, Mtu, PortAttr, PortState};

/// What the `device` parameter asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// Hardware; the software device if there is none and oxib was `named`.
    Auto { named: bool },
    /// The software device.
    Soft,
    /// These devices, all their active ports or one of them.
    Names(Vec<Name>),
}

/// A device, and a port of it if only one is meant.
pub type Name = (String, Option<u8>);

/// A port that a transport can run on.
#[derive(Clone, Debug)]
pub struct Port {
    /// The open device.
    pub context: Arc<Context>,
    /// Port number, from 1.
    pub num: u8,
    /// What the port says of itself.
    pub attr: PortAttr,
    /// The port's GID at the configured index.
    pub gid: Gid,
    /// Path MTU.
    pub mtu: Mtu,
    /// Index of the configured P_Key.
    pub pkey_index: u16,
    /// It is the software device of this host.
    pub soft: bool,
}

/// Settings that concern the port.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Index into the GID table.
    pub gid_index: u8,
    /// P_Key to look for; 0: the first.
    pub pkey: u16,
    /// Path MTU in bytes; 0: the port's.
    pub mtu: u32,
}

/// Why no port can be used.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// Verbs said no.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// A name in the `device` parameter that no device has.
    #[error("there is no device {wanted:?}; this machine has: {known}. Check btl_oxib_device")]
    Unknown { wanted: String, known: String },
    /// No port is up.
    #[error("no active port on {0}: check the cable, the subnet manager and `ibv_devinfo`")]
    NoActivePort(String),
    /// No device at all.
    #[error("no RDMA device on this machine")]
    None,
}

/// The ports to use. With `Auto` and nothing to use the answer is an error that needs no message to the user.
pub fn find(choice: &Choice, config: PortConfig, soft: fn() -> Driver) -> Result<Vec<Port>, DeviceError> {
    match choice {
        Choice::Soft => ports_of(&soft(), &[], config, true),
        Choice::Auto { named } => match hardware(&[], config) {
            Err(_) if *named => ports_of(&soft(), &[], config, true),
            other => other,
        },
        Choice::Names(names) => named_ports(names, config, soft),
    }
}

fn hardware(names: &[Name], config: PortConfig) -> Result<Vec<Port>, DeviceError> {
    ports_of(&Driver::rdma_core()?, names, config, false)
}

/// Names may mean hardware or the software device.
fn named_ports(names: &[Name], config: PortConfig, soft: fn() -> Driver) -> Result<Vec<Port>, DeviceError> {
    let is_soft = |(name, _): &Name| name.starts_with(SOFT_NAME);
    if names.iter().all(is_soft) {
        return ports_of(&soft(), names, config, true);
    }
    hardware(names, config).map_err(|error| match (error, names.first()) {
        (DeviceError::Verbs(error), Some((wanted, _))) => {
            DeviceError::Unknown { wanted: wanted.clone(), known: format!("none ({error})") }
        }
        (error, _) => error,
    })
}

/// How the software device's names begin.
const SOFT_NAME: &str = "softib";

fn ports_of(
    driver: &Driver,
    names: &[Name],
    config: PortConfig,
    soft: bool,
) -> Result<Vec<Port>, DeviceError> {
    let devices = driver.devices()?;
    if devices.is_empty() {
        return Err(DeviceError::None);
    }
    let known: Vec<&str> = devices.iter().map(|d| d.name()).collect();
    if let Some((wanted, _)) = names.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        return Err(DeviceError::Unknown { wanted: wanted.clone(), known: known.join(", ") });
    }
    let mut ports = Vec::new();
    for device in &devices {
        let meant = |(name, port): &Name, num| name == device.name() && port.is_none_or(|p| p == num);
        let wanted = |num: u8| names.is_empty() || names.iter().any(|name| meant(name, num));
        let context = device.open()?;
        for num in 1..=context.num_ports() {
            if wanted(num) {
                ports.extend(active_port(&context, num, config, soft)?);
            }
        }
    }
    if ports.is_empty() { Err(DeviceError::NoActivePort(known.join(", "))) } else { Ok(ports) }
}

fn active_port(
    context: &Arc<Context>,
    num: u8,
    config: PortConfig,
    soft: bool,
) -> Result<Option<Port>, DeviceError> {
    let attr = context.query_port(num)?;
    if attr.state != PortState::Active {
        log::debug!("{} port {num} is not active", context.name());
        return Ok(None);
    }
    let mtu = attr.active_mtu;
    let mtu = Mtu::from_bytes(config.mtu).map_or(mtu, |m| m.min(mtu));
    let gid = context.query_gid(num, config.gid_index.into())?;
    let Some(pkey_index) = find_pkey(context, num, &attr, config.pkey)? else {
        log::debug!("{} port {num} has no P_Key {:#x}", context.name(), config.pkey);
        return Ok(None);
    };
    Ok(Some(Port { context: context.clone(), num, attr, gid, mtu, pkey_index, soft }))
}

/// P_Keys are compared without their membership bit.
fn find_pkey(context: &Context, num: u8, attr: &PortAttr, wanted: u16) -> Result<Option<u16>, verbs::Error> {
    if wanted == 0 {
        return Ok(Some(0));
    }
    for index in 0..attr.pkey_tbl_len {
        if (context.query_pkey(num, index)? ^ wanted) & 0x7fff == 0 {
            return Ok(Some(index));
        }
    }
    Ok(None)
}

/// Whether a port speaks through GIDs (RoCE) rather than LIDs.
pub fn is_ethernet(attr: &PortAttr) -> bool {
    attr.link_layer == LinkLayer::Ethernet
}
