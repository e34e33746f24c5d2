//! Looking up symbols of the process that loaded us. A resolver is passed in, so that tests can play other releases.

use crate::error::AbiError;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// Address of a symbol, or `None`.
pub(crate) type Resolver<'a> = &'a dyn Fn(&CStr) -> Option<NonNull<c_void>>;

/// The libraries that have them: OPAL's by release, and MPI's.
const LIBRARIES: [&CStr; 3] = [c"libopen-pal.so.80", c"libopen-pal.so.40", c"libmpi.so.40"];

/// The resolver of real life: whatever the loader sees from here, as it would for an undefined symbol of ours; else what
/// Open MPI's library has, which a language may have loaded for itself only (RTLD_LOCAL).
pub(crate) fn of_this_process(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a NUL-terminated name and the pseudo handle that searches every loaded object.
    let global = NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) });
    global.or_else(|| LIBRARIES.into_iter().find_map(|library| of_loaded(library, name)))
}

/// A symbol of a library that is loaded already, or of those that it depends on.
fn of_loaded(library: &CStr, name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: NUL-terminated names; NOLOAD runs no code. The library has loaded us, or was loaded by who did, and stays:
    // the address is good without our reference to it.
    unsafe {
        let handle = NonNull::new(libc::dlopen(library.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD))?;
        let address = libc::dlsym(handle.as_ptr(), name.as_ptr());
        libc::dlclose(handle.as_ptr());
        NonNull::new(address)
    }
}

/// Address of a symbol that must be there.
pub(crate) fn data<T>(resolve: Resolver<'_>, name: &'static CStr) -> Result<NonNull<T>, AbiError> {
    resolve(name).map(NonNull::cast).ok_or(AbiError::Missing { symbol: name })
}

/// A function that must be there, as function pointer type `F`.
///
/// # Safety
/// `F` is a function pointer type with the signature that the symbol has in every supported release.
pub(crate) unsafe fn function<F: Copy>(resolve: Resolver<'_>, name: &'static CStr) -> Result<F, AbiError> {
    let address = data::<c_void>(resolve, name)?;
    // SAFETY: the caller vouches for the type.
    Ok(unsafe { as_function(address) })
}

unsafe fn as_function<F: Copy>(address: NonNull<c_void>) -> F {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>(), "function pointers only") };
    // SAFETY: both are one non-null word, and the caller of our caller vouches for the signature.
    unsafe { std::mem::transmute_copy(&address) }
}
