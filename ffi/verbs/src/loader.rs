//! Finds the machine's verbs library at run time.
//!
//! ```text
//!   dlopen("libibverbs.so.1")            RTLD_NOW | RTLD_LOCAL, never closed once devices were asked for: contexts outlive
//!                                    every owner of ours
//!     for each member of rdma_sys::Table
//!       dlvsym(name, its version)        the version whose structs we declare
//!       else under IBVERBS_1.0 only?     a library of before 2007: same names, other structs. Refused
//!       else dlsym(name)                 a library without version nodes, such as a plain drop-in
//!     query_port                         replaced by one that fills the whole ibv_port_attr
//!     oxib_softib_marker                 tells our own drop-in from rdma-core
//! ```
//!
//! A process has one verbs library, so the answer, good or bad, is found once and kept. Lookups go through the handle:
//! they see this library and what it links to, nothing that happens to be in the global namespace.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{self, NonNull};
use std::sync::OnceLock;

use rdma_sys::{SOFTIB_MARKER, Table, ibv_context, ibv_port_attr};

/// The soname of every libibverbs since 2006, rdma-core's and ours.
pub(crate) const LIBRARY: &CStr = c"libibverbs.so.1";

/// The oldest ABI: most functions exist there too, with incompatible structs.
const OLDEST: &CStr = c"IBVERBS_1.0";

/// What the machine's verbs library offers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loaded {
    /// Its control path; `query_port` fills the full `ibv_port_attr`.
    pub(crate) table: &'static Table,
    /// The library is our software device as a drop-in: the linked-in copy must stay off.
    pub(crate) software: bool,
}

/// Why there is no verbs library to work with.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum LoadError {
    /// `dlopen` failed; `reason` is its own text.
    #[error(
        "cannot load {library}: {reason}; rdma-core is probably not installed, or not where the dynamic linker looks: \
         install Debian's libibverbs1 and a provider (ibverbs-providers), or use the built-in software device"
    )]
    Open { library: String, reason: String },

    /// A function is in the library under no version.
    #[error(
        "{library} has no function {symbol} (version {version}); it is probably not rdma-core's library, or a cut-down \
         replacement: check LD_LIBRARY_PATH and LD_PRELOAD, or install Debian's libibverbs1 and a provider \
         (ibverbs-providers)"
    )]
    Missing { library: String, symbol: &'static str, version: &'static str },

    /// A function is there with the structs of before 2007 only.
    #[error(
        "{library} has {symbol} as version IBVERBS_1.0 only, {version} is needed; the library is probably older than \
         libibverbs 1.1 (2007): install Debian's libibverbs1 and a provider (ibverbs-providers), or remove the old \
         library from LD_LIBRARY_PATH"
    )]
    TooOld { library: String, symbol: &'static str, version: &'static str },
}

/// The machine's verbs library. The first call loads it, all others return the same answer.
pub(crate) fn load() -> Result<Loaded, LoadError> {
    static ANSWER: OnceLock<Result<Loaded, LoadError>> = OnceLock::new();
    ANSWER.get_or_init(|| resolve(LIBRARY).map(publish)).clone()
}

/// Whether a verbs library is our software device. One that is not is closed again: with the libraries
/// that it links to, rdma-core's takes half a megabyte of each process.
pub(crate) fn is_software(library: &CStr) -> bool {
    let Ok(library) = Library::open(library) else { return false };
    let software = library.find(SOFTIB_MARKER).is_some();
    if !software {
        // SAFETY: the handle was opened above and ends here; what `load` has found stands on a handle of its own.
        let _is_closed = unsafe { libc::dlclose(library.handle.as_ptr()) };
    }
    software
}

/// A library's control path as it exports it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Exports {
    pub(crate) table: Table,
    pub(crate) software: bool,
}

/// Opens `library` (a soname or a path) and finds all functions of the table in it.
pub(crate) fn resolve(library: &CStr) -> Result<Exports, LoadError> {
    let library = Library::open(library)?;
    let software = library.find(SOFTIB_MARKER).is_some();
    let name = if software { "softib" } else { "rdma-core" };
    // SAFETY: `require` looks each name up in a verbs library, under the version whose ABI the table declares.
    let table = unsafe { Table::fill(name, |symbol, version| library.require(symbol, version)) }?;
    Ok(Exports { table, software })
}

