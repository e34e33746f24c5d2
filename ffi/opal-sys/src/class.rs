//! OPAL's C object system, as far as a BTL touches it: reference counted objects with a class.
//!
//! A BTL can do almost without it. ob1 and the BML never look at a descriptor's base part, so our descriptors
//! are plain memory; the only object that we are ever handed to release is the value of a modex lookup.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicI32, Ordering};

/// Constructor or destructor of one class.
pub type opal_construct_t = Option<unsafe extern "C" fn(*mut opal_object_t)>;

/// A class; the library exports one object of this type per class, named `<class>_class`.
#[repr(C)]
pub struct opal_class_t {
    pub cls_name: *const c_char,
    pub cls_parent: *mut opal_class_t,
    pub cls_construct: opal_construct_t,
    pub cls_destruct: opal_construct_t,
    pub cls_initialized: c_int,
    pub cls_depth: c_int,
    pub cls_construct_array: *mut opal_construct_t,
    /// Destructors from the class up to its oldest ancestor, ended by NULL; set when the class is first used.
    pub cls_destruct_array: *mut opal_construct_t,
    /// Size of an instance, as the library was built: the fingerprint of debug builds.
    pub cls_sizeof: usize,
}

/// Head of every object. Debug builds have more fields; they are refused.
#[repr(C)]
pub struct opal_object_t {
    pub obj_class: *mut opal_class_t,
    pub obj_reference_count: i32,
}

/// `opal/class/opal_list.h`: an object that can be in a list.
#[repr(C)]
pub struct opal_list_item_t {
    pub super_: opal_object_t,
    pub opal_list_next: *mut opal_list_item_t,
    pub opal_list_prev: *mut opal_list_item_t,
    pub item_free: i32,
}

/// `opal/class/opal_free_list.h`: an object that a free list made.
#[repr(C)]
pub struct opal_free_list_item_t {
    pub super_: opal_list_item_t,
    pub registration: *mut c_void,
    pub ptr: *mut c_void,
}

/// Drops one reference; the last one runs the destructors and frees the memory (the macro `OBJ_RELEASE`).
///
/// # Safety
/// `object` is a live object that the library allocated with malloc, and the caller owns one reference.
pub unsafe fn obj_release(object: *mut opal_object_t) {
    // SAFETY: the object is live, and the library itself counts with atomic operations on this field.
    let count = unsafe { AtomicI32::from_ptr(&raw mut (*object).obj_reference_count) };
    if count.fetch_sub(1, Ordering::AcqRel) != 1 {
        return;
    }
    // SAFETY: a constructed object has an initialised class, whose array ends with NULL; we held the last reference.
    unsafe {
        let mut destructor = (*(*object).obj_class).cls_destruct_array;
        while let Some(run) = *destructor {
            run(object);
            destructor = destructor.add(1);
        }
        libc::free(object.cast());
    }
}

const _: () = {
    assert!(size_of::<opal_class_t>() == 64);
    assert!(offset_of!(opal_class_t, cls_destruct_array) == 48);
    assert!(offset_of!(opal_class_t, cls_sizeof) == 56);
    assert!(size_of::<opal_object_t>() == 16);
    assert!(size_of::<opal_list_item_t>() == 40);
    assert!(size_of::<opal_free_list_item_t>() == 56);
};

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    static DESTROYED: AtomicU32 = AtomicU32::new(0);

    unsafe extern "C" fn destroy(_: *mut opal_object_t) {
        DESTROYED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn only_the_last_release_runs_the_destructors() {
        let mut destructors: [opal_construct_t; 3] = [Some(destroy), Some(destroy), None];
        // SAFETY: an opal_class_t of zeroes is valid: null pointers, no functions, numbers.
        let mut class: opal_class_t = unsafe { std::mem::zeroed() };
        class.cls_destruct_array = destructors.as_mut_ptr();
        // SAFETY: the memory comes from malloc as obj_release expects and is initialised before use.
        unsafe {
            let object: *mut opal_object_t = libc::malloc(size_of::<opal_object_t>()).cast();
            object.write(opal_object_t { obj_class: &mut class, obj_reference_count: 2 });
            obj_release(object);
            assert_eq!(DESTROYED.load(Ordering::Relaxed), 0);
            obj_release(object);
        }
        assert_eq!(DESTROYED.load(Ordering::Relaxed), 2);
    }
}
