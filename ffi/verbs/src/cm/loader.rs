//! Finds the machine's connection manager at run time, as the verbs library is found.

use crate::loader::{self, Library, LoadError, static_text};
use rdma_cm_sys::Table;
use std::ffi::CStr;
use std::ptr;
use std::sync::OnceLock;

/// The soname of every librdmacm, rdma-core's and ours.
const LIBRARY: &CStr = c"librdmacm.so.1";

/// Whether a verbs table is that of the machine's library, rather than a linked-in device's.
pub(crate) fn is_machines(table: &'static rdma_sys::Table) -> bool {
    loader::load().is_ok_and(|loaded| ptr::eq(loaded.table, table))
}

/// The machine's connection manager. Looked for once; the answer, good or bad, is kept.
pub(crate) fn load() -> Result<&'static Table, String> {
    static ANSWER: OnceLock<Result<Table, String>> = OnceLock::new();
    ANSWER.get_or_init(resolve).as_ref().map_err(Clone::clone)
}

fn resolve() -> Result<Table, String> {
    let library = Library::open(LIBRARY).map_err(|error| match error {
        LoadError::Open { reason, .. } => {
            format!("{reason}; install Debian's librdmacm1, or use another connection component")
        }
        other => other.to_string(),
    })?;
    let find = |symbol: &'static CStr, version: &'static CStr| {
        library.find_version(symbol, version).ok_or_else(|| {
            let (symbol, version) = (static_text(symbol), static_text(version));
            format!("{} has no {symbol} ({version}): it is older than rdma-core 24", library.path())
        })
    };
    // SAFETY: looked up by name and version in a librdmacm, whose public versions never change.
    unsafe { Table::fill("librdmacm", find) }
}
