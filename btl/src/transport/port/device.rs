//! Which device and port a transport runs on.
//!
//! `auto` takes hardware ports, and the software device only when the job asked for oxib by name:
//! an installed plugin is opened in every job, and must cost nothing where it is not wanted.
#![forbid(unsafe_code)]

use super::gids::{self, Row};
use crate::protocol::device_ini::{Devices, Settings};
use crate::protocol::roce::Rows;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use verbs::cm::{Network, interface_networks};
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

/// What is left of the ports that [`Choice`] finds: at most one of the two lists has something in
/// it.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Only these; empty: all.
    pub include: Vec<Name>,
    /// Not these.
    pub exclude: Vec<Name>,
    /// What files say of devices: those that they ignore are used only by name.
    pub known: Devices,
}

impl Filter {
    fn allows(&self, device: &str, num: u8) -> bool {
        let listed = |names: &[Name]| names.iter().any(|name| is_meant(name, device, num));
        (self.include.is_empty() || listed(&self.include)) && !listed(&self.exclude)
    }

    /// Device names of either list.
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
    /// The port's GID in the row that is configured or found.
    pub gid: Gid,
    /// That row of its GID table.
    pub gid_index: u8,
    /// On Ethernet, the rows that connections may use, that one first; else empty.
    pub rows: Vec<Row>,
    /// Path MTU.
    pub mtu: Mtu,
    /// Index of the configured P_Key.
    pub pkey_index: u16,
    /// It is the software device of this host.
    pub soft: bool,
    /// Vendor and part, as the device says.
    pub vendor: (u32, u32),
    /// What files say of the device.
    pub settings: Settings,
    /// Another port of the device, through the same context: connections can go over it when this one does not serve.
    pub alternate: Option<Box<Port>>,
}

impl Port {
    /// What peers are told of the rows of its GID table.
    pub fn published_rows(&self) -> Rows {
        gids::published(&self.rows)
    }

    /// Sets the path MTU: so many bytes, or as many as the port has, if that is less; 0: the
    /// port's.
    pub fn limit_mtu(&mut self, bytes: u32) {
        let active = self.attr.active_mtu;
        self.mtu = Mtu::from_bytes(bytes).map_or(active, |mtu| mtu.min(active));
    }
}

/// Settings that concern the port.
#[derive(Clone, Copy, Debug)]
pub struct PortConfig {
    /// Row of the GID table; `None`: the best.
    pub gid_index: Option<u8>,
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
    /// Ports were found, and each has its reason.
    #[error("{}", lines(.0))]
    Unusable(Vec<Unusable>),
    /// The filter leaves nothing.
    #[error("btl_oxib_if_include and btl_oxib_if_exclude leave none of the active ports of {0}")]
    Filtered(String),
    /// Neither the hardware nor the software device will do.
    #[error("{hard}\n{soft}")]
    Neither { hard: Box<DeviceError>, soft: Box<DeviceError> },
    /// This process has not what the software device takes.
    #[error("{0}")]
    Shortage(String),
    /// The kernel has devices, and libibverbs does not lead to them.
    #[error("the kernel has these RDMA devices: {devices}. They cannot be used: {why}")]
    Unreached { devices: String, why: String },
    /// No device at all.
    #[error("no RDMA device on this machine")]
    None,
}

impl DeviceError {
    /// There is no hardware; nothing that the user has set is wrong.
    pub fn is_absence(&self) -> bool {
        matches!(self, DeviceError::Verbs(_) | DeviceError::None)
    }

    /// How loudly to say that the software device is used in place of this hardware.
    fn level(&self) -> log::Level {
        match self {
            DeviceError::Unreached { .. } => log::Level::Warn,
            DeviceError::Unusable(ports) if !ports.iter().all(Unusable::is_common) => log::Level::Warn,
            _ => log::Level::Debug,
        }
    }
}

