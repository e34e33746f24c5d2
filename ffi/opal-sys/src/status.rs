//! Return codes of OPAL functions and BTL callbacks (`opal/constants.h`, equal in 4.1 and 5.0).

use std::ffi::c_int;

/// Done.
pub const OPAL_SUCCESS: c_int = 0;
/// Failed, for no reason that has a code of its own.
pub const OPAL_ERROR: c_int = -1;
/// The caller may try again later: ob1 queues the fragment.
pub const OPAL_ERR_OUT_OF_RESOURCE: c_int = -2;
/// As [`OPAL_ERR_OUT_OF_RESOURCE`]; for a short time, it is expected.
pub const OPAL_ERR_TEMP_OUT_OF_RESOURCE: c_int = -3;
/// From `btl_send`: the BTL keeps the fragment and will complete it (the BML reads it as success).
pub const OPAL_ERR_RESOURCE_BUSY: c_int = -4;
/// An argument can't be.
pub const OPAL_ERR_BAD_PARAM: c_int = -5;
/// Nothing can go on.
pub const OPAL_ERR_FATAL: c_int = -6;
/// The function is there in name only.
pub const OPAL_ERR_NOT_IMPLEMENTED: c_int = -7;
/// Not with this build, device or argument.
pub const OPAL_ERR_NOT_SUPPORTED: c_int = -8;
/// The process can't be reached.
pub const OPAL_ERR_UNREACH: c_int = -12;
/// There is no such thing.
pub const OPAL_ERR_NOT_FOUND: c_int = -13;
/// It has taken too long.
pub const OPAL_ERR_TIMEOUT: c_int = -15;
/// From a component's register or open function: leave me out, silently.
pub const OPAL_ERR_NOT_AVAILABLE: c_int = -16;
/// A variable's value is outside of its range.
pub const OPAL_ERR_VALUE_OUT_OF_BOUNDS: c_int = -18;
