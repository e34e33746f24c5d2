//! Which device and port a transport runs on.
//!
//! `auto` takes hardware ports, and the software device only when the job asked for oxib by name: an installed
//! plugin is opened in every job, and must cost nothing where nobody wants it.
#![forbid(unsafe_code)]

use std::sync::Arc;
use verbs::{Context, Device, Driver, Gid, LinkLayer, Mtu, PortAttr, PortState};

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

/// What is left of the ports that [`Choice`] finds: at most one of the two lists has something in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only these; empty: all.
    pub include: Vec<Name>,
    /// Not these.
    pub exclude: Vec<Name>,
}

impl Filter {
    fn allows(&self, device: &str, num: u8) -> bool {
        let listed = |names: &[Name]| names.iter().any(|name| is_meant(name, device, num));
        (self.include.is_empty() || listed(&self.include)) && !listed(&self.exclude)
    }

    fn names(&self) -> impl Iterator<Item = &Name> {
        self.include.iter().chain(&self.exclude)
    }
}

fn is_meant((name, port): &Name, device: &str, num: u8) -> bool {
    name == device && port.is_none_or(|p| p == num)
}

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
    #[error(
        "there is no device {wanted:?}; this machine has: {known}. Check btl_oxib_device, btl_oxib_if_include and \
         btl_oxib_if_exclude"
    )]
    Unknown { wanted: String, known: String },
    /// A port number that a device has not.
    #[error(
        "{device} has no port {wanted}: it has {ports}. Check btl_oxib_device, btl_oxib_if_include and btl_oxib_if_exclude"
    )]
    UnknownPort { device: String, wanted: u8, ports: u8 },
    /// No port is up.
    #[error("no active port on {0}: check the cable, the subnet manager and `ibv_devinfo`")]
    NoActivePort(String),
    /// The filter leaves nothing.
    #[error("btl_oxib_if_include and btl_oxib_if_exclude leave no active port of {0}")]
    Filtered(String),
    /// No device at all.
    #[error("no RDMA device on this machine")]
    None,
}

/// The ports to use. With `Auto` and nothing to use the answer is an error that needs no message to the user.
pub fn find(
    choice: &Choice,
    filter: &Filter,
    config: PortConfig,
    soft: fn() -> Driver,
) -> Result<Vec<Port>, DeviceError> {
    let search = Search { filter, config, names: &[] };
    match choice {
        Choice::Soft => search.ports_of(&soft(), true),
        Choice::Auto { named } => match search.hardware() {
            Err(_) if *named => search.ports_of(&soft(), true),
            other => other,
        },
        Choice::Names(names) => Search { names, ..search }.named_ports(soft),
    }
}

/// How the software device's names begin.
const SOFT_NAME: &str = "softib";

/// What is looked for: these names, or whatever there is, as far as the filter lets it through.
#[derive(Clone, Copy)]
struct Search<'a> {
    names: &'a [Name],
    filter: &'a Filter,
    config: PortConfig,
}

