//! The device list: which devices there are, before any is opened.

use super::guard::{guard, guard_ptr};
use crate::errno::Errno;
use crate::fabric;
use crate::faults::{Call, calls as faults};
use crate::objects::zeroed;
use crate::shm::layout::PORTS;
use rdma_sys::*;
use std::ffi::{c_char, c_int};
use std::sync::OnceLock;

/// The devices that have been listed, by number and, if a program has changed its settings meanwhile, by kind: others, and iWARP ones. They
/// live as long as the process, like real ones.
static DEVICES: [[OnceLock<usize>; 2]; PORTS] = [const { [const { OnceLock::new() }; 2] }; PORTS];

/// Device `number` of this process, which is below [`PORTS`].
fn nth_device(number: usize) -> *mut ibv_device {
    *DEVICES[number][usize::from(is_iwarp())].get_or_init(|| {
        // SAFETY: device_with_slack is plain C data; zeroes are valid.
        let mut device: Box<device_with_slack> = Box::new(unsafe { zeroed() });
        let (c, name) = (&mut device.device, format!("{}{number}", fabric::NAME));
        (c.node_type, c.transport_type) = transport();
        put_name(&mut c.name, &name);
        put_name(&mut c.dev_name, &name);
        put_name(&mut c.ibdev_path, &format!("/sys/class/infiniband/{name}"));
        Box::into_raw(device) as usize
    }) as *mut ibv_device
}

/// The number of a device of ours: 0 for softib0. None: it is another library's.
pub fn number_of(device: *const ibv_device) -> Option<usize> {
    let is_it = |known: &OnceLock<usize>| known.get().is_some_and(|&at| at == device.addr());
    DEVICES.iter().position(|kinds| kinds.iter().any(is_it))
}

/// The number of the device that a context is of. EINVAL: it is none of ours.
pub fn device_of(context: *mut ibv_context) -> Result<usize, Errno> {
    // SAFETY: the program passes a context of ours.
    number_of(unsafe { (*context).device }).ok_or(Errno::INVAL)
}

/// Node and transport type, as the settings have them.
fn transport() -> (i32, i32) {
    if is_iwarp() { (IBV_NODE_RNIC, IBV_TRANSPORT_IWARP) } else { (IBV_NODE_CA, IBV_TRANSPORT_IB) }
}

/// Whether the settings ask for iWARP ports.
pub fn is_iwarp() -> bool {
    fabric::link_layer() == fabric::LinkLayer::Iwarp
}

/// Whether this is a device of ours, and not one of another library in this process.
pub fn is_device(device: *const ibv_device) -> bool {
    number_of(device).is_some()
}

/// Writes a name into a C string that is long enough for it.
pub fn put_name(to: &mut [c_char], name: &str) {
    for (to, from) in to.iter_mut().zip(name.bytes()) {
        *to = from as c_char;
    }
}

/// A list of devices, with room for all that there can be and the end.
type List = [*mut ibv_device; PORTS + 1];

/// `ibv_get_device_list(3)`.
pub unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    guard_ptr(|| {
        faults::arm_from_environment();
        faults::fate(Call::GetDeviceList)?;
        // What cannot be understood is told when a device is opened.
        let devices = fabric::settings().map_or(1, |settings| settings.devices);
        let mut list: Box<List> = Box::new([std::ptr::null_mut(); PORTS + 1]);
        for (number, slot) in list.iter_mut().enumerate().take(devices) {
            *slot = nth_device(number);
        }
        if !count.is_null() {
            // SAFETY: the program passes null or a valid pointer.
            unsafe { *count = devices as c_int };
        }
        Ok(Box::leak(list).as_mut_ptr())
    })
}

/// `ibv_free_device_list(3)`.
pub unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    guard(|| {
        if !list.is_null() {
            // SAFETY: made by get_device_list, freed once by the rules of the API.
            drop(unsafe { Box::from_raw(list.cast::<List>()) });
        }
        Ok(())
    });
}

/// `ibv_get_device_name(3)`.
pub unsafe extern "C" fn get_device_name(device: *mut ibv_device) -> *const c_char {
    // SAFETY: a device from our list; the name lives as long as the device, which is for ever.
    unsafe { (*device).name.as_ptr() }
}

/// `ibv_get_device_guid(3)`.
pub unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    u64::from_ne_bytes(fabric::guid(number_of(device).unwrap_or(0)))
}

/// Nothing to do: registered memory is not pinned, fork is harmless.
pub unsafe extern "C" fn fork_init() -> c_int {
    0
}
