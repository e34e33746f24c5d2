//! Does this Open MPI fit one of our tables? The version names the family, and everything that a build says about
//! itself must agree with it:
//!
//! * the exported class objects carry the sizes of their structures (debug builds have longer objects),
//! * a flag tells of CUDA (which makes modules longer),
//! * the BTLs that are part of the library, if there are any, carry the version of the interface they were built for.

use crate::btl::mca_btl_base_descriptor_t;
use crate::class::{opal_class_t, opal_object_t};
use crate::error::AbiError;
use crate::family::Family;
use crate::mca::mca_base_component_t;
use crate::process::{opal_proc_4_1_t, opal_proc_t};
use crate::symbols::{self, Resolver};
use crate::v4_1::V4_1;
use crate::v5_0::V5_0;
use std::ffi::{CStr, c_int};
use std::mem::size_of;
use std::ptr::NonNull;

/// What a family's builds say about themselves.
#[derive(Debug, Clone, Copy)]
struct Facts {
    /// Bytes of `opal_proc_t`.
    process: usize,
    /// Bytes of `opal_convertor_t`, of which we know the head only: 6.0 has another one behind the same BTL version.
    convertor: usize,
    /// Version of the BTL interface.
    btl: (c_int, c_int),
}

const FACTS_4_1: Facts = Facts { process: size_of::<opal_proc_4_1_t>(), convertor: 264, btl: (3, 1) };
const FACTS_5_0: Facts = Facts { process: size_of::<opal_proc_t>(), convertor: 280, btl: (3, 3) };

/// The table for this library, if all that it says about itself fits.
///
/// # Errors
/// What does not fit.
pub(crate) fn family(find: Resolver<'_>, version: &str) -> Result<Box<dyn Family>, AbiError> {
    let major: u32 = version.split('.').next().and_then(|part| part.parse().ok()).unwrap_or(0);
    let (old, new) = (find(V4_1::MARK).is_some(), find(V5_0::MARK).is_some());
    if version.starts_with("4.1.") && old && !new {
        check(find, version, FACTS_4_1)?;
        return Ok(Box::new(V4_1::resolve(find)?));
    }
    if major == 5 && new && !old {
        check(find, version, FACTS_5_0)?;
        return Ok(Box::new(V5_0::resolve(find)?));
    }
    let version = version.to_owned();
    Err(if major > 5 { AbiError::TooNew { version } } else { AbiError::Unsupported { version } })
}

fn check(find: Resolver<'_>, version: &str, facts: Facts) -> Result<(), AbiError> {
    let object = class_size(find, c"opal_object_t_class")?;
    if object != size_of::<opal_object_t>() {
        return Err(AbiError::Debug { version: version.into(), object });
    }
    if symbols::data::<bool>(find, c"opal_built_with_cuda_support").is_ok_and(is_set) {
        return Err(AbiError::Cuda { version: version.into() });
    }
    check_interface(find, version, facts.btl)?;
    let sizes = [
        (c"mca_btl_base_descriptor_t_class", size_of::<mca_btl_base_descriptor_t>()),
        (c"opal_proc_t_class", facts.process),
        (c"opal_convertor_t_class", facts.convertor),
    ];
    sizes.into_iter().try_for_each(|(class, expected)| {
        let size = class_size(find, class)?;
        let version = version.to_owned();
        if size == expected { Ok(()) } else { Err(AbiError::Layout { version, class, size, expected }) }
    })
}

fn is_set(flag: NonNull<bool>) -> bool {
    // SAFETY: the symbol is a `bool` that tells about the build, never written to.
    unsafe { *flag.as_ptr() }
}

/// The first BTL that is part of the library; there is none where all components are files of their own.
fn check_interface(find: Resolver<'_>, version: &str, expected: (c_int, c_int)) -> Result<(), AbiError> {
    let list = symbols::data::<*const mca_base_component_t>(find, c"mca_btl_base_static_components")?;
    // SAFETY: the symbol is an array of pointers to components that ends with NULL; its first entry may be read, and
    // the head of a component has the same shape in every release with MCA version 2.1.
    let first = unsafe { (*list.as_ptr()).as_ref() };
    let found = first.map(|component| (component.mca_type_major_version, component.mca_type_minor_version));
    match found {
        Some(found) if found != expected => {
            Err(AbiError::Interface { version: version.into(), found, expected })
        }
        _ => Ok(()),
    }
}

fn class_size(find: Resolver<'_>, name: &'static CStr) -> Result<usize, AbiError> {
    let class = symbols::data::<opal_class_t>(find, name)?;
    // SAFETY: class objects are static and have this shape in debug builds too.
    Ok(unsafe { (*class.as_ptr()).cls_sizeof })
}
