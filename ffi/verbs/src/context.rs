//! Devices and their ports.

use crate::descriptor::set_nonblocking;
use crate::driver::Driver;
use crate::error::{Error, check, leaked};
use crate::types::{Gid, GidType, LinkLayer, Mtu};
use rdma_sys as sys;
use std::ffi::CStr;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The library's array of devices; freed when the last device of it is gone.
#[derive(Debug)]
struct List {
    driver: Driver,
    array: NonNull<*mut sys::ibv_device>,
}

// SAFETY: the array is read-only until it is freed, and freed once.
unsafe impl Send for List {}
// SAFETY: the array does not change after `get_device_list`, and only `drop` frees it.
unsafe impl Sync for List {}

impl Drop for List {
    fn drop(&mut self) {
        // SAFETY: the array of this library, given back once; open contexts keep their own device.
        unsafe { (self.driver.0.table.free_device_list)(self.array.as_ptr()) };
    }
}

impl Driver {
    /// The devices there are now.
    ///
    /// # Errors
    /// The library could not look: the kernel has no RDMA, say.
    pub fn devices(&self) -> Result<Vec<Device>, Error> {
        Device::list(self)
    }
}

/// A device that can be opened.
#[derive(Clone, Debug)]
pub struct Device {
    list: Arc<List>,
    raw: NonNull<sys::ibv_device>,
    name: String,
    guid: u64,
}

// SAFETY: the device is read-only data of the library and lives as long as its list.
unsafe impl Send for Device {}
// SAFETY: a shared `Device` passes its pointer to `open_device` alone, which threads may call at
// the same time; name and GUID are copies.
unsafe impl Sync for Device {}

impl Device {
    fn list(driver: &Driver) -> Result<Vec<Device>, Error> {
        let table = driver.0.table;
        let mut count = 0;
        // SAFETY: the table is that of a verbs library.
        let array = unsafe { (table.get_device_list)(&mut count) };
        let array = NonNull::new(array).ok_or_else(|| Error::last("ibv_get_device_list", table.name))?;
        let list = Arc::new(List { driver: driver.clone(), array });
        // SAFETY: the array has `count` entries.
        let raws = unsafe { std::slice::from_raw_parts(array.as_ptr(), usize::try_from(count).unwrap_or(0)) };
        Ok(raws.iter().filter_map(|raw| Device::new(&list, *raw)).collect())
    }

    fn new(list: &Arc<List>, raw: *mut sys::ibv_device) -> Option<Device> {
        let raw = NonNull::new(raw)?;
        let table = list.driver.0.table;
        // SAFETY: a device of the list; its name is a C string that lives with it.
        let (name, guid) = unsafe {
            let name = CStr::from_ptr((table.get_device_name)(raw.as_ptr()));
            (name.to_string_lossy().into_owned(), u64::from_be((table.get_device_guid)(raw.as_ptr())))
        };
        Some(Device { list: list.clone(), raw, name, guid })
    }