/// Why a device, or one of its ports, is not used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be opened, or does not answer.
    #[error(transparent)]
    Silent(#[from] verbs::Error),
    /// The port is not up.
    #[error("{port} is not active (its state is {state}): {remedy}")]
    Inactive { port: String, state: PortState, remedy: &'static str },
    /// `gid_index` names no row, or an empty one.
    #[error("btl_oxib_gid_index is {wanted}, {port} has GIDs in rows {} only: {}", numbers(.rows), words(.rows))]
    NoGid { wanted: u8, port: String, rows: Vec<Row> },
    /// There is nothing to find.
    #[error("{port} has no GID: {remedy}")]
    NoGids { port: String, remedy: &'static str },
    /// A file of device parameters says so.
    #[error(
        "{device} is ignored: ignore_device in {origin}; btl_oxib_device or btl_oxib_if_include can name it"
    )]
    Ignored { device: String, origin: String },
    /// `pkey` is in no row.
    #[error("btl_oxib_pkey is {wanted:#06x}, {port} has these P_Keys: {table}")]
    NoPkey { wanted: u16, port: String, table: String },
}

impl Unusable {
    /// A port without a cable or outside of a partition is nothing special on a device of several
    /// ports.
    fn is_common(&self) -> bool {
        matches!(self, Unusable::Inactive { .. } | Unusable::NoPkey { .. } | Unusable::Ignored { .. })
    }
}

fn numbers(rows: &[Row]) -> String {
    list(rows.iter().map(|row| row.index.to_string()), ", ")
}

fn words(rows: &[Row]) -> String {
    list(rows.iter().map(Row::to_string), ", ")
}

fn lines(reasons: &[Unusable]) -> String {
    list(reasons.iter().map(Unusable::to_string), "\n")
}

/// `between` the items; "none" without any.
fn list(items: impl Iterator<Item = String>, between: &str) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() { "none".to_owned() } else { items.join(between) }
}

/// The ports to use. With `Auto` and nothing to use the answer is an error that needs no message to
/// the user.
pub fn find(
    choice: &Choice,
    filter: &Filter,
    config: PortConfig,
    soft: impl FnOnce() -> Result<Driver, DeviceError>,
) -> Result<Vec<Port>, DeviceError> {
    let search = Search { filter, config, names: &[] };
    match choice {
        Choice::Soft => search.ports_of(&soft()?, true),
        Choice::Auto { named } => match search.hardware() {
            Err(hard) if *named => match soft().and_then(|soft| search.ports_of(&soft, true)) {
                Ok(ports) => {
                    log::log!(hard.level(), "the software device is used in place of hardware: {hard}");
                    Ok(ports)
                }
                Err(soft) => Err(both(hard, soft)),
            },
            other => other,
        },
        Choice::Names(names) => Search { names, ..search }.named_ports(soft),
    }
}

/// Gives each port the next one of its device and kind, of those in use, as its alternate.
pub fn pair_up(ports: &mut [Port], config: PortConfig) {
    for at in 0..ports.len() {
        let port = &ports[at];
        let others = ports.iter().cycle().skip(at + 1).take(ports.len() - 1);
        let fits = |other: &&Port| {
            other.context.name() == port.context.name() && other.attr.link_layer == port.attr.link_layer
        };
        let Some(num) = { others }.find(fits).map(|other| other.num) else { continue };
        match usable_port(&port.context, num, config, port.soft) {
            Ok(other) => ports[at].alternate = Some(Box::new(other)),
            Err(reason) => log::info!("no alternate for port {}: {reason}", port.num),
        }
    }
}

/// What is wrong with the hardware comes first, if there is any.
fn both(hard: DeviceError, soft: DeviceError) -> DeviceError {
    if hard.is_absence() || matches!(hard, DeviceError::Unknown { .. }) {
        return soft;
    }
    DeviceError::Neither { hard: Box::new(hard), soft: Box::new(soft) }
}

/// Names of the RDMA devices that the kernel has; `None`: it does not say. Where it has none rdma-core finds none either, and is
/// not loaded.
fn kernel_devices(sys: &Path) -> Option<Vec<String>> {
    match std::fs::read_dir(sys.join("class/infiniband")) {
        Ok(devices) => {
            Some(devices.flatten().map(|d| d.file_name().to_string_lossy().into_owned()).collect())
        }
        Err(_) => sys.join("class").is_dir().then(Vec::new),
    }
}

