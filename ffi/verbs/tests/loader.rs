//! The loader, against small libraries made here with `cc`: what it takes, what it refuses, and what it says then.
//!
//! Every library answers each verb with a number of its own, so that a test sees which version it got. Only the one
//! for `load()` has the soname `libibverbs.so.1`, so that the dynamic linker takes it for the machine's own.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "helpers of tests fail by panicking"
)]

use std::ffi::{CStr, CString, c_int};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Once;

use rdma_sys::{SOFTIB_MARKER, SYMBOLS, VERBS_ABI_IS_EXTENDED, ibv_context, ibv_port_attr, verbs_context};

#[path = "../src/loader.rs"]
mod loader;

use loader::{LoadError, is_software, load, resolve};

const NEW: &str = "IBVERBS_1.1";
const OLD: &str = "IBVERBS_1.0";
const SONAME: &str = "-Wl,-soname,libibverbs.so.1";

/// A verbs library to be made: functions with their versions (none: no version node), in C.
#[derive(Default)]
struct Recipe {
    functions: Vec<(&'static str, Option<&'static str>)>,
    marker: bool,
}

impl Recipe {
    /// All functions of the table, each with the version that `version` gives it.
    fn all(version: impl Fn(&'static str) -> Option<&'static str>) -> Recipe {
        let functions = SYMBOLS.iter().map(|&(name, wanted)| (name, version(wanted))).collect();
        Recipe { functions, marker: false }
    }

    fn without(mut self, name: &str) -> Recipe {
        self.functions.retain(|(function, _)| *function != name);
        self
    }

    fn with(mut self, name: &'static str, version: &'static str) -> Recipe {
        self.functions.push((name, Some(version)));
        self
    }

    /// Each function returns 10 for version 1.0, 11 for 1.1, 0 for none.
    fn source(&self) -> String {
        let mut source = String::new();
        for (i, (name, version)) in self.functions.iter().enumerate() {
            match version {
                None => writeln!(source, "int {name}(void) {{ return 0; }}"),
                Some(version) => {
                    let answer = if *version == NEW { 11 } else { 10 };
                    let at = if *version == NEW { "@@" } else { "@" };
                    writeln!(
                        source,
                        "int impl{i}(void) {{ return {answer}; }}\n__asm__(\".symver impl{i},{name}{at}{version}\");"
                    )
                }
            }
            .unwrap();
        }
        if self.marker {
            writeln!(source, "int {} = 1;", SOFTIB_MARKER.to_str().unwrap()).unwrap();
        }
        source
    }

    fn build(&self, name: &str, extra: &[&str]) -> PathBuf {
        let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("loader");
        std::fs::create_dir_all(&dir).unwrap();
        let (source, map, library) =
            (dir.join(format!("{name}.c")), dir.join(format!("{name}.map")), dir.join(format!("{name}.so")));
        std::fs::write(&source, self.source()).unwrap();
        std::fs::write(&map, format!("{OLD} {{ }};\n{NEW} {{ }} {OLD};\n")).unwrap();
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).args(extra);
        if self.functions.iter().any(|(_, version)| version.is_some()) {
            cc.arg(format!("-Wl,--version-script={}", map.display()));
        }
        let made = cc.output().expect("these tests need a C compiler: cc");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        library
    }

    fn resolve(&self, name: &str) -> Result<loader::Exports, LoadError> {
        resolve(&CString::new(self.build(name, &[]).to_str().unwrap()).unwrap())
    }
}

/// What a function of such a library answers. It ignores its arguments.
fn answer<F>(function: F) -> c_int {
    assert_eq!(size_of::<F>(), size_of::<usize>());
    // SAFETY: a function pointer of this size; the libraries made here define all verbs as `int f(void)`, in C.
    unsafe { std::mem::transmute_copy::<F, extern "C" fn() -> c_int>(&function)() }
}

#[test]
fn each_verb_comes_in_the_version_whose_structs_we_declare() {
    let mut recipe = Recipe::all(Some);
    recipe.functions.extend(SYMBOLS.iter().filter(|(_, v)| *v == NEW).map(|&(name, _)| (name, Some(OLD))));
    let table = recipe.resolve("versioned").unwrap().table;
    assert_eq!(answer(table.get_device_list), 11);
    assert_eq!(answer(table.reg_mr), 11);
    assert_eq!(answer(table.fork_init), 11);
    assert_eq!(answer(table.create_comp_channel), 10);
}

#[test]
fn a_library_without_version_nodes_is_taken_as_it_is() {
    let exports = Recipe::all(|_| None).resolve("unversioned").unwrap();
    assert_eq!(answer(exports.table.query_port), 0);
    assert!(!exports.software);
    assert_eq!(exports.table.name, "rdma-core");
}

#[test]
fn the_marker_tells_our_drop_in_from_rdma_core() {
    let exports = Recipe { marker: true, ..Recipe::all(|_| None) }.resolve("marked").unwrap();
    assert!(exports.software);
    assert_eq!(exports.table.name, "softib");
}

