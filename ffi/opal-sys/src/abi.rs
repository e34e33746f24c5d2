//! Which Open MPI are we in, and may we stay? Detection, refusal, and the safe face of everything else.
//!
//! Nothing checks a plugin's BTL version when Open MPI loads it: a wrong one is accepted and crashes. So the
//! component asks here first; `checks` has the questions.

use crate::base::Base;
use crate::btl::*;
use crate::checks;
use crate::convertor::{self, opal_convertor_pack_fn, opal_convertor_t};
use crate::error::AbiError;
use crate::family::{Deliver, Family, ModexError, NoReceiver, Tray};
use crate::memory::MemoryHooks;
use crate::process::{opal_bitmap_t, opal_proc_t, opal_process_name_t};
use crate::status::OPAL_SUCCESS;
use crate::symbols::{self, Resolver};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Mutex, PoisonError};

/// `OMPI_MPI_STATE_FINALIZE_PAST_COMM_SELF_DESTRUCT` of ompi/runtime/mpiruntime.h: the same in v4.1.0 to v5.0.10.
const PAST_COMM_SELF: i32 = 4;

type Trigger = [mca_btl_active_message_callback_t; MCA_BTL_TAG_MAX];
type SetBitFn = unsafe extern "C" fn(*mut opal_bitmap_t, c_int) -> c_int;
type ProcForNameFn = unsafe extern "C" fn(opal_process_name_t) -> *mut opal_proc_t;

/// A supported Open MPI.
#[derive(Debug)]
#[repr(C)] // in this order: each message needs the first two
pub struct Abi {
    trigger: NonNull<Trigger>,
    deliver: Deliver,
    base: Base,
    family: Box<dyn Family>,
    version: String,
    uses_threads: NonNull<bool>,
    /// What the parameter `pmix_base_async_modex` is; not every build has it.
    async_modex: Option<NonNull<bool>>,
    /// How many have called `opal_init` and not yet `opal_finalize`.
    users: NonNull<i32>,
    /// libmpi's `ompi_mpi_state_t`; a program that uses libopen-pal alone has none.
    mpi_state: Option<NonNull<i32>>,
    /// A variable that holds a function; MPI_Init replaces it.
    proc_for_name: NonNull<Option<ProcForNameFn>>,
    proc_local: unsafe extern "C" fn() -> *mut opal_proc_t,
    pack: opal_convertor_pack_fn,
    set_bit: SetBitFn,
    process_info: Option<NonNull<u8>>,
    memory_hooks: Option<MemoryHooks>,
}

// SAFETY: addresses of code and of static objects of the library, which may be read from every thread.
unsafe impl Send for Abi {}
// SAFETY: a shared `Abi` never changes after `resolve`; the library's flags are loaded atomically,
// and its tables are written at registration and in MPI_Init only.
unsafe impl Sync for Abi {}