/// The error where libibverbs does not lead to a device: with the names of those that the kernel has, if it has any.
fn unreached(kernel: Option<Vec<String>>, error: DeviceError) -> DeviceError {
    let devices = kernel.unwrap_or_default().join(", ");
    let why = match error {
        _ if devices.is_empty() => return error,
        DeviceError::None => NO_PROVIDER.to_owned(),
        // What ibv_get_device_list(3) says without ib_uverbs.
        DeviceError::Verbs(error) if error.errno() == libc::ENOSYS => NO_PROVIDER.to_owned(),
        DeviceError::Verbs(error) => error.to_string(),
        other => return other,
    };
    DeviceError::Unreached { devices, why }
}

const NO_PROVIDER: &str = "libibverbs finds none of them; load the kernel module ib_uverbs, and install the provider of the device \
     (package ibverbs-providers or rdma-core)";

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
        let kernel = kernel_devices(Path::new("/sys"));
        if self.names.is_empty() && kernel.as_ref().is_some_and(Vec::is_empty) {
            return Err(DeviceError::None);
        }
        match Driver::rdma_core() {
            // The drop-in library has the software device's ports only.
            Ok(driver) if driver.is_software() => Err(DeviceError::None),
            Ok(driver) => self.ports_of(&driver, false).map_err(|error| unreached(kernel, error)),
            Err(error) => Err(unreached(kernel, error.into())),
        }
    }

    /// Names may mean hardware or the software device.
    fn named_ports(
        self,
        soft: impl FnOnce() -> Result<Driver, DeviceError>,
    ) -> Result<Vec<Port>, DeviceError> {
        if self.names.iter().all(|(name, _)| name.starts_with(SOFT_NAME)) {
            return self.ports_of(&soft()?, true);
        }
        self.hardware().map_err(|error| match self.names.first() {
            Some((wanted, _)) if error.is_absence() => DeviceError::Unknown {
                wanted: wanted.clone(),
                known: format!("no hardware ({error}); softib0 is the software device"),
            },
            _ => error,
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
        let (mut usable, mut left_out) = (Vec::new(), Vec::new());
        for device in devices.iter().filter(|device| self.asks_for(device.name(), None)) {
            for port in self.ports_of_device(device, soft)? {
                match port {
                    Ok(port) => usable.push(port),
                    Err(reason) => left_out.push(reason),
                }
            }
        }
        self.filtered(usable, left_out, &known.join(", "))
    }

    /// The ports of one device that are asked for, each as it is or with its reason.
    fn ports_of_device(
        self,
        device: &Device,
        soft: bool,
    ) -> Result<Vec<Result<Port, Unusable>>, DeviceError> {
        let opened = device.open().and_then(|context| Ok((context.query_device()?, context)));
        let (attr, context) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ok(vec![Err(error.into())]),
        };
        let named = self.names.iter().chain(self.filter.names()).filter(|(name, _)| name == device.name());
        if let Some(wanted) = named.filter_map(|(_, num)| *num).find(|num| *num > attr.ports) {
            return Err(DeviceError::UnknownPort {
                device: device.name().to_owned(),
                wanted,
                ports: attr.ports,
            });
        }
        let settings = self.filter.known.settings(attr.vendor);
        if let Some(origin) = settings.ignored().filter(|_| !self.is_named(device.name())) {
            let (device, origin) = (device.name().to_owned(), origin.to_string());
            return Ok(vec![Err(Unusable::Ignored { device, origin })]);
        }
        let ports = (1..=attr.ports).filter(|&num| self.asks_for(device.name(), Some(num)));
        // A context for each: asynchronous events go to the one that their object was made with.
        let mut first = Some(context);
        let mut own_context = || first.take().map_or_else(|| device.open(), Ok);
        let usable = |num| {
            let port = usable_port(&own_context()?, num, self.config, soft)?;
            Ok(Port { vendor: attr.vendor, settings: settings.clone(), ..port })
        };
        Ok(ports.map(usable).collect())
    }

    /// The user has named the device, or one of its ports, as one to use.
    fn is_named(self, device: &str) -> bool {
        self.names.iter().chain(&self.filter.include).any(|(name, _)| name == device)
    }

    /// This port, or any of the device.
    fn asks_for(self, device: &str, num: Option<u8>) -> bool {
        let meant = |name: &Name| num.map_or(name.0 == device, |num| is_meant(name, device, num));
        self.names.is_empty() || self.names.iter().any(meant)
    }

    fn filtered(
        self,
        mut ports: Vec<Port>,
        left_out: Vec<Unusable>,
        known: &str,
    ) -> Result<Vec<Port>, DeviceError> {
        if ports.is_empty() {
            return Err(DeviceError::Unusable(left_out));
        }
        for reason in &left_out {
            let level = if reason.is_common() { log::Level::Debug } else { log::Level::Warn };
            log::log!(level, "left out: {reason}");
        }
        ports.retain(|port| self.filter.allows(port.context.name(), port.num));
        if ports.is_empty() { Err(DeviceError::Filtered(known.to_owned())) } else { Ok(ports) }
    }
}

