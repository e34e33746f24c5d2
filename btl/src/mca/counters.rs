//! The transport's counters as MPI_T performance variables, and `docs/counters.md`. Each is declared
//! once, in `transport::stats`.
//!
//! A variable is a counter or a mark, bound to no object, read-only and continuous: a session reads
//! what has been counted since its handle was made, over all ports of the process, and the highest or
//! lowest since the process began.

use super::entry::TRANSPORT;
use super::guard::guard;
use crate::transport::stats::{Kind, Stats};
use opal_sys::{Base, CounterClass, CounterVar, OPAL_SUCCESS, ReadCounterFn, mca_base_component_t};
use std::ffi::{CString, c_int, c_void};

/// Counters are for tuners.
const LEVEL: u8 = 5;

/// Makes functions of the numbers that C is to read counters by.
macro_rules! readers {
    ($($number:literal)+) => { [$(read::<$number>),+] };
}

/// The functions that read counters, as many as there may be.
const READERS: [ReadCounterFn; 64] = readers![
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31
    32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63
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
        let var = CounterVar { name: &name, help: &help, level: LEVEL, class: class(counter.kind) };
        // SAFETY: the caller vouches for the component; Open MPI takes the variables of a component
        // back when that is closed, before the functions are unloaded.
        unsafe { base.register_counter(component, &var, read) }?;
    }
    Ok(())
}

/// MPI's word for what a counter's value does.
fn class(kind: Kind) -> CounterClass {
    match kind {
        Kind::Sum => CounterClass::Counter,
        Kind::Highest => CounterClass::HighWatermark,
        Kind::Lowest => CounterClass::LowWatermark,
    }
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

What the ports of a process count, as performance variables of MPI's tool interface (MPI_T): type `unsigned long long`, bound to no object,
read-only, continuous. Every name has the prefix `btl_oxib_`. The kind is the variable's class:

* sum (`MPI_T_PVAR_CLASS_COUNTER`): a handle reads what has been counted since it was made, over all ports.
* highest (`MPI_T_PVAR_CLASS_HIGHWATERMARK`) and lowest (`MPI_T_PVAR_CLASS_LOWWATERMARK`): the mark since the process began, whenever the handle
  was made, over all ports.

`mpirun --mca btl_oxib_stats 1` has each process print those that have counted something, for each port, at its end; behind them, in a line of its own, the
bytes to and from each peer. Tools read the sum of all peers and the largest one of each direction instead: a variable that is bound to no object cannot
say which peer an element is of, Open MPI fixes the number of elements when a handle is made, before most peers are known, and its objects with peers,
communicators, are unknown to a BTL.

| name | kind | what it counts |
|------|------|----------------|
";

    #[test]
    fn the_page_in_docs_is_the_one_of_the_table() {
        let row = |counter: &crate::transport::stats::Counter| {
            let kind = format!("{:?}", counter.kind).to_lowercase();
            format!("| `{}` | {kind} | {} |\n", counter.name, one_line(counter.help))
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
        let starts = Stats::TABLE.iter().map(|counter| counter.kind.start());
        for (read, start) in READERS.into_iter().zip(starts.chain(std::iter::repeat(0))) {
            // SAFETY: a place for the value.
            let status = unsafe { read(std::ptr::null(), (&raw mut value).cast(), std::ptr::null_mut()) };
            assert_eq!((status, value), (OPAL_SUCCESS, start), "nothing is open in this process");
        }
    }
}