    /// As `ibv_devices` prints it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Node GUID.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Opens the device.
    ///
    /// # Errors
    /// No right to it, or it is gone.
    pub fn open(&self) -> Result<Arc<Context>, Error> {
        let driver = self.list.driver.clone();
        // SAFETY: a device of the list, which is alive.
        let raw = unsafe { (driver.0.table.open_device)(self.raw.as_ptr()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_open_device", &self.name))?;
        let context = Context {
            driver,
            raw,
            name: self.name.clone(),
            registrations: AtomicU32::new(0),
            registered: Registered::default(),
        };
        context.async_nonblocking()?;
        Ok(Arc::new(context))
    }
}

/// An open device.
#[derive(Debug)]
pub struct Context {
    driver: Driver,
    raw: NonNull<sys::ibv_context>,
    name: String,
    /// Registrations that exist through it.
    pub(crate) registrations: AtomicU32,
    pub(crate) registered: Registered,
}

/// Bytes of the registrations that exist through a context.
#[derive(Debug, Default)]
pub(crate) struct Registered {
    now: AtomicU64,
    most: AtomicU64,
}

impl Registered {
    pub(crate) fn add(&self, len: usize) {
        let now = self.now.fetch_add(len as u64, Ordering::Relaxed) + len as u64;
        self.most.fetch_max(now, Ordering::Relaxed);
    }

    pub(crate) fn remove(&self, len: usize) {
        self.now.fetch_sub(len as u64, Ordering::Relaxed);
    }
}

// SAFETY: verbs are thread safe (ibv_open_device(3) and the libibverbs documentation: any thread, any object).
unsafe impl Send for Context {}
// SAFETY: the fields never change but for the atomics that count registrations, and threads may call verbs of
// one context at the same time.
unsafe impl Sync for Context {}

/// What a device's atomics on a word are atomic with (`ibv_device_attr.atomic_cap`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Atomics {
    /// There are none.
    None,
    /// With those of the same device.
    Device,
    /// With the processor's and other devices', too.
    Global,
}

/// Limits of a device that oxib looks at.
#[derive(Clone, Copy, Debug)]
pub struct DeviceAttr {
    /// Vendor, part: what device parameters are chosen by.
    pub vendor: (u32, u32),
    /// Work requests of a queue.
    pub max_qp_wr: u32,
    /// Entries of a completion queue.
    pub max_cqe: u32,
    /// Receives of a shared receive queue; 0: no such queues.
    pub max_srq_wr: u32,
    /// Registrations.
    pub max_mr: u32,
    /// RDMA reads and atomics that a queue pair answers at a time.
    pub max_rd_atomic: u8,
    /// RDMA reads and atomics that a queue pair starts at a time.
    pub max_init_rd_atomic: u8,
    /// What its atomics are.
    pub atomics: Atomics,
    /// Ports, numbered from 1.
    pub ports: u8,
}

/// Whether a port works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortState {
    /// Packets flow.
    Active,
    /// Anything else; the value of `ibv_port_state`.
    Other(u32),
}

impl fmt::Display for PortState {
    /// As `ibv_devinfo` names it, without the prefix.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            PortState::Active => "ACTIVE",
            PortState::Other(sys::IBV_PORT_DOWN) => "DOWN",
            PortState::Other(sys::IBV_PORT_INIT) => "INIT",
            PortState::Other(sys::IBV_PORT_ARMED) => "ARMED",
            PortState::Other(sys::IBV_PORT_ACTIVE_DEFER) => "ACTIVE_DEFER",
            PortState::Other(_) => "unknown",
        })
    }
}

/// A port.
#[derive(Clone, Debug)]
pub struct PortAttr {
    /// Whether it works.
    pub state: PortState,
    /// Largest MTU that works now.
    pub active_mtu: Mtu,
    /// Its LID; 0 on Ethernet.
    pub lid: crate::Lid,
    /// InfiniBand or Ethernet.
    pub link_layer: LinkLayer,
    /// Bytes of one message.
    pub max_msg_size: u32,
    /// Entries of the GID table.
    pub gid_tbl_len: u32,
    /// Entries of the P_Key table.
    pub pkey_tbl_len: u16,
    /// Rate in Mb/s, from width and speed.
    pub rate: u32,
}