impl Abi {
    /// Finds out which Open MPI holds this process.
    ///
    /// May be called again (MPI_T, sessions): the answer is reused as long as the library stays where it is.
    ///
    /// # Errors
    /// [`AbiError`], whose text says what was found and what would do.
    pub fn detect() -> Result<&'static Abi, AbiError> {
        static KNOWN: Mutex<Option<&'static Abi>> = Mutex::new(None);
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let found = Self::resolve(&symbols::of_this_process)?;
        match *known {
            Some(abi) if abi.uses_threads == found.uses_threads => Ok(abi),
            _ => Ok(known.insert(Box::leak(Box::new(found)))),
        }
    }

    fn resolve(find: Resolver<'_>) -> Result<Self, AbiError> {
        let base = Base::resolve(find)?;
        let version = version(find)?;
        let family = checks::family(find, &version)?;
        // SAFETY: the signatures are those of opal/util/proc.h, opal/datatype/opal_convertor.h and
        // opal/class/opal_bitmap.h, equal in v4.1.0 to v5.0.10.
        unsafe {
            Ok(Self {
                base,
                deliver: family.deliver(),
                family,
                version,
                uses_threads: symbols::data(find, c"opal_uses_threads")?,
                async_modex: symbols::data(find, c"opal_pmix_base_async_modex").ok(),
                users: symbols::data(find, c"opal_initialized")?,
                mpi_state: find(c"ompi_mpi_state").map(NonNull::cast),
                trigger: symbols::data(find, c"mca_btl_base_active_message_trigger")?,
                proc_for_name: symbols::data(find, c"opal_proc_for_name")?,
                proc_local: symbols::function(find, c"opal_proc_local_get")?,
                pack: symbols::function(find, c"opal_convertor_pack")?,
                set_bit: symbols::function(find, c"opal_bitmap_set_bit")?,
                process_info: find(c"opal_process_info").map(NonNull::cast),
                memory_hooks: MemoryHooks::resolve(find),
            })
        }
    }

    /// Output and variables.
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// As Open MPI writes it: "4.1.4".
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The family's table, for its name and the exchange of addresses.
    pub fn family(&self) -> &dyn Family {
        &*self.family
    }

    /// Calls for memory that is given back to the system, if this build has them.
    pub fn memory_hooks(&self) -> Option<&MemoryHooks> {
        self.memory_hooks.as_ref()
    }

    /// True when more than one thread may call us. It can become true after our init: read it on every entry.
    #[inline]
    pub fn uses_threads(&self) -> bool {
        self.threads().load(Ordering::Relaxed)
    }

    /// The word that [`uses_threads`](Self::uses_threads) reads.
    pub fn threads(&self) -> &'static AtomicBool {
        // SAFETY: a static `bool` of the library, which stays loaded and may change it at any time: hence atomic.
        unsafe { AtomicBool::from_ptr(self.uses_threads.as_ptr()) }
    }

    /// True if processes do not wait for each other's addresses in MPI_Init, so that one may be asked for that is not there yet.
    pub fn addresses_come_late(&self) -> bool {
        // SAFETY: a static `bool` of the library, set when its parameters are read.
        self.async_modex
            .is_some_and(|flag| unsafe { AtomicBool::from_ptr(flag.as_ptr()) }.load(Ordering::Relaxed))
    }

    /// True once MPI_Finalize is past its attributes, or OPAL's own end has begun. Open MPI takes its communicators down there, even
    /// those that a request still refers to (`ompi_comm_finalize`), and peers away after that: where this holds in `btl_del_procs`, a callback
    /// of ob1 may use memory that has been freed.
    pub fn is_ending(&self) -> bool {
        // SAFETY: static 32-bit words of the libraries, which they may change at any time: hence the atomic loads.
        let load = |word: NonNull<i32>| unsafe { AtomicI32::from_ptr(word.as_ptr()) }.load(Ordering::Relaxed);
        load(self.users) == 0 || self.mpi_state.is_some_and(|state| load(state) >= PAST_COMM_SELF)
    }

    /// Name of this process; valid from MPI_Init on.
    pub fn my_name(&self) -> opal_process_name_t {
        // SAFETY: the library always has a local process, at first a dummy with an invalid name.
        unsafe { (*(self.proc_local)()).proc_name }
    }

    /// Number of processes in our own job.
    ///
    /// # Errors
    /// [`ModexError`] when the runtime does not know.
    pub fn job_size(&self) -> Result<u32, ModexError> {
        self.family.job_size(self.my_name().jobid)
    }

    /// The folder of our job on this node, which the launcher removes at the job's end; `None` if there is none, as for a process
    /// that was started without a launcher.
    pub fn session_dir(&self) -> Option<PathBuf> {
        let info = self.process_info?;
        // SAFETY: a static struct of the library, which has a pointer to text there; set in its init, before BTLs are opened.
        let dir = unsafe {
            let text = info.add(self.family.session_dir_offset()).cast::<*const c_char>().read();
            (!text.is_null()).then(|| PathBuf::from(OsStr::from_bytes(CStr::from_ptr(text).to_bytes())))
        };
        dir.filter(|dir| dir.is_dir())
    }

    /// Host of a process, if known; see [`Family::host_of`].
    ///
    /// # Safety
    /// As [`Family::host_of`].
    pub unsafe fn host_of(&self, process: *const opal_proc_t) -> Option<String> {
        // SAFETY: the caller promises a process of `add_procs` or `proc_for_name` that is not
        // deleted, which is what `Family::host_of` asks for.
        unsafe { self.family.host_of(process) }
    }

    /// The process of that name; Open MPI makes an entry for one that it has not met. Main thread only.
    pub fn proc_for_name(&self, name: opal_process_name_t) -> Option<NonNull<opal_proc_t>> {
        // SAFETY: a static variable that holds a function from library load on.
        let find = unsafe { *self.proc_for_name.as_ptr() }?;
        // SAFETY: `find` is the library's function of this type and takes the name by value; it
        // returns NULL for a name that no process has.
        NonNull::new(unsafe { find(name) })
    }

    /// Hands a received message, in a tray, to the callback that is registered for its tag.
    ///
    /// # Errors
    /// [`NoReceiver`] when the tag is invalid or free; nothing has been called then.
    ///
    /// # Safety
    /// `module` is one of ours, alive; the payload stays readable during the call; the caller
    /// holds no lock and no borrow that a re-entered function of the module needs.
    #[inline]
    pub unsafe fn deliver(
        &self,
        module: *mut mca_btl_base_module_t,
        endpoint: *mut mca_btl_base_endpoint_t,
        tag: mca_btl_base_tag_t,
        (payload, tray): (&mut [u8], &mut Tray),
    ) -> Result<(), NoReceiver> {
        if usize::from(tag) >= MCA_BTL_TAG_MAX {
            return Err(NoReceiver { tag });
        }
        // SAFETY: the table is static and the index in bounds; an entry is two words that change at registration only.
        let callback = unsafe { (*self.trigger.as_ptr())[usize::from(tag)] };
        if callback.cbfunc.is_null() {
            return Err(NoReceiver { tag });
        }
        tray.put(payload);
        // SAFETY: there is a function; the caller vouches for the rest.
        unsafe { (self.deliver)(callback, module, endpoint, tag, tray) };
        Ok(())
    }

    /// Copies the next bytes of a message to `out`; returns how many, at most `out.len()`.
    ///
    /// # Errors
    /// The OPAL status of `opal_convertor_pack`.
    ///
    /// # Safety
    /// `convertor` is prepared for a send of at least one byte, and the user's buffer is readable.
    #[inline]
    pub unsafe fn pack(&self, convertor: *mut opal_convertor_t, out: &mut [u8]) -> Result<usize, c_int> {
        // SAFETY: `self.pack` is `opal_convertor_pack` (see `resolve`); the caller promises a
        // convertor prepared for a send, and that the user's buffer is readable.
        unsafe { convertor::pack(self.pack, convertor, out) }
    }

    /// Marks process `index` as reachable. A NULL bitmap (lazy `add_procs`) is left alone.
    ///
    /// # Errors
    /// The OPAL status, when the bitmap can't grow.
    ///
    /// # Safety
    /// `bitmap` is NULL or the one that `add_procs` was given.
    pub unsafe fn set_bit(&self, bitmap: *mut opal_bitmap_t, index: usize) -> Result<(), c_int> {
        let Ok(bit) = c_int::try_from(index) else { return Err(crate::OPAL_ERR_BAD_PARAM) };
        if bitmap.is_null() {
            return Ok(());
        }
        // SAFETY: `bitmap` is not NULL (checked above), so the caller promises that it is the one
        // of `add_procs`; the function is `opal_bitmap_set_bit` (see `resolve`).
        match unsafe { (self.set_bit)(bitmap, bit) } {
            OPAL_SUCCESS => Ok(()),
            error => Err(error),
        }
    }
}

fn version(find: Resolver<'_>) -> Result<String, AbiError> {
    let text = symbols::data::<c_char>(find, c"opal_version_string")?;
    // SAFETY: the symbol is an array of characters that ends with NUL.
    Ok(unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests;
