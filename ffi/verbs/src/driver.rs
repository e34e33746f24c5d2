//! A verbs library: rdma-core's, found at run time, or a software device's, linked in.

use crate::error::Error;
use crate::loader;
use std::sync::Arc;

/// A source of devices. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Driver(pub(crate) Arc<Inner>);

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) table: &'static rdma_sys::Table,
    /// The connection manager that is linked in with the devices.
    pub(crate) connections: Option<&'static rdma_cm_sys::Table>,
    software: bool,
}

impl Driver {
    /// The library `libibverbs.so.1` of this machine. It may be our own drop-in: see [`is_software`](Self::is_software).
    ///
    /// # Errors
    /// The library is not installed, or too old.
    pub fn rdma_core() -> Result<Driver, Error> {
        let loaded = loader::load()
            .map_err(|e| Error::new("dlopen", "libibverbs.so.1", libc::ENOENT).because(e.to_string()))?;
        Ok(Driver(Arc::new(Inner { table: loaded.table, connections: None, software: loaded.software })))
    }

    /// The library `libibverbs.so.1` of this machine, if it is our own drop-in. Another is not kept in the process.
    pub fn drop_in() -> Option<Driver> {
        if loader::is_software(loader::LIBRARY) { Driver::rdma_core().ok() } else { None }
    }

    /// A device that is linked in, by its control-path functions.
    pub fn from_table(table: &'static rdma_sys::Table) -> Driver {
        Driver(Arc::new(Inner { table, connections: None, software: true }))
    }

    /// A device that is linked in, with a connection manager of its own.
    pub fn with_connections(
        table: &'static rdma_sys::Table,
        connections: &'static rdma_cm_sys::Table,
    ) -> Driver {
        Driver(Arc::new(Inner { table, connections: Some(connections), software: true }))
    }

    /// The devices are our software device's, whichever way it came into the process.
    pub fn is_software(&self) -> bool {
        self.0.software
    }

    /// Which library this is, for messages.
    pub fn name(&self) -> &'static str {
        self.0.table.name
    }
}
