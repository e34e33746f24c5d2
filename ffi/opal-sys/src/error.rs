//! Why a process is not served, as its user reads it.

use std::ffi::{CStr, c_int};

/// Why this process's Open MPI can't be served.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AbiError {
    /// Not an Open MPI, or one unlike any known.
    Missing { symbol: &'static CStr },
    /// A release family without a table.
    Unsupported { version: String },
    /// Open MPI 6 or later.
    TooNew { version: String },
    /// `--enable-debug`: objects are longer.
    Debug { version: String, object: usize },
    /// `--with-cuda`: modules are longer.
    Cuda { version: String },
    /// The BTLs of the library are built for another version of the interface than its number promises.
    Interface { version: String, found: (c_int, c_int), expected: (c_int, c_int) },
    /// A structure has a size that no known build gives it.
    Layout { version: String, class: &'static CStr, size: usize, expected: usize },
}

impl std::fmt::Display for AbiError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing { symbol } => {
                write!(f, "no symbol {symbol:?} here: this is no Open MPI that oxib knows")
            }
            Self::Unsupported { version } => {
                write!(f, "Open MPI {version} is not supported; oxib works with Open MPI 4.1 and 5.0")
            }
            Self::TooNew { version } => write!(
                f,
                "Open MPI {version} is not supported yet; this release of oxib works with Open MPI 4.1 and 5.0"
            ),
            Self::Debug { version, object } => write!(
                f,
                "this Open MPI {version} is a debug build (objects of {object} bytes instead of 16); \
                 oxib needs one that was configured without --enable-debug"
            ),
            Self::Cuda { version } => write!(
                f,
                "this Open MPI {version} was built with CUDA support, which changes the BTL interface; \
                 oxib needs one that was configured without --with-cuda"
            ),
            Self::Interface { version, found, expected } => write!(
                f,
                "this Open MPI {version} has BTL interface {}.{} instead of {}.{}; oxib does not know such a build",
                found.0, found.1, expected.0, expected.1
            ),
            Self::Layout { version, class, size, expected } => write!(
                f,
                "in this Open MPI {version} {} has {size} bytes instead of {expected}; oxib does not know such a build",
                class.to_string_lossy()
            ),
        }
    }
}

impl std::error::Error for AbiError {}
