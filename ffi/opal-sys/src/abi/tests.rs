//! Detection played through with made-up libraries: every symbol exists, some tell another story.

use super::*;
use std::collections::HashMap;
use std::ffi::c_void;

/// A made-up libopen-pal. The memory behind its symbols is leaked: the tests are few.
struct Library {
    symbols: HashMap<&'static CStr, NonNull<c_void>>,
}

impl Library {
    fn new(version: &'static CStr) -> Self {
        let mut library = Self { symbols: HashMap::new() };
        library.put(c"opal_version_string", NonNull::from(version).cast());
        library.put_class(c"opal_object_t_class", 16);
        library.put_class(c"mca_btl_base_descriptor_t_class", 104);
        library.put_value(c"opal_built_with_cuda_support", false);
        library.put_value(c"opal_uses_threads", false);
        library.put_value(c"opal_pmix", [0usize; 54]);
        let free =
            mca_btl_active_message_callback_t { cbfunc: std::ptr::null(), cbdata: std::ptr::null_mut() };
        let mut trigger = [free; MCA_BTL_TAG_MAX];
        trigger[0x41].cbfunc = receive as *const c_void;
        library.put_value(c"mca_btl_base_active_message_trigger", trigger);
        library
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

    /// Symbols that nobody defined are there, but nothing calls them.
    fn resolve(&self) -> Result<Abi, AbiError> {
        static OTHER: u64 = 0;
        let other = NonNull::from(&OTHER).cast();
        Abi::resolve(&|name| match self.symbols.get(name) {
            None if name == c"opal_pmix" => None,
            found => Some(found.copied().unwrap_or(other)),
        })
    }

    fn refusal(&self) -> String {
        self.resolve().expect_err("must be refused").to_string()
    }
}

unsafe extern "C" fn receive(
    _: *mut mca_btl_base_module_t,
    tag: mca_btl_base_tag_t,
    descriptor: *mut mca_btl_base_descriptor_t,
    _: *mut c_void,
) {
    // SAFETY: the caller below passes one segment that holds one u64.
    unsafe {
        assert_eq!((*descriptor).des_segment_count, 1);
        *(*(*descriptor).des_segments).seg_addr.cast::<u64>() += u64::from(tag);
    }
}

#[test]
fn a_plain_4_1_is_accepted() {
    let abi = Library::new(c"4.1.6").resolve().expect("4.1 is supported");
    assert_eq!((abi.version(), abi.family().name()), ("4.1.6", "Open MPI 4.1 (BTL 3.1)"));
    assert!(!abi.uses_threads());
}

#[test]
fn open_mpi_5_is_refused_for_now() {
    let mut library = Library::new(c"5.0.7");
    library.symbols.remove(c"opal_pmix");
    assert!(library.refusal().contains("Open MPI 5 comes with a later release"));
}

#[test]
fn unknown_families_are_refused_by_name() {
    assert!(Library::new(c"4.0.3").refusal().contains("Open MPI 4.0.3 is not supported"));
    let mut renamed = Library::new(c"4.1.99-vendor");
    renamed.symbols.remove(c"opal_pmix");
    assert!(matches!(renamed.resolve(), Err(AbiError::Unsupported { .. })));
}

#[test]
fn debug_and_cuda_builds_are_refused() {
    let mut debug = Library::new(c"4.1.4");
    debug.put_class(c"opal_object_t_class", 40);
    assert!(debug.refusal().contains("--enable-debug"));
    let mut cuda = Library::new(c"4.1.4");
    cuda.put_value(c"opal_built_with_cuda_support", true);
    assert!(cuda.refusal().contains("--with-cuda"));
}

#[test]
fn a_descriptor_of_unknown_size_is_refused_with_both_sizes() {
    let mut library = Library::new(c"4.1.4");
    library.put_class(c"mca_btl_base_descriptor_t_class", 112);
    assert!(library.refusal().contains("112 bytes instead of 104"));
}

#[test]
fn a_process_without_open_mpi_says_so() {
    let error = Abi::resolve(&|_| None).expect_err("no symbols");
    assert!(error.to_string().contains("no Open MPI"));
}

#[test]
fn messages_reach_the_callback_of_their_tag_and_no_other() {
    let abi = Library::new(c"4.1.4").resolve().expect("4.1 is supported");
    let mut value = 1u64;
    let address = (&raw mut value).cast();
    let mut segments = [mca_btl_base_segment_t { seg_addr: address, seg_len: 8 }];
    let mut send = |tag| {
        // SAFETY: the made-up callback looks at nothing but tag and segments.
        unsafe { abi.deliver(std::ptr::null_mut(), std::ptr::null_mut(), tag, &mut segments) }
    };
    assert_eq!(send(0x41), Ok(()));
    assert_eq!(send(0x42), Err(NoReceiver { tag: 0x42 }));
    assert_eq!(send(255), Err(NoReceiver { tag: 255 }));
    assert_eq!(value, 1 + 0x41);
}