fn usable_port(context: &Arc<Context>, num: u8, config: PortConfig, soft: bool) -> Result<Port, Unusable> {
    let attr = context.query_port(num)?;
    let name = || format!("{} port {num}", context.name());
    if attr.state != PortState::Active {
        let remedy = if soft { KEPT_DOWN } else { CHECK_CABLE };
        return Err(Unusable::Inactive { port: name(), state: attr.state, remedy });
    }
    let rows = gid_rows(context, num, &attr, config.gid_index)?;
    let row = *rows.first().ok_or_else(|| Unusable::NoGids { port: name(), remedy: GIVE_ADDRESS })?;
    let rows = if is_roce(context, &attr) { with_networks(rows, context, num, soft) } else { Vec::new() };
    let pkey_index = find_pkey(context, num, &attr, config.pkey)?.ok_or_else(|| Unusable::NoPkey {
        wanted: config.pkey,
        port: name(),
        table: list(pkeys(context, num, &attr).map(|pkey| format!("{pkey:#06x}")), ", "),
    })?;
    let (mtu, vendor, settings) = (attr.active_mtu, (0, 0), Settings::default());
    let context = context.clone();
    let Row { index: gid_index, gid, .. } = row;
    let mut port = Port {
        context,
        num,
        attr,
        gid,
        gid_index,
        rows,
        mtu,
        pkey_index,
        soft,
        vendor,
        settings,
        alternate: None,
    };
    port.limit_mtu(config.mtu);
    log::debug!("{} port {num}: GID {row}", port.context.name());
    for row in port.rows.iter().skip(1) {
        log::debug!("{} port {num}: GID {row}, for peers that it leads to", port.context.name());
    }
    Ok(port)
}

const CHECK_CABLE: &str = "check the cable, the subnet manager and `ibv_devinfo`";
const KEPT_DOWN: &str = "SOFTIB_FAULTS keeps it down";

/// The rows of the GID table that connections may use, the port's own first. A port that is no RoCE port has its own GID in row 0.
fn gid_rows(context: &Context, num: u8, attr: &PortAttr, wanted: Option<u8>) -> Result<Vec<Row>, Unusable> {
    let port = || format!("{} port {num}", context.name());
    let row = match wanted {
        Some(wanted) => find_gid(context, num, attr, wanted)?.ok_or_else(|| {
            let rows = filled_rows(context, num, attr).collect();
            Unusable::NoGid { wanted, port: port(), rows }
        })?,
        None if is_roce(context, attr) => return Ok(gids::usable(filled_rows(context, num, attr))),
        None => find_gid(context, num, attr, 0)?
            .ok_or_else(|| Unusable::NoGids { port: port(), remedy: CHECK_CABLE })?,
    };
    Ok(vec![row])
}

fn is_roce(context: &Context, attr: &PortAttr) -> bool {
    is_ethernet(attr) && !context.is_iwarp()
}

/// The rows with the networks of their addresses: those that the row's network interface has, or, of the software device, its settings.
fn with_networks(mut rows: Vec<Row>, context: &Context, num: u8, soft: bool) -> Vec<Row> {
    let networks = if soft { Vec::new() } else { interface_networks().unwrap_or_default() };
    for row in &mut rows {
        let address = IpAddr::from(row.gid.0).to_canonical();
        row.prefix = match soft {
            true => softib::port::prefix_of(address),
            false => prefix_of(&networks, address, context.gid_interface(num, row.index.into()).as_deref()),
        };
    }
    rows
}

/// How many bits of an address are its network's, on this interface if it is known.
fn prefix_of(networks: &[Network], address: IpAddr, interface: Option<&str>) -> Option<u8> {
    let is_meant = |network: &&Network| {
        network.address == address && interface.is_none_or(|name| network.interface == name)
    };
    networks.iter().find(is_meant)?.prefix
}