/// The exported functions of the process's verbs library: what [`query_port`] falls back to.
static EXPORTED: OnceLock<Table> = OnceLock::new();

/// Gives the exports to the process for good, with the full `query_port` in place of the exported one.
fn publish(exports: Exports) -> Loaded {
    let exported = EXPORTED.get_or_init(|| exports.table);
    let table = Box::leak(Box::new(Table { query_port, ..*exported }));
    Loaded { table, software: exports.software }
}

/// `ibv_query_port` as `verbs.h` means it: through the extended context with the full struct size, else by the
/// exported symbol, which knows the compat struct only. Nothing in it can unwind.
unsafe extern "C" fn query_port(ctx: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    match EXPORTED.get() {
        // SAFETY: the caller promises a live context and a writable `attr`; contexts come from the
        // library that was published, and `exported` is its table.
        Some(exported) => unsafe { rdma_sys::ibv_query_port(exported, ctx, port, attr) },
        None => libc::ENOSYS,
    }
}

/// A shared library. One that functions have been taken from stays open until the process ends.
#[derive(Clone, Copy)]
pub(crate) struct Library {
    handle: NonNull<c_void>,
}

impl Library {
    pub(crate) fn open(name: &CStr) -> Result<Library, LoadError> {
        // SAFETY: a NUL-terminated name; constructors of a verbs library do nothing that depends on us.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Library { handle }),
            None => Err(LoadError::Open { library: text(name), reason: last_dl_error() }),
        }
    }

    /// The function of this name with the ABI of this version.
    fn require(self, symbol: &'static CStr, version: &'static CStr) -> Result<NonNull<c_void>, LoadError> {
        if let Some(found) = self.find_version(symbol, version) {
            return Ok(found);
        }
        let (name, wanted) = (static_text(symbol), static_text(version));
        if version != OLDEST && self.find_version(symbol, OLDEST).is_some() {
            return Err(LoadError::TooOld { library: self.path(), symbol: name, version: wanted });
        }
        self.find(symbol).ok_or_else(|| LoadError::Missing {
            library: self.path(),
            symbol: name,
            version: wanted,
        })
    }

    pub(crate) fn find_version(self, symbol: &CStr, version: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, the names end in NUL.
        NonNull::new(unsafe { libc::dlvsym(self.handle.as_ptr(), symbol.as_ptr(), version.as_ptr()) })
    }

    /// The symbol in its default version.
    fn find(self, symbol: &CStr) -> Option<NonNull<c_void>> {
        // SAFETY: the handle is open, the name ends in NUL.
        NonNull::new(unsafe { libc::dlsym(self.handle.as_ptr(), symbol.as_ptr()) })
    }

    /// The file that the dynamic linker chose, for messages.
    pub(crate) fn path(self) -> String {
        let mut map: *const LinkMap = ptr::null();
        // SAFETY: the handle is open, and RTLD_DI_LINKMAP writes one pointer.
        let rc = unsafe { libc::dlinfo(self.handle.as_ptr(), libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) };
        if rc != 0 || map.is_null() {
            return text(LIBRARY);
        }
        // SAFETY: the link map and its name live as long as the library, whose handle is open.
        text(unsafe { CStr::from_ptr((*map).name) })
    }
}

/// The public beginning of glibc's `struct link_map` (`link.h`).
#[repr(C)]
struct LinkMap {
    addr: usize,
    name: *const c_char,
}

/// What the dynamic linker says about the last failed call of this thread.
fn last_dl_error() -> String {
    // SAFETY: always callable; the text is copied before the thread's next dl call.
    let message = unsafe { libc::dlerror() };
    if message.is_null() {
        return "the dynamic linker gives no reason".to_owned();
    }
    // SAFETY: a non-null answer is a C string that is valid until the next dl call.
    text(unsafe { CStr::from_ptr(message) })
}

fn text(name: &CStr) -> String {
    name.to_string_lossy().into_owned()
}

/// Names of symbols and versions are ASCII literals.
pub(crate) fn static_text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or("?")
}
