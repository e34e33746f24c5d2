//! Detection played through with made-up libraries: every symbol exists, some tell another story.

use super::*;
use crate::class::opal_class_t;
use std::collections::HashMap;
use std::ffi::c_void;

/// A made-up libopen-pal. The memory behind its symbols is leaked: the tests are few.
struct Library {
    symbols: HashMap<&'static CStr, NonNull<c_void>>,
    absent: Vec<&'static CStr>,
}

impl Library {
    /// A plain build of 4.1.
    fn v4_1(version: &'static CStr) -> Self {
        let mut library = Self::new(version, c"opal_pmix_convert_jobid", receive_4_1 as *const c_void);
        library.put_class(c"opal_proc_t_class", 72);
        library.put_class(c"opal_convertor_t_class", 264);
        library.put_value(c"opal_pmix", [0usize; 54]);
        library
    }

    /// A plain build of 5.0.
    fn v5_0(version: &'static CStr) -> Self {
        let mut library = Self::new(version, c"opal_pmix", receive_5_0 as *const c_void);
        library.put_class(c"opal_proc_t_class", 64);
        library.put_class(c"opal_convertor_t_class", 280);
        library.put_interface(3);
        library
    }

    /// What both have in common.
    fn new(version: &'static CStr, absent: &'static CStr, receive: *const c_void) -> Self {
        let mut library = Self { symbols: HashMap::new(), absent: vec![absent] };
        library.put(c"opal_version_string", NonNull::from(version).cast());
        library.put_class(c"opal_object_t_class", 16);
        library.put_class(c"mca_btl_base_descriptor_t_class", 104);
        library.put_value(c"opal_built_with_cuda_support", false);
        library.put_value(c"opal_uses_threads", false);
        library.put_value(c"opal_pmix_base_async_modex", false);
        library.put_value(c"opal_initialized", 1i32);
        library.put_value(c"ompi_mpi_state", 2i32);
        library.put_value(c"mca_btl_base_static_components", 0usize);
        let free =
            mca_btl_active_message_callback_t { cbfunc: std::ptr::null(), cbdata: std::ptr::null_mut() };
        let mut trigger = [free; MCA_BTL_TAG_MAX];
        trigger[0x41].cbfunc = receive;
        library.put_value(c"mca_btl_base_active_message_trigger", trigger);
        library
    }

    /// Lets the library hold a BTL of its own, built for interface 3.`minor`.
    fn put_interface(&mut self, minor: i32) {
        // SAFETY: numbers, characters and optional functions: all-zero is valid.
        let mut component: crate::mca::mca_base_component_t = unsafe { std::mem::zeroed() };
        (component.mca_type_major_version, component.mca_type_minor_version) = (3, minor);
        let component: *const _ = Box::leak(Box::new(component));
        self.put_value(c"mca_btl_base_static_components", [component as usize, 0]);
    }

    fn put(&mut self, name: &'static CStr, address: NonNull<c_void>) {
        self.symbols.insert(name, address);
    }

    fn put_value<T: 'static>(&mut self, name: &'static CStr, value: T) {
        self.put(name, NonNull::from(Box::leak(Box::new(value))).cast());
    }

    fn put_class(&mut self, name: &'static CStr, size: usize) {
        // SAFETY: null pointers, no functions, numbers: all-zero is valid.
        let mut class: opal_class_t = unsafe { std::mem::zeroed() };
        class.cls_sizeof = size;
        self.put_value(name, class);
    }

    /// A symbol that the test has not put in resolves to the address of `OTHER`; no test calls it.
    fn resolve(&self) -> Result<Abi, AbiError> {
        static OTHER: u64 = 0;
        let other = NonNull::from(&OTHER).cast();
        Abi::resolve(&|name| {
            let there = !self.absent.contains(&name);
            there.then(|| self.symbols.get(name).copied().unwrap_or(other))
        })
    }

    fn refusal(&self) -> String {
        self.resolve().expect_err("must be refused").to_string()
    }
}

unsafe extern "C" fn receive_4_1(
    _: *mut mca_btl_base_module_t,
    tag: mca_btl_base_tag_t,
    descriptor: *mut mca_btl_base_descriptor_t,
    _: *mut c_void,
) {
    // SAFETY: the caller below passes one segment that holds one u64.
    unsafe { add((*descriptor).des_segments, (*descriptor).des_segment_count, tag) }
}

unsafe extern "C" fn receive_5_0(
    _: *mut mca_btl_base_module_t,
    descriptor: *const mca_btl_base_receive_descriptor_t,
) {
    // SAFETY: `Family::deliver` of 5.0 passes a descriptor that lives through the call; the test
    // below gives it one segment that holds one u64.
    unsafe {
        assert_eq!((*descriptor).endpoint as usize, 0x1230);
        add((*descriptor).des_segments, (*descriptor).des_segment_count, (*descriptor).tag);
    }
}

/// # Safety
/// One segment that holds one `u64`.
unsafe fn add(segments: *const mca_btl_base_segment_t, count: usize, tag: mca_btl_base_tag_t) {
    assert_eq!(count, 1);
    // SAFETY: the caller promises one segment, and that its address is that of a live `u64`.
    unsafe { *(*segments).seg_addr.cast::<u64>() += u64::from(tag) };
}

