//! One error for every verb: which call, on what, what the system said, and what to do about it.

use std::fmt;
use std::sync::OnceLock;

/// Knows, right after a verb has failed with an errno value, why it did.
pub type Explain = fn(i32) -> Option<String>;

static EXPLAIN: OnceLock<Explain> = OnceLock::new();

/// Names who can say more than errno does: a software device that is linked in. It is asked on the thread of the failed call, before
/// anything else is called. The first one stays.
pub fn explain_errors(explain: Explain) {
    EXPLAIN.get_or_init(|| explain);
}

/// A verb failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    call: &'static str,
    object: Box<str>,
    errno: i32,
    /// What is known beyond errno; the remedy is told apart.
    note: Option<Box<str>>,
    remedy: Option<&'static str>,
    /// What the device says, remedy included.
    reason: Option<Box<str>>,
}

impl Error {
    /// A verb that returned an errno value.
    pub(crate) fn new(call: &'static str, object: impl Into<String>, errno: i32) -> Error {
        let reason = EXPLAIN.get().and_then(|explain| explain(errno)).map(String::into_boxed_str);
        let object = object.into().into_boxed_str();
        Error { call, object, errno, note: None, remedy: None, reason }
    }

    /// A verb that set errno.
    pub(crate) fn last(call: &'static str, object: impl Into<String>) -> Error {
        Error::new(call, object, rdma_sys::errno())
    }

    /// Adds what is known beyond the errno value.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Error {
        let note = note.into();
        let note = self.note.take().map_or(note.clone(), |first| format!("{first}, and {note}"));
        self.note = Some(note.into_boxed_str());
        self
    }

    /// Replaces what the errno value alone suggests to do.
    pub(crate) fn remedy(mut self, remedy: &'static str) -> Error {
        self.remedy = Some(remedy);
        self
    }

    /// With what is known beyond the errno value; it says what to do, too.
    pub(crate) fn because(mut self, reason: impl Into<String>) -> Error {
        self.reason = Some(reason.into().into_boxed_str());
        self
    }

    /// The errno value.
    pub fn errno(&self) -> i32 {
        self.errno
    }

    /// The verb.
    pub fn call(&self) -> &'static str {
        self.call
    }

    /// Why probably, and what to do.
    fn usual_remedy(&self) -> &'static str {
        match (self.call, self.errno) {
            ("ibv_reg_mr", libc::ENOMEM) => "the limit of locked memory is too low: raise `ulimit -l`",
            ("rdma_create_event_channel", libc::EPERM | libc::ENODEV | libc::ENOENT | libc::EACCES) => {
                "the kernel has no RDMA connection manager, or /dev/infiniband/rdma_cm may not be opened: load rdma_ucm"
            }
            ("rdma_bind_addr" | "rdma_listen", libc::EADDRINUSE) => {
                "another process listens there: choose another port"
            }
            ("rdma_bind_addr", libc::EADDRNOTAVAIL | libc::ENODEV) => {
                "no RDMA device has this address: see `ip address` and `rdma link`"
            }
            (
                "rdma_resolve_addr" | "rdma_resolve_route",
                libc::ENODEV | libc::EHOSTUNREACH | libc::ENETUNREACH,
            ) => "no route from an RDMA device to this address: see `ip route`",
            (_, libc::ENOMEM) => {
                "the device or the machine is out of a resource: ask for fewer or smaller queues"
            }
            ("ibv_open_device", libc::EACCES | libc::EPERM) => {
                "no right to open the device: see /dev/infiniband"
            }
            (_, libc::EINVAL) => {
                "an attribute is out of the device's range, or does not fit the object's state"
            }
            (_, libc::EBUSY) => "something still uses the object",
            (_, libc::ENOSYS | libc::EOPNOTSUPP) => "the device does not offer this",
            (_, libc::ENODEV | libc::EIO) => {
                "the device is gone or broken: see `ibv_devinfo` and the kernel's log"
            }
            _ => "see the manual page of the verb",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Error { call, object, errno, note, remedy, reason } = self;
        let text = std::io::Error::from_raw_os_error(*errno).to_string();
        write!(f, "{call} of {object}: ")?;
        // Most reasons say errno in words at the place that it belongs to.
        if !reason.as_ref().is_some_and(|reason| reason.contains(&text)) {
            write!(f, "{text}; ")?;
        }
        if let Some(note) = note {
            write!(f, "{note}; ")?;
        }
        f.write_str(reason.as_deref().unwrap_or_else(|| remedy.unwrap_or_else(|| self.usual_remedy())))
    }
}

impl std::error::Error for Error {}

/// Turns a return code of 0 or errno into a result.
pub(crate) fn check(call: &'static str, code: i32, object: impl FnOnce() -> String) -> Result<(), Error> {
    match code {
        0 => Ok(()),
        // Some verbs return -1 and set errno, others the errno value itself.
        code if code < 0 => Err(Error::last(call, object())),
        errno => Err(Error::new(call, object(), errno)),
    }
}

/// Reports an object that the device did not take back; it is leaked knowingly.
pub(crate) fn leaked(call: &'static str, code: i32, object: &dyn fmt::Display) {
    if code != 0 {
        log::warn!("{call} of {object} failed with {code}: it is left to the device");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_call_object_cause_and_remedy() {
        let error = Error::new("ibv_reg_mr", "4096 bytes on softib0", libc::ENOMEM);
        let text = error.to_string();
        for part in ["ibv_reg_mr", "4096 bytes on softib0", "Cannot allocate memory", "ulimit -l"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
        let text = error.because("its table of 65536 keys is full").to_string();
        assert!(text.ends_with("its table of 65536 keys is full"), "a guess stands beside a reason: {text}");
    }

    #[test]
    fn codes_of_both_conventions_are_understood() {
        assert!(check("x", 0, String::new).is_ok());
        assert_eq!(check("x", libc::EINVAL, String::new).map_err(|e| e.errno()), Err(libc::EINVAL));
        rdma_sys::set_errno(libc::EBUSY);
        assert_eq!(check("x", -1, String::new).map_err(|e| e.errno()), Err(libc::EBUSY));
    }
}
