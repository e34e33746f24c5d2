//! The transport's counters as MPI_T performance variables, and `docs/counters.md`. Each is declared
//! once, in `transport::stats`.
//!
//! A variable is a counter bound to no object, read-only and continuous: a session reads what has
//! been counted since its handle was made, over all ports of the process.

use super::entry::TRANSPORT;
use super::guard::guard;
use crate::transport::stats::Stats;
use opal_sys::{Base, CounterVar, OPAL_SUCCESS, ReadCounterFn, mca_base_component_t};
use std::ffi::{CString, c_int, c_void};

/// Counters are for tuners.
const LEVEL: u8 = 5;

/// Makes functions of the numbers that C is to read counters by.
macro_rules! readers {
    ($($number:literal)+) => { [$(read::<$number>),+] };
}

/// The functions that read counters, as many as there may be.
const READERS: [ReadCounterFn; 40] = readers![
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39
];

const _: () = assert!(Stats::TABLE.len() <= READERS.len(), "more counters than functions that read them");

/// Registers the counters.
///
/// # Errors
/// The OPAL status.
///
/// # Safety
/// `component` is the component that is being registered.
pub unsafe fn register(base: &Base, component: *const mca_base_component_t) -> Result<(), c_int> {
    for (counter, read) in Stats::TABLE.iter().zip(READERS) {
        let (name, help) = (text(counter.name), text(&one_line(counter.help)));
        let var = CounterVar { name: &name, help: &help, level: LEVEL };
        // SAFETY: the caller vouches for the component; Open MPI takes the variables of a component
        // back when that is closed, before the functions are unloaded.
        unsafe { base.register_counter(component, &var, read) }?;
    }
    Ok(())
}

/// Counter number `N` of all ports.
///
/// # Safety
/// `value` is a place for an `unsigned long long`, as the variable was registered.
unsafe extern "C" fn read<const N: usize>(_: *const c_void, value: *mut c_void, _: *mut c_void) -> c_int {
    let stats = guard("reading of a counter", Stats::NONE, TRANSPORT.counters);
    let count = Stats::TABLE.get(N).map_or(0, |counter| (counter.of)(&stats));
    // SAFETY: Open MPI passes a place for the variable's type.
    unsafe { value.cast::<u64>().write(count) };
    OPAL_SUCCESS
}

fn text(text: &str) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Lines of documentation as one sentence after the other.
fn one_line(help: &str) -> String {
    help.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const HEAD: &str = "\
# Counters

Made from the table in `btl/src/transport/stats.rs`; please change it there.

What the ports of a process count, as performance variables of MPI's tool interface (MPI_T): class counter, type `unsigned long long`, bound to no
object, read-only, continuous. A handle reads what has been counted since it was made. Every name has the prefix `btl_oxib_`.
`mpirun --mca btl_oxib_stats 1` has each process print those that are not zero, for each port, at its end.

| name | what it counts |
|------|----------------|
";

    #[test]
    fn the_page_in_docs_is_the_one_of_the_table() {
        let row = |counter: &crate::transport::stats::Counter| {
            format!("| `{}` | {} |\n", counter.name, one_line(counter.help))
        };
        let page = Stats::TABLE.iter().fold(HEAD.to_owned(), |page, counter| page + &row(counter));
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/counters.md");
        if std::env::var_os("OXIB_WRITE_DOCS").is_some() {
            std::fs::write(&file, &page).expect("docs/ is writable");
        }
        let written = std::fs::read_to_string(&file).unwrap_or_default();
        assert!(written == page, "out of date: OXIB_WRITE_DOCS=1 cargo test -p btl --lib docs");
    }

    #[test]
    fn each_function_reads_its_own_counter() {
        let mut value = 7u64;
        for read in READERS {
            // SAFETY: a place for the value.
            let status = unsafe { read(std::ptr::null(), (&raw mut value).cast(), std::ptr::null_mut()) };
            assert_eq!((status, value), (OPAL_SUCCESS, 0), "nothing is open in this process");
        }
    }
}