impl Search<'_> {
    fn hardware(self) -> Result<Vec<Port>, DeviceError> {
        self.ports_of(&Driver::rdma_core()?, false)
    }

    /// Names may mean hardware or the software device.
    fn named_ports(self, soft: fn() -> Driver) -> Result<Vec<Port>, DeviceError> {
        if self.names.iter().all(|(name, _)| name.starts_with(SOFT_NAME)) {
            return self.ports_of(&soft(), true);
        }
        self.hardware().map_err(|error| match (error, self.names.first()) {
            (DeviceError::Verbs(error), Some((wanted, _))) => {
                DeviceError::Unknown { wanted: wanted.clone(), known: format!("none ({error})") }
            }
            (error, _) => error,
        })
    }

    fn ports_of(self, driver: &Driver, soft: bool) -> Result<Vec<Port>, DeviceError> {
        let devices = driver.devices()?;
        if devices.is_empty() {
            return Err(DeviceError::None);
        }
        let known: Vec<&str> = devices.iter().map(|d| d.name()).collect();
        // A name that no device has must not silently select something else.
        let mut named = self.names.iter().chain(self.filter.names());
        if let Some((wanted, _)) = named.find(|(name, _)| !known.contains(&name.as_str())) {
            return Err(DeviceError::Unknown { wanted: wanted.clone(), known: known.join(", ") });
        }
        let mut active = Vec::new();
        for device in devices.iter().filter(|device| self.asks_for(device.name(), None)) {
            match self.active_ports(device, soft) {
                Ok(ports) => active.extend(ports),
                Err(DeviceError::Verbs(error)) if self.names.is_empty() => {
                    log::warn!("{} is left out: {error}", device.name());
                }
                Err(error) => return Err(error),
            }
        }
        self.filtered(active, &known.join(", "))
    }

    fn active_ports(self, device: &Device, soft: bool) -> Result<Vec<Port>, DeviceError> {
        let context = device.open()?;
        let count = context.num_ports();
        let named = self.names.iter().chain(self.filter.names()).filter(|(name, _)| name == device.name());
        if let Some(wanted) = named.filter_map(|(_, num)| *num).find(|num| *num > count) {
            return Err(DeviceError::UnknownPort { device: device.name().to_owned(), wanted, ports: count });
        }
        let ports = (1..=count).filter(|&num| self.asks_for(device.name(), Some(num)));
        let active = ports.map(|num| active_port(&context, num, self.config, soft));
        Ok(active.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// This port, or any of the device.
    fn asks_for(self, device: &str, num: Option<u8>) -> bool {
        let meant = |name: &Name| num.map_or(name.0 == device, |num| is_meant(name, device, num));
        self.names.is_empty() || self.names.iter().any(meant)
    }

    fn filtered(self, mut ports: Vec<Port>, known: &str) -> Result<Vec<Port>, DeviceError> {
        if ports.is_empty() {
            return Err(DeviceError::NoActivePort(known.to_owned()));
        }
        ports.retain(|port| self.filter.allows(port.context.name(), port.num));
        if ports.is_empty() { Err(DeviceError::Filtered(known.to_owned())) } else { Ok(ports) }
    }
}

fn active_port(
    context: &Arc<Context>,
    num: u8,
    config: PortConfig,
    soft: bool,
) -> Result<Option<Port>, verbs::Error> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn name(device: &str, port: Option<u8>) -> Name {
        (device.to_owned(), port)
    }

    #[test]
    fn a_filter_takes_devices_or_single_ports() {
        let include = Filter { include: vec![name("a", None), name("b", Some(2))], exclude: Vec::new() };
        let allowed = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)].map(|(d, p)| include.allows(d, p));
        assert_eq!(allowed, [true, true, false, true, false]);
        let exclude = Filter { include: Vec::new(), exclude: vec![name("b", Some(2))] };
        assert_eq!([("a", 1), ("b", 1), ("b", 2)].map(|(d, p)| exclude.allows(d, p)), [true, true, false]);
        assert!(Filter::default().allows("anything", 9));
    }

    #[test]
    fn a_name_that_no_device_has_is_an_error_also_in_a_filter() {
        let soft = || Driver::from_table(softib::driver_table());
        let config = PortConfig { gid_index: 0, pkey: 0, mtu: 0 };
        let filter = Filter { exclude: vec![name("softib7", None)], ..Filter::default() };
        let error = find(&Choice::Soft, &filter, config, soft).unwrap_err();
        assert!(matches!(&error, DeviceError::Unknown { wanted, .. } if wanted == "softib7"), "{error}");
        let filter = Filter { include: vec![name("softib0", Some(2))], ..Filter::default() };
        let error = find(&Choice::Soft, &filter, config, soft).unwrap_err();
        assert!(matches!(&error, DeviceError::UnknownPort { wanted: 2, ports: 1, .. }), "{error}");
        let filter = Filter { exclude: vec![name("softib0", Some(1))], ..Filter::default() };
        assert!(matches!(find(&Choice::Soft, &filter, config, soft), Err(DeviceError::Filtered(_))));
    }
}