#[test]
fn plain_builds_of_both_families_are_accepted() {
    let known = [
        (Library::v4_1(c"4.1.6"), "4.1.6", "Open MPI 4.1 (BTL 3.1)"),
        (Library::v5_0(c"5.0.7"), "5.0.7", "Open MPI 5.0 (BTL 3.3)"),
    ];
    for (library, version, name) in known {
        let abi = library.resolve().expect("supported");
        assert_eq!((abi.version(), abi.family().name()), (version, name));
        assert!(!abi.uses_threads());
    }
}

#[test]
fn addresses_come_late_where_the_parameter_says_so_and_in_no_build_without_it() {
    let mut library = Library::v4_1(c"4.1.6");
    assert!(!library.resolve().expect("supported").addresses_come_late());
    library.put_value(c"opal_pmix_base_async_modex", true);
    assert!(library.resolve().expect("supported").addresses_come_late());
    library.absent.push(c"opal_pmix_base_async_modex");
    assert!(!library.resolve().expect("supported").addresses_come_late());
}

#[test]
fn mpi_is_ending_once_it_has_taken_down_what_belongs_to_comm_self_or_nobody_uses_opal() {
    let ending = |users: i32, state: i32| {
        let mut library = Library::v5_0(c"5.0.7");
        library.put_value(c"opal_initialized", users);
        library.put_value(c"ompi_mpi_state", state);
        library.resolve().unwrap().is_ending()
    };
    assert_eq!([0, 1, 2, 3, 4, 5].map(|state| ending(1, state)), [false, false, false, false, true, true]);
    assert!(ending(0, 0), "sessions only: MPI's own state never changes");

    let mut without_mpi = Library::v4_1(c"4.1.4");
    without_mpi.absent.push(c"ompi_mpi_state");
    assert!(!without_mpi.resolve().unwrap().is_ending());
}

#[test]
fn unknown_families_are_refused_by_name() {
    assert!(Library::v4_1(c"4.0.3").refusal().contains("Open MPI 4.0.3 is not supported"));
    assert!(Library::v5_0(c"6.0.0").refusal().contains("Open MPI 6.0.0 is not supported yet"));
    let mut renamed = Library::v4_1(c"4.1.99-vendor");
    renamed.absent.push(c"opal_pmix");
    assert!(matches!(renamed.resolve(), Err(AbiError::Unsupported { .. })));
    let mut both = Library::v5_0(c"5.0.7");
    both.absent.clear();
    assert!(matches!(both.resolve(), Err(AbiError::Unsupported { .. })));
}

#[test]
fn debug_and_cuda_builds_are_refused() {
    for plain in [|| Library::v4_1(c"4.1.4"), || Library::v5_0(c"5.0.7")] {
        let (mut debug, mut cuda) = (plain(), plain());
        debug.put_class(c"opal_object_t_class", 40);
        assert!(debug.refusal().contains("--enable-debug"));
        cuda.put_value(c"opal_built_with_cuda_support", true);
        assert!(cuda.refusal().contains("--with-cuda"));
    }
}

#[test]
fn structures_of_unknown_size_are_refused_with_both_sizes() {
    for (class, size, text) in [
        (c"mca_btl_base_descriptor_t_class", 112, "112 bytes instead of 104"),
        (c"opal_proc_t_class", 72, "72 bytes instead of 64"),
        (c"opal_convertor_t_class", 272, "opal_convertor_t_class has 272 bytes instead of 280"),
    ] {
        let mut library = Library::v5_0(c"5.0.7");
        library.put_class(class, size);
        assert!(library.refusal().contains(text), "{}", library.refusal());
    }
}

#[test]
fn a_library_whose_own_btls_speak_another_version_is_refused() {
    let mut library = Library::v5_0(c"5.0.99");
    library.put_interface(4);
    assert!(library.refusal().contains("BTL interface 3.4 instead of 3.3"));
    let mut library = Library::v4_1(c"4.1.4");
    library.put_interface(1);
    assert!(library.resolve().is_ok(), "a build without component files");
}

#[test]
fn a_process_without_open_mpi_says_so() {
    let error = Abi::resolve(&|_| None).expect_err("no symbols");
    assert!(error.to_string().contains("no Open MPI"));
}

#[test]
fn messages_reach_the_callback_of_their_tag_and_no_other() {
    for library in [Library::v4_1(c"4.1.4"), Library::v5_0(c"5.0.7")] {
        let abi = library.resolve().expect("supported");
        let (mut value, mut tray) = (1u64.to_ne_bytes(), Tray::new());
        let endpoint = std::ptr::without_provenance_mut(0x1230);
        let mut send = |tag| {
            // SAFETY: the made-up callback looks at nothing but endpoint, tag and segment.
            unsafe { abi.deliver(std::ptr::null_mut(), endpoint, tag, (&mut value, &mut tray)) }
        };
        assert_eq!((send(0x41), send(0x41)), (Ok(()), Ok(())), "one behind the other");
        assert_eq!(send(0x42), Err(NoReceiver { tag: 0x42 }));
        assert_eq!(send(255), Err(NoReceiver { tag: 255 }));
        assert_eq!(u64::from_ne_bytes(value), 1 + 2 * 0x41);
    }
}
