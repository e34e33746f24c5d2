//! Declarations that leave a list behind.
//!
//! `c_enums!` declares the aliases and constants of one file and collects them in that file's `CONSTS`, so that the
//! comparison with the C header covers every constant by construction. `zeroed_default!` gives plain attribute structs
//! the `Default` that C programs get from `memset`. `opaque!` declares types that are only ever pointed to; `symbol_table!`
//! a library's functions. The other raw binding crates use them as well.

/// Declares integer aliases for C enums, their constants, and the list `CONSTS` of all of them.
#[macro_export]
macro_rules! c_enums {
    ($( $(#[$doc:meta])* $ty:ident : $repr:ty { $( $name:ident = $value:expr ),* $(,)? } )*) => {
        $( $(#[$doc])* pub type $ty = $repr; $( pub const $name: $ty = $value; )* )*
        /// Every constant of this file with its value, for the comparison with the C header.
        pub(crate) const CONSTS: &[(&str, i64)] = &[ $( $( (stringify!($name), $name as i64), )* )* ];
    };
}

/// Implements `Default` as all bytes zero, as `memset` does it in C.
#[macro_export]
macro_rules! zeroed_default {
    ($($ty:ty),* $(,)?) => { $(
        impl Default for $ty {
            #[inline]
            fn default() -> Self {
                // SAFETY: integers, nullable pointers, `Option`s of functions and unions of those: all-zero is valid.
                unsafe { core::mem::zeroed() }
            }
        }
    )* };
}

/// Declares C types of which we only ever hold pointers.
#[macro_export]
macro_rules! opaque {
    ($( $(#[$doc:meta])* $ty:ident ),* $(,)?) => { $(
        $(#[$doc])*
        #[repr(C)]
        pub struct $ty {
            _private: [u8; 0],
        }
    )* };
}

/// Declares `Table`, the functions of a library, and `SYMBOLS` with the C name and symbol version of each member: those whose ABI
/// the member has. Older versions of a name may take other structs, so a lookup must never fall back to one.
#[macro_export]
macro_rules! symbol_table {
    (
        $( $(#[$doc:meta])* $field:ident, $symbol:literal, $version:literal : $ty:ty; )*
        $( @optional { $( $(#[$may_doc:meta])* $may:ident, $may_symbol:literal, $may_version:literal : $may_ty:ty; )* } )?
    ) => {
        /// The functions of one library.
        #[derive(Clone, Copy, Debug)]
        pub struct Table {
            /// Who filled it, for messages: "rdma-core", "softib".
            pub name: &'static str,
            $( $(#[$doc])* pub $field: $ty, )*
            $( $( $(#[$may_doc])* pub $may: Option<$may_ty>, )* )?
        }

        /// C name and symbol version of each member of [`Table`] that a library must have, in its order.
        pub const SYMBOLS: &[(&str, &str)] = &[ $( ($symbol, $version), )* ];

        impl Table {
            /// Fills a table by asking `find` for each symbol and its version. The first failure ends it, but for an
            /// optional member, which is `None` then.
            ///
            /// # Safety
            /// What `find` returns for a name must be the address of the library's function of that name.
            pub unsafe fn fill<E>(
                name: &'static str,
                mut find: impl FnMut(
                    &'static core::ffi::CStr,
                    &'static core::ffi::CStr,
                ) -> Result<core::ptr::NonNull<core::ffi::c_void>, E>,
            ) -> Result<Table, E> {
                $(
                    let found = find(
                        $crate::c_name(concat!($symbol, "\0")),
                        $crate::c_name(concat!($version, "\0")),
                    )?;
                    let address = found.as_ptr();
                    // SAFETY: the caller promises that `find` returns the library's function of
                    // this name, whose type at this version is `$ty`; function and data pointers
                    // have the same size on every target with dlsym.
                    let $field = unsafe { core::mem::transmute::<*mut core::ffi::c_void, $ty>(address) };
                )*
                $( $(
                    let found = find(
                        $crate::c_name(concat!($may_symbol, "\0")),
                        $crate::c_name(concat!($may_version, "\0")),
                    );
                    let $may = found.ok().map(|found| {
                        let address = found.as_ptr();
                        // SAFETY: the caller promises that `find` returns the library's function of
                        // this name, whose type at this version is `$may_ty`; function and data
                        // pointers have the same size on every target with dlsym.
                        unsafe { core::mem::transmute::<*mut core::ffi::c_void, $may_ty>(address) }
                    });
                )* )?
                Ok(Table { name, $( $field, )* $( $( $may, )* )? })
            }
        }
    };
}

/// A literal that ends in NUL as a C string; the empty one if it does not.
#[doc(hidden)]
pub fn c_name(literal: &'static str) -> &'static core::ffi::CStr {
    core::ffi::CStr::from_bytes_with_nul(literal.as_bytes()).unwrap_or(c"")
}
