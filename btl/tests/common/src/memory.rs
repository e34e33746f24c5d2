//! Registered memory of a test.

use mca_btl_oxib::transport::Transport;
use verbs::{Access, Mr, RKey, Sge};

/// Bytes that a transport's peers may read and write. The registration ends before the bytes do.
pub struct Memory {
    mr: Mr,
    pub bytes: Box<[u8]>,
}

impl Memory {
    pub fn new(transport: &Transport<u64>, bytes: Vec<u8>) -> Memory {
        Memory::try_new(transport, bytes).expect("a registration")
    }

    pub fn try_new(transport: &Transport<u64>, bytes: Vec<u8>) -> Result<Memory, String> {
        let mut bytes = bytes.into_boxed_slice();
        let peers = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
        // SAFETY: the bytes are on the heap, do not move, and live as long as the registration in
        // front of them.
        let mr = unsafe {
            Mr::register(transport.pd(), bytes.as_mut_ptr(), bytes.len(), Access::LOCAL_WRITE | peers)
        };
        Ok(Memory { mr: mr.map_err(|error| error.to_string())?, bytes })
    }

    /// A part of it, as the local end of an operation.
    pub fn local(&self, offset: usize, len: usize) -> Sge {
        Sge { addr: self.addr() + offset as u64, len: len as u32, lkey: self.mr.lkey() }
    }

    /// A part of it, as the remote end of an operation.
    pub fn remote(&self, offset: usize) -> (u64, RKey) {
        (self.addr() + offset as u64, self.mr.rkey())
    }

    fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }
}
