//! What Open MPI hears of peers that it did not ask for: those that come unexpected, and those that are lost.

use super::Module;
use crate::transport::EpId;
use opal_sys::*;
use std::ffi::c_int;

impl Module {
    /// A process that the BML has not told us about asks for a connection: make the endpoint now.
    #[cold]
    pub(super) fn unknown_peer(&'static self, peer: u64) {
        let name = opal_process_name_t::from_word(peer);
        let Some(process) = self.abi.proc_for_name(name) else {
            return log::debug!("connection request from {name}, a process that Open MPI does not know");
        };
        if let Err(reason) = self.add_peer(process.as_ptr()) {
            log::debug!("connection request from {name} is not answered: {reason}");
        }
    }

    /// Open MPI 4.1's ob1 ends the job on this report. It prints the text that comes with one, as a
    /// format string: there is none, and the reason has been said by `tell_lost`.
    #[cold]
    pub(super) fn endpoint_failed(&'static self, endpoint: EpId) {
        let (callback, process, closing) = self.with(|s| (s.error, s.process(endpoint), s.closing));
        let Some(callback) = callback.filter(|_| !closing) else { return };
        // SAFETY: the callback that the BML registered; it takes NULL for the text (ob1's
        // `mca_pml_ob1_error_handler` of 4.1 and 5.0 hands it to printing functions that check for
        // it).
        unsafe { callback(self.as_raw(), MCA_BTL_ERROR_FLAGS_FATAL, process, std::ptr::null_mut()) };
    }

    /// Says that an endpoint is lost, and why.
    #[cold]
    pub(super) fn tell_lost(&self, endpoint: EpId, peer: u64, reason: &str) {
        let name = opal_process_name_t::from_word(peer);
        let (process, closing) = self.with(|s| (s.process(endpoint), s.closing));
        if closing {
            return log::debug!("connection to {name} lost while closing: {reason}");
        }
        let place = self.host(process).map_or_else(String::new, |host| format!(" on {host}"));
        log::error!("connection to {name}{place} is lost: {reason}");
    }

    /// What a call returns whose endpoint is lost. Open MPI may end the job for it, before the failure itself has come up.
    #[cold]
    pub(super) fn refused(&self, endpoint: EpId) -> c_int {
        if let Some((peer, reason)) = self.transport(None, |t| t.untold_failure(endpoint)) {
            self.tell_lost(endpoint, peer, &reason);
        }
        OPAL_ERR_UNREACH
    }

    /// After a panic: the upper layer hears, once, that nothing goes over this port any more. It
    /// would wait for ever.
    #[cold]
    pub fn tell_broken() {
        for this in Module::all() {
            let (broken, callback) = this.with(|state| (std::mem::take(&mut state.broken), state.error));
            if let (true, Some(callback)) = (broken, callback) {
                let text = c"oxib: internal error";
                // SAFETY: the callback that the BML registered, with a text that lives for ever.
                unsafe {
                    callback(
                        this.as_raw(),
                        MCA_BTL_ERROR_FLAGS_FATAL,
                        std::ptr::null_mut(),
                        text.as_ptr().cast_mut(),
                    );
                };
            }
        }
    }

    fn host(&self, process: *mut opal_proc_t) -> Option<String> {
        // SAFETY: Open MPI keeps a process until `del_procs`, after which we know it no more.
        (!process.is_null()).then(|| unsafe { self.abi.host_of(process) }).flatten()
    }
}