/// Whether the library of this file is in the process.
fn is_loaded(library: &CStr) -> bool {
    // SAFETY: a NUL-terminated name; with RTLD_NOLOAD nothing is loaded, and what was found stays as it was.
    let handle = unsafe { libc::dlopen(library.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    // SAFETY: the handle was opened in the line above.
    !handle.is_null() && unsafe { libc::dlclose(handle) } == 0
}

#[test]
fn a_library_that_is_asked_only_whether_it_is_our_drop_in_is_kept_if_it_is() {
    for marker in [false, true] {
        let name = format!("asked_{marker}");
        let file = Recipe { marker, ..Recipe::all(Some) }.build(&name, &[]);
        let file = CString::new(file.to_str().unwrap()).unwrap();
        assert_eq!((is_software(&file), is_loaded(&file)), (marker, marker));
    }
    assert!(!is_software(c"liboxib-no-such-library.so.1"));
}

#[test]
fn a_verb_that_exists_with_the_old_structs_only_is_refused() {
    let recipe = Recipe::all(Some).without("ibv_poll_cq").without("ibv_create_qp").with("ibv_create_qp", OLD);
    let error = recipe.resolve("too_old").unwrap_err();
    assert!(matches!(error, LoadError::TooOld { symbol: "ibv_create_qp", version: NEW, .. }), "{error}");
}

#[test]
fn a_missing_verb_is_named_with_version_library_and_remedy() {
    let error = Recipe::all(Some).without("ibv_modify_srq").resolve("incomplete").unwrap_err();
    assert!(matches!(error, LoadError::Missing { symbol: "ibv_modify_srq", version: NEW, .. }), "{error}");
    let text = error.to_string();
    for part in ["incomplete.so", "ibv_modify_srq", NEW, "libibverbs1", "provider"] {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn a_library_that_is_not_there_is_named_with_the_linkers_reason_and_remedy() {
    let error = resolve(c"liboxib-no-such-library.so.1").unwrap_err();
    assert!(matches!(error, LoadError::Open { .. }));
    let text = error.to_string();
    for part in ["cannot load liboxib-no-such-library.so.1", "cannot open shared object file", "libibverbs1"]
    {
        assert!(text.contains(part), "{part} is not in: {text}");
    }
}

#[test]
fn rdma_core_has_every_verb_of_the_table_where_it_is_installed() {
    let Some(path) = installed() else {
        eprintln!("skipped: no libibverbs.so.1 is installed");
        return;
    };
    take_the_soname();
    let exports = resolve(&path).unwrap();
    assert_eq!(exports.table.name, "rdma-core");
    assert!(!exports.software);
}

/// Opens a library of ours as `libibverbs.so.1`: from then on the soname means it in the whole
/// process. A test that opens the installed one calls this first: the first library that is opened
/// keeps the soname.
fn take_the_soname() {
    static TAKEN: Once = Once::new();
    TAKEN.call_once(|| {
        let path = Recipe { marker: true, ..Recipe::all(Some) }.build("by_soname", &[SONAME]);
        let path = CString::new(path.to_str().unwrap()).unwrap();
        // SAFETY: a library made just above, without constructors.
        assert!(!unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) }.is_null());
    });
}

/// The installed library, by its path.
fn installed() -> Option<CString> {
    let cache = Command::new("/sbin/ldconfig").arg("-p").output().ok()?;
    let cache = String::from_utf8_lossy(&cache.stdout).into_owned();
    let path = cache.lines().find(|line| line.contains("libibverbs.so.1 "))?.split("=> ").nth(1)?;
    CString::new(path.trim()).ok()
}

/// A context with the extended part in front; its `query_port` reports the size that it was called with.
fn extended_context() -> Box<verbs_context> {
    unsafe extern "C" fn query_port(
        _: *mut ibv_context,
        port: u8,
        attr: *mut ibv_port_attr,
        len: usize,
    ) -> c_int {
        // SAFETY: the test below passes a live struct.
        unsafe { (*attr).max_msg_sz = len as u32 };
        c_int::from(port)
    }
    // SAFETY: integers, nullable pointers and `Option`s of functions.
    let mut context: Box<verbs_context> = Box::new(unsafe { std::mem::zeroed() });
    context.sz = size_of::<verbs_context>();
    context.query_port = Some(query_port);
    context.context.abi_compat = VERBS_ABI_IS_EXTENDED;
    context
}

#[test]
fn load_finds_the_library_once_and_its_query_port_fills_the_full_struct() {
    take_the_soname();
    let loaded = load().unwrap();
    assert!(loaded.software);
    assert!(std::ptr::eq(loaded.table, load().unwrap().table));

    let mut context = extended_context();
    let mut attr = ibv_port_attr::default();
    // SAFETY: the context is inside its extended context, which it says; the attributes are writable.
    let rc = unsafe {
        let inner = (&raw mut *context).byte_add(std::mem::offset_of!(verbs_context, context)).cast();
        (loaded.table.query_port)(inner, 3, &raw mut attr)
    };
    assert_eq!((rc, attr.max_msg_sz as usize), (3, size_of::<ibv_port_attr>()));

    attr.state = 7;
    context.context.abi_compat = std::ptr::null_mut();
    // SAFETY: context and attributes live through the call. Without the extended part the exported
    // symbol is called, which answers 11 and writes nothing.
    let rc = unsafe { (loaded.table.query_port)(&raw mut context.context, 3, &raw mut attr) };
    assert_eq!((rc, attr.state), (11, 0));
}
