//! Compares our structures with the headers of the installed Open MPI 4.1, field by field.
//!
//! A C program, written here from the same table as the expectations, prints what the compiler makes of the
//! headers. Only private types of the crate are not covered (`opal_value_t`, `opal_pmix`): their offsets are
//! asserted in `v4_1.rs` and the C side of them is checked here by number.

#![allow(clippy::expect_used, reason = "helpers of tests fail by panicking")]

use opal_sys::*;
use std::ffi::{CStr, c_void};
use std::io::Write;
use std::mem::{offset_of, size_of};
use std::path::{Path, PathBuf};
use std::process::Command;

/// C expression and the value that we believe in.
type Fact = (String, i64);

macro_rules! facts {
    ($list:ident, $name:ident { $($field:ident = $c:literal),* $(,)? }) => {
        $list.push((format!("sizeof({})", stringify!($name)), size_of::<$name>() as i64));
        facts!(@fields $list, $name { $($field = $c),* });
    };
    (@fields $list:ident, $name:ident { $($field:ident = $c:literal),* }) => {
        $($list.push((
            format!("offsetof({}, {})", stringify!($name), $c),
            offset_of!($name, $field) as i64,
        ));)*
    };
}

macro_rules! constants {
    ($list:ident, $($name:ident),* $(,)?) => {
        $($list.push((stringify!($name).to_owned(), i64::from($name)));)*
    };
}

fn component_facts(list: &mut Vec<Fact>) {
    facts!(list, mca_base_component_t {
        mca_major_version = "mca_major_version", mca_project_name = "mca_project_name",
        mca_project_major_version = "mca_project_major_version", mca_type_name = "mca_type_name",
        mca_type_major_version = "mca_type_major_version", mca_component_name = "mca_component_name",
        mca_component_major_version = "mca_component_major_version", mca_open_component = "mca_open_component",
        mca_close_component = "mca_close_component", mca_query_component = "mca_query_component",
        mca_register_component_params = "mca_register_component_params",
        mca_component_flags = "mca_component_flags", reserved = "reserved",
    });
    facts!(list, mca_base_component_data_t { param_field = "param_field", reserved = "reserved" });
    facts!(list, mca_btl_base_component_3_0_0_t {
        btl_version = "btl_version", btl_data = "btl_data", btl_init = "btl_init", btl_progress = "btl_progress",
    });
}

fn module_facts(list: &mut Vec<Fact>) {
    facts!(list, mca_btl_base_module_t {
        btl_component = "btl_component", btl_eager_limit = "btl_eager_limit",
        btl_rndv_eager_limit = "btl_rndv_eager_limit", btl_max_send_size = "btl_max_send_size",
        btl_rdma_pipeline_send_length = "btl_rdma_pipeline_send_length",
        btl_rdma_pipeline_frag_size = "btl_rdma_pipeline_frag_size",
        btl_min_rdma_pipeline_size = "btl_min_rdma_pipeline_size", btl_exclusivity = "btl_exclusivity",
        btl_latency = "btl_latency", btl_bandwidth = "btl_bandwidth", btl_flags = "btl_flags",
        btl_atomic_flags = "btl_atomic_flags", btl_registration_handle_size = "btl_registration_handle_size",
        btl_get_limit = "btl_get_limit", btl_get_alignment = "btl_get_alignment", btl_put_limit = "btl_put_limit",
        btl_put_alignment = "btl_put_alignment",
        btl_get_local_registration_threshold = "btl_get_local_registration_threshold",
        btl_put_local_registration_threshold = "btl_put_local_registration_threshold",
        btl_add_procs = "btl_add_procs", btl_del_procs = "btl_del_procs", btl_register = "btl_register",
        btl_finalize = "btl_finalize", btl_alloc = "btl_alloc", btl_free = "btl_free",
        btl_prepare_src = "btl_prepare_src", btl_send = "btl_send", btl_sendi = "btl_sendi", btl_put = "btl_put",
        btl_get = "btl_get", btl_dump = "btl_dump", btl_atomic_op = "btl_atomic_op",
        btl_atomic_fop = "btl_atomic_fop", btl_atomic_cswap = "btl_atomic_cswap",
        btl_register_mem = "btl_register_mem", btl_deregister_mem = "btl_deregister_mem", btl_mpool = "btl_mpool",
        btl_register_error = "btl_register_error", word_288 = "btl_ft_event", btl_flush = "btl_flush",
        padding = "padding",
    });
}

