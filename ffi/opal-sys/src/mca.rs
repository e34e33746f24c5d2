//! MCA components and variables (`opal/mca/mca.h`, `opal/mca/base/mca_base_var.h`), equal in 4.1 and 5.0.

use std::ffi::{c_char, c_int};
use std::mem::{offset_of, size_of};

/// Most characters of a project's name, the final NUL not counted.
pub const MCA_BASE_MAX_PROJECT_NAME_LEN: usize = 15;
/// Most characters of a framework's name, the final NUL not counted.
pub const MCA_BASE_MAX_TYPE_NAME_LEN: usize = 31;
/// Most characters of a component's name, the final NUL not counted.
pub const MCA_BASE_MAX_COMPONENT_NAME_LEN: usize = 63;

/// Open, close and register callbacks of a component.
pub type mca_component_fn_t = Option<unsafe extern "C" fn() -> c_int>;

/// Identity and life cycle of a component; the loader looks for it under `mca_<type>_<name>_component`.
#[repr(C)]
pub struct mca_base_component_t {
    /// MCA version: the loader accepts 2.1 only.
    pub mca_major_version: c_int,
    pub mca_minor_version: c_int,
    pub mca_release_version: c_int,
    pub mca_project_name: [c_char; MCA_BASE_MAX_PROJECT_NAME_LEN + 1],
    pub mca_project_major_version: c_int,
    pub mca_project_minor_version: c_int,
    pub mca_project_release_version: c_int,
    pub mca_type_name: [c_char; MCA_BASE_MAX_TYPE_NAME_LEN + 1],
    pub mca_type_major_version: c_int,
    pub mca_type_minor_version: c_int,
    pub mca_type_release_version: c_int,
    pub mca_component_name: [c_char; MCA_BASE_MAX_COMPONENT_NAME_LEN + 1],
    pub mca_component_major_version: c_int,
    pub mca_component_minor_version: c_int,
    pub mca_component_release_version: c_int,
    pub mca_open_component: mca_component_fn_t,
    pub mca_close_component: mca_component_fn_t,
    pub mca_query_component: mca_component_fn_t,
    pub mca_register_component_params: mca_component_fn_t,
    pub mca_component_flags: i32,
    pub reserved: [c_char; 28],
}

/// What the component can do besides; zero for us (no checkpoints).
#[repr(C)]
pub struct mca_base_component_data_t {
    pub param_field: u32,
    pub reserved: [c_char; 32],
}

/// Values of an MCA enumerator.
#[repr(C)]
pub struct mca_base_var_enum_t {
    _opaque: [u8; 0],
}

/// C type of a variable (`mca_base_var_type_t`, an enum in C).
pub type mca_base_var_type_t = u32;
/// `int`
pub const MCA_BASE_VAR_TYPE_INT: mca_base_var_type_t = 0;
/// `unsigned int`
pub const MCA_BASE_VAR_TYPE_UNSIGNED_INT: mca_base_var_type_t = 1;
/// `unsigned long long`
pub const MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG: mca_base_var_type_t = 3;
/// `size_t`
pub const MCA_BASE_VAR_TYPE_SIZE_T: mca_base_var_type_t = 4;
/// `char *`
pub const MCA_BASE_VAR_TYPE_STRING: mca_base_var_type_t = 5;
/// `bool`
pub const MCA_BASE_VAR_TYPE_BOOL: mca_base_var_type_t = 7;

/// Class of a performance variable (`opal/mca/base/mca_base_pvar.h`): the value is the highest that
/// there has been.
pub const MCA_BASE_PVAR_CLASS_HIGHWATERMARK: std::ffi::c_int = 4;
/// Class: the value is the lowest that there has been.
pub const MCA_BASE_PVAR_CLASS_LOWWATERMARK: std::ffi::c_int = 5;
/// Class: the value grows with each event.
pub const MCA_BASE_PVAR_CLASS_COUNTER: std::ffi::c_int = 6;
/// The variable is bound to no MPI object.
pub const MCA_BASE_VAR_BIND_NO_OBJECT: std::ffi::c_int = 0;
/// Flags of a performance variable.
pub type mca_base_pvar_flag_t = u32;
/// Gone with its component.
pub const MCA_BASE_PVAR_FLAG_IWG: mca_base_pvar_flag_t = 0x40;
/// A tool can't write or reset the variable.
pub const MCA_BASE_PVAR_FLAG_READONLY: mca_base_pvar_flag_t = 0x80;
/// The variable counts always: a tool can't start or stop it.
pub const MCA_BASE_PVAR_FLAG_CONTINUOUS: mca_base_pvar_flag_t = 0x100;

/// Who must agree on a variable's value; information for MPI_T tools.
pub type mca_base_var_scope_t = u32;
/// Does not change after its registration.
pub const MCA_BASE_VAR_SCOPE_CONSTANT: mca_base_var_scope_t = 0;
/// Can't be set at run time.
pub const MCA_BASE_VAR_SCOPE_READONLY: mca_base_var_scope_t = 1;
/// Each process may have its own.
pub const MCA_BASE_VAR_SCOPE_LOCAL: mca_base_var_scope_t = 2;
/// The values of all processes have to be consistent.
pub const MCA_BASE_VAR_SCOPE_ALL: mca_base_var_scope_t = 5;
/// All processes have to have the same value.
pub const MCA_BASE_VAR_SCOPE_ALL_EQ: mca_base_var_scope_t = 6;

/// Where a variable's value came from.
pub type mca_base_var_source_t = u32;
/// The default: it has not been set.
pub const MCA_BASE_VAR_SOURCE_DEFAULT: mca_base_var_source_t = 0;

const _: () = {
    assert!(size_of::<mca_base_component_t>() == 224);
    assert!(offset_of!(mca_base_component_t, mca_project_name) == 12);
    assert!(offset_of!(mca_base_component_t, mca_type_name) == 40);
    assert!(offset_of!(mca_base_component_t, mca_component_name) == 84);
    assert!(offset_of!(mca_base_component_t, mca_open_component) == 160);
    assert!(offset_of!(mca_base_component_t, mca_register_component_params) == 184);
    assert!(offset_of!(mca_base_component_t, mca_component_flags) == 192);
    assert!(size_of::<mca_base_component_data_t>() == 36);
};
