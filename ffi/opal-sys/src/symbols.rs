//! Looking up symbols of the process that loaded us. A resolver is passed in, so that tests can play other releases.

use crate::abi::AbiError;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// Address of a symbol, or `None`.
pub(crate) type Resolver<'a> = &'a dyn Fn(&CStr) -> Option<NonNull<c_void>>;

/// The resolver of real life: whatever the loader sees from here, as it would for an undefined symbol of ours.
pub(crate) fn of_this_process(name: &CStr) -> Option<NonNull<c_void>> {
    // SAFETY: a NUL-terminated name and the pseudo handle that searches every loaded object.
    NonNull::new(unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) })
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