fn message_facts(list: &mut Vec<Fact>) {
    facts!(list, mca_btl_base_segment_t { seg_addr = "seg_addr", seg_len = "seg_len" });
    facts!(list, mca_btl_base_descriptor_t {
        super_ = "super", des_segments = "des_segments", des_segment_count = "des_segment_count",
        des_cbfunc = "des_cbfunc", des_cbdata = "des_cbdata", des_context = "des_context", des_flags = "des_flags",
        order = "order",
    });
    facts!(list, mca_btl_active_message_callback_t { cbfunc = "cbfunc", cbdata = "cbdata" });
    facts!(@fields list, opal_convertor_t {
        super_ = "super", remote_arch = "remoteArch", flags = "flags", local_size = "local_size",
        remote_size = "remote_size", p_desc = "pDesc", use_desc = "use_desc", count = "count",
        stack_size = "stack_size", p_base_buf = "pBaseBuf", p_stack = "pStack", f_advance = "fAdvance",
        master = "master", stack_pos = "stack_pos", partial_length = "partial_length", b_converted = "bConverted"
    });
    facts!(@fields list, opal_datatype_t {
        super_ = "super", flags = "flags", id = "id", bdt_used = "bdt_used", size = "size", true_lb = "true_lb"
    });
}

fn object_facts(list: &mut Vec<Fact>) {
    facts!(list, opal_class_t {
        cls_name = "cls_name", cls_parent = "cls_parent", cls_construct = "cls_construct",
        cls_destruct = "cls_destruct", cls_initialized = "cls_initialized", cls_depth = "cls_depth",
        cls_construct_array = "cls_construct_array", cls_destruct_array = "cls_destruct_array",
        cls_sizeof = "cls_sizeof",
    });
    facts!(list, opal_object_t { obj_class = "obj_class", obj_reference_count = "obj_reference_count" });
    facts!(list, opal_list_item_t {
        super_ = "super", opal_list_next = "opal_list_next", opal_list_prev = "opal_list_prev",
        item_free = "item_free",
    });
    facts!(list, opal_free_list_item_t { super_ = "super", registration = "registration", ptr = "ptr" });
    facts!(list, opal_process_name_t { jobid = "jobid", vpid = "vpid" });
    facts!(@fields list, opal_proc_t {
        super_ = "super", proc_name = "proc_name", proc_arch = "proc_arch", proc_flags = "proc_flags",
        proc_convertor = "proc_convertor"
    });
}

/// Offsets of types that the crate keeps to itself, as `v4_1.rs` asserts them.
fn private_facts(list: &mut Vec<Fact>) {
    let expected = [
        ("sizeof(opal_value_t)", 136),
        ("offsetof(opal_value_t, key)", 40),
        ("offsetof(opal_value_t, type)", 48),
        ("offsetof(opal_value_t, data)", 56),
        ("offsetof(opal_byte_object_t, size)", 0),
        ("offsetof(opal_byte_object_t, bytes)", 8),
        ("offsetof(opal_pmix_base_module_t, put)", 64),
        ("offsetof(opal_pmix_base_module_t, get)", 72),
        ("offsetof(opal_proc_t, proc_hostname)", 64),
        ("sizeof(opal_proc_t)", 72),
        ("offsetof(opal_process_info_t, job_session_dir)", 8),
        ("OPAL_UINT32", 14),
        ("OPAL_BYTE_OBJECT", 20),
        ("OPAL_PMIX_GLOBAL", 3),
        ("sizeof(mca_btl_base_active_message_trigger) / sizeof(mca_btl_active_message_callback_t)", 255),
        ("strcmp(OPAL_PMIX_JOB_SIZE, \"pmix.job.size\")", 0),
    ];
    list.extend(expected.map(|(expression, value)| (expression.to_owned(), value)));
}