const GIVE_ADDRESS: &str =
    "give its network interface an address and take it up (see `rdma link` and `ip address`)";

/// A row of the table, unless there is no such row or nothing in it.
fn find_gid(context: &Context, num: u8, attr: &PortAttr, index: u8) -> Result<Option<Row>, verbs::Error> {
    if u32::from(index) >= attr.gid_tbl_len {
        return Ok(None);
    }
    let gid = context.query_gid(num, index.into())?;
    let row = || Row { index, gid, kind: context.gid_type(num, index.into()), prefix: None };
    Ok((!gid.is_zero()).then(row))
}

/// Rows of the GID table with something in them, as far as `gid_index` reaches.
fn filled_rows(context: &Context, num: u8, attr: &PortAttr) -> impl Iterator<Item = Row> {
    (0..=u8::MAX).filter_map(move |row| find_gid(context, num, attr, row).ok().flatten())
}

/// The rows of the P_Key table that say something.
fn pkeys(context: &Context, num: u8, attr: &PortAttr) -> impl Iterator<Item = u16> {
    let rows = (0..attr.pkey_tbl_len).filter_map(move |row| context.query_pkey(num, row).ok());
    rows.filter(|pkey| *pkey != 0)
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
        let include = Filter { include: vec![name("a", None), name("b", Some(2))], ..Filter::default() };
        let allowed = [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("c", 1)].map(|(d, p)| include.allows(d, p));
        assert_eq!(allowed, [true, true, false, true, false]);
        let exclude = Filter { exclude: vec![name("b", Some(2))], ..Filter::default() };
        assert_eq!([("a", 1), ("b", 1), ("b", 2)].map(|(d, p)| exclude.allows(d, p)), [true, true, false]);
        assert!(Filter::default().allows("anything", 9));
    }

    #[test]
    fn rdma_core_is_asked_unless_the_kernel_has_no_device() {
        let sys = std::env::temp_dir().join(format!("oxib-sys-{}", std::process::id()));
        let has = |folder: &str| {
            std::fs::create_dir_all(sys.join(folder)).unwrap();
            kernel_devices(&sys).map(|devices| devices.join(" "))
        };
        let answers = [has("block"), has("class"), has("class/infiniband"), has("class/infiniband/mlx5_0")];
        std::fs::remove_dir_all(&sys).unwrap();
        assert_eq!(
            answers.each_ref().map(|names| names.as_deref()),
            [None, Some(""), Some(""), Some("mlx5_0")]
        );
    }

    #[test]
    fn a_device_that_the_kernel_has_is_not_absent_where_libibverbs_does_not_lead_to_it() {
        let ports = find(&Choice::Soft, &Filter::default(), CONFIG, soft).expect("softib");
        // Any error of a verb will do.
        let missing = || ports.first().map(|port| port.context.query_port(99)).expect("a port").unwrap_err();
        let kernel = || Some(vec!["mlx5_0".to_owned(), "mlx5_1".to_owned()]);
        for error in [DeviceError::None, DeviceError::Verbs(missing())] {
            let named = unreached(kernel(), error);
            let text = named.to_string();
            assert!(
                text.starts_with("the kernel has these RDMA devices: mlx5_0, mlx5_1. They cannot"),
                "{text}"
            );
            assert!(!named.is_absence() && named.level() == log::Level::Warn);
            assert!(both(named, DeviceError::None).to_string().contains("mlx5_0"), "it is not hidden");
        }
        for kernel in [None, Some(Vec::new())] {
            assert!(unreached(kernel, DeviceError::Verbs(missing())).is_absence());
        }
    }

    #[test]
    fn the_network_of_a_row_is_that_of_its_address_on_its_interface() {
        let network = |interface: &str, address: &str, prefix| Network {
            interface: interface.to_owned(),
            address: address.parse().expect("an address"),
            prefix: Some(prefix),
        };
        let all = [
            network("eth0", "10.1.0.7", 24),
            network("eth1", "10.1.0.7", 16),
            network("eth0", "fd00::7", 64),
        ];
        let of = |address: &str, interface| prefix_of(&all, address.parse().expect("an address"), interface);
        assert_eq!((of("10.1.0.7", Some("eth1")), of("10.1.0.7", None)), (Some(16), Some(24)));
        assert_eq!((of("fd00::7", Some("eth0")), of("fd00::7", Some("eth1"))), (Some(64), None));
    }

    fn soft() -> Result<Driver, DeviceError> {
        Ok(Driver::from_table(softib::driver_table()))
    }

    fn refused(config: PortConfig) -> String {
        find(&Choice::Soft, &Filter::default(), config, soft).unwrap_err().to_string()
    }

    #[test]
    fn a_gid_row_or_a_pkey_that_a_port_has_not_is_the_reason_that_is_told() {
        let config = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
        for gid_index in [1, 99] {
            let text = refused(PortConfig { gid_index: Some(gid_index), ..config });
            let wanted = format!(
                "btl_oxib_gid_index is {gid_index}, softib0 port 1 has GIDs in rows 0 only: 0: fe80::"
            );
            assert!(text.contains(&wanted), "{text}");
        }
        let text = refused(PortConfig { pkey: 0x1234, ..config });
        assert_eq!(text, "btl_oxib_pkey is 0x1234, softib0 port 1 has these P_Keys: 0xffff");
    }

    /// A file for softib, whose numbers are those of "no vendor".
    fn known(line: &str) -> Filter {
        let text = format!("[softib]\nvendor_id = 0xffffff\nvendor_part_id = 0\n{line}\n");
        let mut known = Devices::default();
        known.read("a.ini", text.as_bytes()).expect("a section");
        Filter { known, ..Filter::default() }
    }

    const CONFIG: PortConfig = PortConfig { gid_index: None, pkey: 0, mtu: 0 };

    #[test]
    fn a_device_that_a_file_ignores_is_left_out_unless_it_is_named() {
        let filter = known("ignore_device = 1");
        let text = find(&Choice::Soft, &filter, CONFIG, soft).unwrap_err().to_string();
        assert!(text.starts_with("softib0 is ignored: ignore_device in a.ini:4 [softib]; "), "{text}");
        let named = Choice::Names(vec![name("softib0", None)]);
        assert_eq!(find(&named, &filter, CONFIG, soft).expect("by its name").len(), 1);
        let include = Filter { include: vec![name("softib0", Some(1))], ..filter };
        assert_eq!(find(&Choice::Soft, &include, CONFIG, soft).expect("by its name").len(), 1);
    }

    #[test]
    fn a_port_has_what_files_say_of_its_device() {
        let ports = find(&Choice::Soft, &known("mtu = 512"), CONFIG, soft).expect("softib");
        let port = ports.first().expect("a port");
        assert_eq!(port.vendor, (0xff_ffff, 0));
        assert_eq!(port.settings.mtu.as_ref().and_then(|mtu| mtu.value), Some(512));
    }

    #[test]
    fn an_mtu_is_never_above_the_ports_and_0_is_the_ports() {
        let mut ports = find(&Choice::Soft, &Filter::default(), CONFIG, soft).expect("softib");
        let port = ports.first_mut().expect("a port");
        let mut limited = |bytes| {
            port.limit_mtu(bytes);
            port.mtu.bytes()
        };
        let most = limited(0);
        assert_eq!([limited(256), limited(0), limited(4096)], [256, most, most.min(4096)]);
    }

    #[test]
    fn what_is_wrong_with_the_hardware_is_not_hidden_by_the_software_device() {
        let inactive = |soft| Unusable::Inactive {
            port: format!("{} port 1", if soft { "softib0" } else { "mlx5_0" }),
            state: PortState::Other(1),
            remedy: if soft { KEPT_DOWN } else { CHECK_CABLE },
        };
        let unusable = |soft| DeviceError::Unusable(vec![inactive(soft)]);
        let text = both(unusable(false), unusable(true)).to_string();
        assert!(text.starts_with("mlx5_0 port 1 is not active (its state is DOWN)"), "{text}");
        assert!(text.contains("softib0"), "{text}");
        assert!(both(DeviceError::None, unusable(true)).to_string().starts_with("softib0"));
    }

    #[test]
    fn a_name_that_no_device_has_is_an_error_also_in_a_filter() {
        let config = PortConfig { gid_index: None, pkey: 0, mtu: 0 };
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
