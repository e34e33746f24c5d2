//! Declarations that leave a list behind.
//!
//! `c_enums!` declares the aliases and constants of one file and collects them in that file's `CONSTS`, so that the
//! comparison with the C header covers every constant by construction. `zeroed_default!` gives plain attribute structs
//! the `Default` that C programs get from `memset`. `opaque!` declares types that are only ever pointed to. The other raw
//! binding crates use them as well.

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