fn constant_facts(list: &mut Vec<Fact>) {
    constants!(
        list,
        OPAL_SUCCESS,
        OPAL_ERROR,
        OPAL_ERR_OUT_OF_RESOURCE,
        OPAL_ERR_TEMP_OUT_OF_RESOURCE,
        OPAL_ERR_RESOURCE_BUSY,
        OPAL_ERR_BAD_PARAM,
        OPAL_ERR_FATAL,
        OPAL_ERR_NOT_IMPLEMENTED,
        OPAL_ERR_NOT_SUPPORTED,
        OPAL_ERR_UNREACH,
        OPAL_ERR_NOT_FOUND,
        OPAL_ERR_TIMEOUT,
        OPAL_ERR_NOT_AVAILABLE,
        OPAL_ERR_VALUE_OUT_OF_BOUNDS,
        MCA_BASE_VAR_TYPE_INT,
        MCA_BASE_VAR_TYPE_UNSIGNED_INT,
        MCA_BASE_VAR_TYPE_UNSIGNED_LONG_LONG,
        MCA_BASE_VAR_TYPE_SIZE_T,
        MCA_BASE_VAR_TYPE_STRING,
        MCA_BASE_VAR_TYPE_BOOL,
        MCA_BASE_PVAR_CLASS_HIGHWATERMARK,
        MCA_BASE_PVAR_CLASS_LOWWATERMARK,
        MCA_BASE_PVAR_CLASS_COUNTER,
        MCA_BASE_VAR_BIND_NO_OBJECT,
        MCA_BASE_PVAR_FLAG_IWG,
        MCA_BASE_PVAR_FLAG_READONLY,
        MCA_BASE_PVAR_FLAG_CONTINUOUS,
        MCA_BASE_VAR_SCOPE_CONSTANT,
        MCA_BASE_VAR_SCOPE_READONLY,
        MCA_BASE_VAR_SCOPE_LOCAL,
        MCA_BASE_VAR_SCOPE_ALL,
        MCA_BASE_VAR_SCOPE_ALL_EQ,
        MCA_BASE_VAR_SOURCE_DEFAULT,
        OPAL_PROC_ON_HOST,
        OPAL_PROC_ON_BOARD,
        OPAL_VPID_WILDCARD,
        CONVERTOR_HOMOGENEOUS,
        OPAL_DATATYPE_FLAG_CONTIGUOUS,
        OPAL_DATATYPE_FLAG_NO_GAPS
    );
    constants!(
        list,
        MCA_BTL_NO_ORDER,
        MCA_BTL_TAG_BTL,
        MCA_BTL_TAG_PML,
        MCA_BTL_TAG_USR,
        MCA_BTL_FLAGS_SEND,
        MCA_BTL_FLAGS_PUT,
        MCA_BTL_FLAGS_GET,
        MCA_BTL_FLAGS_RDMA,
        MCA_BTL_FLAGS_SEND_INPLACE,
        MCA_BTL_FLAGS_RDMA_COMPLETION,
        MCA_BTL_FLAGS_SIGNALED,
        MCA_BTL_FLAGS_ATOMIC_OPS,
        MCA_BTL_FLAGS_ATOMIC_FOPS,
        MCA_BTL_FLAGS_SINGLE_ADD_PROCS,
        MCA_BTL_FLAGS_RDMA_FLUSH,
        MCA_BTL_EXCLUSIVITY_DEFAULT,
        MCA_BTL_ERROR_FLAGS_FATAL,
        MCA_BTL_ERROR_FLAGS_NONFATAL,
        MCA_BTL_DES_FLAGS_PRIORITY,
        MCA_BTL_DES_FLAGS_BTL_OWNERSHIP,
        MCA_BTL_DES_SEND_ALWAYS_CALLBACK,
        MCA_BTL_DES_FLAGS_SIGNAL,
        MCA_BTL_REG_FLAG_LOCAL_WRITE,
        MCA_BTL_REG_FLAG_REMOTE_READ,
        MCA_BTL_REG_FLAG_REMOTE_WRITE,
        MCA_BTL_REG_FLAG_REMOTE_ATOMIC
    );
    for (name, value) in [
        ("MCA_BTL_TAG_MAX", MCA_BTL_TAG_MAX),
        ("MCA_BTL_DES_MAX_SEGMENTS", MCA_BTL_DES_MAX_SEGMENTS),
        ("MCA_BTL_REG_HANDLE_MAX_SIZE", MCA_BTL_REG_HANDLE_MAX_SIZE),
    ] {
        list.push((name.to_owned(), value as i64));
    }
}

fn all_facts() -> Vec<Fact> {
    let mut list = Vec::new();
    component_facts(&mut list);
    module_facts(&mut list);
    message_facts(&mut list);
    object_facts(&mut list);
    private_facts(&mut list);
    constant_facts(&mut list);
    list
}

/// Where `opal/mca/btl/btl.h` is, by what the compiler wrapper says or by where distributions put it.
fn include_folder() -> PathBuf {
    let asked = Command::new("mpicc").arg("--showme:incdirs").output();
    let asked = asked.map(|out| String::from_utf8_lossy(&out.stdout).into_owned()).unwrap_or_default();
    let usual =
        ["/usr/lib/x86_64-linux-gnu/openmpi/include", "/usr/lib64/openmpi/include", "/usr/include/openmpi"];
    let candidates = asked
        .split_whitespace()
        .chain(usual)
        .flat_map(|dir| [PathBuf::from(dir), Path::new(dir).join("openmpi")]);
    let found = candidates.into_iter().find(|dir| dir.join("opal/mca/btl/btl.h").exists());
    found.expect("no Open MPI developer headers here; on Debian: apt install libopenmpi-dev")
}