impl Context {
    pub(crate) fn table(&self) -> &'static sys::Table {
        self.driver.0.table
    }

    pub(crate) fn raw(&self) -> *mut sys::ibv_context {
        self.raw.as_ptr()
    }

    /// The device's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The most bytes that have been registered at a time.
    pub fn most_registered(&self) -> u64 {
        self.registered.most.load(Ordering::Relaxed)
    }

    /// The library it came from.
    pub fn driver(&self) -> &Driver {
        &self.driver
    }

    /// From now on this process polls until what it writes to peers is over. So the software device may give short data to a peer that
    /// polls, to place it. Other devices write as ever; false then.
    pub fn await_writes(&self) -> bool {
        let promise = self.table().await_writes;
        // SAFETY: a function of the library that this context is of, which is open.
        promise.inspect(|promise| unsafe { promise() }).is_some()
    }

    /// The device has a way of its own for [`ShortWriter`](crate::ShortWriter), whatever goes inline.
    pub fn writes_short(&self) -> bool {
        self.table().write_short.is_some()
    }

    /// Whether it is an iWARP device: connections by RDMA-CM only, each of one queue pair, whose initiator sends first; no RNR; reads
    /// write to their target as a peer does.
    pub fn is_iwarp(&self) -> bool {
        // SAFETY: an open context, whose device outlives it.
        unsafe {
            let device = (*self.raw()).device.as_ref();
            device.is_some_and(|device| device.transport_type == sys::IBV_TRANSPORT_IWARP)
        }
    }

    /// Limits of the device.
    ///
    /// # Errors
    /// The device is gone.
    pub fn query_device(&self) -> Result<DeviceAttr, Error> {
        let mut attr = sys::ibv_device_attr::default();
        // SAFETY: an open context, and room for the answer.
        let code = unsafe { (self.table().query_device)(self.raw(), &mut attr) };
        check("ibv_query_device", code, || self.name.clone())?;
        let count = |n: i32| u32::try_from(n).unwrap_or(0);
        let small = |n: i32| u8::try_from(n.clamp(0, 255)).unwrap_or(u8::MAX);
        Ok(DeviceAttr {
            vendor: (attr.vendor_id, attr.vendor_part_id),
            max_qp_wr: count(attr.max_qp_wr),
            max_cqe: count(attr.max_cqe),
            max_srq_wr: count(attr.max_srq_wr),
            max_mr: count(attr.max_mr),
            max_rd_atomic: small(attr.max_qp_rd_atom),
            max_init_rd_atomic: small(attr.max_qp_init_rd_atom),
            atomics: match attr.atomic_cap {
                sys::IBV_ATOMIC_HCA => Atomics::Device,
                sys::IBV_ATOMIC_GLOB => Atomics::Global,
                _ => Atomics::None,
            },
            ports: attr.phys_port_cnt,
        })
    }

    /// Number of ports; 0 if the device does not answer.
    pub fn num_ports(&self) -> u8 {
        self.query_device().map_or(0, |attr| attr.ports)
    }

    /// A port, from 1.
    ///
    /// # Errors
    /// There is no such port, or the device is gone.
    pub fn query_port(&self, num: u8) -> Result<PortAttr, Error> {
        let mut attr = sys::ibv_port_attr::default();
        // SAFETY: an open context of this table's library, and room for the answer.
        let code = unsafe { sys::ibv_query_port(self.table(), self.raw(), num, &mut attr) };
        check("ibv_query_port", code, || format!("{} port {num}", self.name))?;
        let ethernet = u32::from(attr.link_layer) == u32::from(sys::IBV_LINK_LAYER_ETHERNET);
        Ok(PortAttr {
            state: if attr.state == sys::IBV_PORT_ACTIVE {
                PortState::Active
            } else {
                PortState::Other(attr.state)
            },
            active_mtu: Mtu::from_code(attr.active_mtu).unwrap_or(Mtu::B1024),
            lid: crate::Lid(attr.lid),
            link_layer: if ethernet { LinkLayer::Ethernet } else { LinkLayer::InfiniBand },
            max_msg_size: attr.max_msg_sz,
            gid_tbl_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            pkey_tbl_len: attr.pkey_tbl_len,
            rate: rate(attr.active_width, attr.active_speed),
        })
    }

    /// An entry of a port's GID table.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn query_gid(&self, port: u8, index: u32) -> Result<Gid, Error> {
        let mut gid = Gid::default().to_sys();
        // SAFETY: an open context, and room for the answer.
        let code = unsafe { (self.table().query_gid)(self.raw(), port, index.cast_signed(), &mut gid) };
        check("ibv_query_gid", code, || format!("entry {index} of {} port {port}", self.name))?;
        // SAFETY: both members of the union are 16 plain bytes.
        Ok(Gid(unsafe { gid.raw }))
    }

    /// What a filled entry of an Ethernet port's GID table is for; `None` where neither the library nor the kernel says.
    pub fn gid_type(&self, port: u8, index: u32) -> Option<GidType> {
        let Some(ask) = self.table().query_gid_ex else { return self.gid_type_of_kernel(port, index) };
        let mut entry = sys::ibv_gid_entry::default();
        // SAFETY: an open context, and room for the answer, whose size is passed.
        let code = unsafe { ask(self.raw(), port.into(), index, &mut entry, 0, size_of_val(&entry)) };
        match entry.gid_type {
            _ if code != 0 => None,
            sys::IBV_GID_TYPE_IB => Some(GidType::Ib),
            sys::IBV_GID_TYPE_ROCE_V1 => Some(GidType::RoceV1),
            sys::IBV_GID_TYPE_ROCE_V2 => Some(GidType::RoceV2),
            _ => None,
        }
    }

    /// As the kernel's sysfs writes it (Documentation/ABI/stable/sysfs-class-infiniband, gid_attrs), for libraries that
    /// do not tell.
    fn gid_type_of_kernel(&self, port: u8, index: u32) -> Option<GidType> {
        let file = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/types/{index}", self.name);
        match std::fs::read_to_string(file).ok()?.trim() {
            "RoCE v2" => Some(GidType::RoceV2),
            "IB/RoCE v1" => Some(GidType::RoceV1),
            _ => None,
        }
    }

    /// The network interface that an entry of an Ethernet port's GID table is of, as the kernel's sysfs says
    /// (Documentation/ABI/stable/sysfs-class-infiniband, gid_attrs).
    pub fn gid_interface(&self, port: u8, index: u32) -> Option<String> {
        let file = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs/ndevs/{index}", self.name);
        let name = std::fs::read_to_string(file).ok()?;
        Some(name.trim().to_owned()).filter(|name| !name.is_empty())
    }

    /// An entry of a port's P_Key table.
    ///
    /// # Errors
    /// There is no such entry.
    pub fn query_pkey(&self, port: u8, index: u16) -> Result<u16, Error> {
        let mut pkey = 0;
        // SAFETY: an open context, and room for the answer.
        let code = unsafe { (self.table().query_pkey)(self.raw(), port, index.into(), &mut pkey) };
        check("ibv_query_pkey", code, || format!("entry {index} of {} port {port}", self.name))?;
        Ok(u16::from_be(pkey))
    }

    /// Turns readable when an asynchronous event waits.
    pub fn async_fd(&self) -> std::ffi::c_int {
        // SAFETY: an open context.
        unsafe { (*self.raw()).async_fd }
    }

    /// Events are taken without waiting.
    fn async_nonblocking(&self) -> Result<(), Error> {
        set_nonblocking(self.async_fd()).map_err(|e| Error::new("fcntl", &self.name, e))
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: every object of the context holds it, so there is none left.
        let code = unsafe { (self.table().close_device)(self.raw()) };
        leaked("ibv_close_device", code, &self.name);
    }
}

/// Mb/s of a lane at each speed code (IBTA PortInfo.LinkSpeedActive), times the lanes of the width code.
fn rate(width: u8, speed: u8) -> u32 {
    let lanes = match width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 0,
    };
    let lane = match speed {
        1 => 2_500,
        2 => 5_000,
        4 | 8 => 10_000,
        16 => 14_000,
        32 => 25_000,
        64 => 50_000,
        128 => 100_000,
        _ => 0,
    };
    lanes * lane
}