fn program(facts: &[Fact]) -> String {
    let headers = [
        "opal_config.h",
        "stddef.h",
        "stdio.h",
        "string.h",
        "opal/constants.h",
        "opal/mca/btl/btl.h",
        "opal/mca/btl/base/base.h",
        "opal/mca/pmix/pmix.h",
        "opal/mca/base/mca_base_var.h",
        "opal/mca/base/mca_base_pvar.h",
        "opal/util/proc.h",
        "opal/mca/hwloc/hwloc-internal.h",
        "opal/dss/dss_types.h",
        "opal/datatype/opal_convertor.h",
    ];
    let includes: String = headers.iter().map(|header| format!("#include \"{header}\"\n")).collect();
    let prints: String = facts
        .iter()
        .map(|(expression, _)| format!("    printf(\"%lld\\n\", (long long) ({expression}));\n"))
        .collect();
    format!("{includes}int main(void) {{\n{prints}    return 0;\n}}\n")
}

/// What the C compiler says to each fact, in order.
fn measured(facts: &[Fact]) -> Vec<i64> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let (source, binary) = (folder.join("layout.c"), folder.join("layout"));
    std::fs::write(&source, program(facts)).expect("the test folder is writable");
    let include = include_folder();
    let compiler = Command::new("cc")
        .args(["-std=gnu99", "-w", "-o"])
        .arg(&binary)
        .arg(&source)
        .arg("-I")
        .arg(&include)
        .arg("-I")
        .arg(include.parent().unwrap_or(&include))
        .output()
        .expect("no C compiler here; on Debian: apt install gcc");
    assert!(compiler.status.success(), "{}", String::from_utf8_lossy(&compiler.stderr));
    let output = Command::new(&binary).output().expect("the program just compiled runs");
    let lines = String::from_utf8(output.stdout).expect("numbers are ASCII");
    lines.lines().map(|line| line.parse().expect("one number a line")).collect()
}

/// Whether the Open MPI of this machine is another one than the tables are about, which says so. (Debian 13 has 5.0, without the headers of
/// its inside; what 5.0's offsets are is looked up when the plugin is loaded, and shown by jobs.) `cargo xtask test` counts the line.
fn passed_over(test: &str) -> bool {
    let loads = |name: &CStr| {
        // SAFETY: loading a libopen-pal runs no more than its constructors.
        !unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) }.is_null()
    };
    let other = !loads(c"libopen-pal.so.40") && loads(c"libopen-pal.so.80");
    if other {
        // Not by eprintln!, which libtest keeps to itself.
        let line = format!("\nskipped: {test}: this machine has Open MPI 5.0, and it is about 4.1\n");
        std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    }
    other
}

#[test]
fn every_size_offset_and_constant_agrees_with_the_installed_headers() {
    if passed_over("every_size_offset_and_constant_agrees_with_the_installed_headers") {
        return;
    }
    let facts = all_facts();
    let measured = measured(&facts);
    assert_eq!(facts.len(), measured.len(), "one answer for each question");
    let wrong: Vec<String> = facts
        .iter()
        .zip(&measured)
        .filter(|((_, ours), theirs)| ours != *theirs)
        .map(|((expression, ours), theirs)| format!("{expression}: ours {ours}, theirs {theirs}"))
        .collect();
    assert!(wrong.is_empty(), "{} of {} differ:\n{}", wrong.len(), facts.len(), wrong.join("\n"));
    assert!(facts.len() > 150, "the table has shrunk to {}", facts.len());
}

/// The whole way with the installed library: symbols, class sizes, variables.
#[test]
fn the_installed_library_is_recognised_as_4_1() {
    if passed_over("the_installed_library_is_recognised_as_4_1") {
        return;
    }
    // SAFETY: loading Debian's libopen-pal runs no more than its constructors.
    let handle = unsafe { libc::dlopen(c"libopen-pal.so.40".as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    assert!(!handle.is_null(), "no libopen-pal.so.40 here; on Debian: apt install libopenmpi3");
    let abi = Abi::detect().expect("Debian's Open MPI 4.1 is a supported build");
    assert!(abi.version().starts_with("4.1."), "found {}", abi.version());
    assert!(!abi.uses_threads());
    assert!(std::ptr::eq(abi, Abi::detect().expect("as before")), "the answer is kept");

    start_variables(handle);
    let path = abi.base().string_var(c"mca_base_component_path").expect("every Open MPI has this variable");
    assert!(path.contains("openmpi"), "found {path}");
    assert!(!abi.base().is_set(c"mca_base_component_path"));
    assert_eq!(abi.base().string_var(c"no_such_variable"), None);
}

/// Lets the library set up its variables, as MPI_Init does. Before that, asking for one crashes.
fn start_variables(handle: *mut c_void) {
    // SAFETY: `int opal_init_util(int *, char ***)`; NULL is allowed for both (opal/runtime/opal.h).
    unsafe {
        let init = libc::dlsym(handle, c"opal_init_util".as_ptr());
        let init: unsafe extern "C" fn(*mut c_void, *mut c_void) -> i32 = std::mem::transmute(init);
        assert_eq!(init(std::ptr::null_mut(), std::ptr::null_mut()), OPAL_SUCCESS);
    }
}
