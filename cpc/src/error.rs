//! What can go wrong outside a single connection.

/// A service could not be opened or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name in `Config::include` or `Config::exclude` that no component has.
    #[error("there is no connection component \"{name}\"; known are: {known}")]
    UnknownComponent { name: String, known: String },
    /// Every component is excluded or has refused the port; each with its reason.
    #[error("no connection component can serve {port}: {reasons}")]
    NoComponent { port: String, reasons: String },
    /// rdmacm can listen at none of the port's addresses; each with its reason.
    #[error(
        "{port} has no IP address to listen on: {reasons}; see `ip address` and `rdma link`, or btl_oxib_rdmacm_address"
    )]
    NoAddress { port: String, reasons: String },
    /// It is for other queues than these.
    #[error("{0}")]
    Queues(&'static str),
    /// A plan that the component can't carry out, and why.
    #[error("the queue pair plan is unusable: {0}")]
    Plan(&'static str),
    /// A verbs call has failed.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// The buffers of the UD queue pair can't be allocated or registered.
    #[error("no buffers for connection datagrams: {0}")]
    Buffers(#[from] verbs::PoolError),
    /// The helper thread, its poller or its waker can't be created.
    #[error("the connection helper thread can't start: {0}; check the limits on threads and open files")]
    Thread(#[from] std::io::Error),
    /// The service has been closed; it can't be started any more.
    #[error("the connection service is closed")]
    Closed,
}

/// No component fits a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Each side has components that the other has not; their names.
    #[error(
        "no connection component in common: here {ours}, there {theirs}; check btl_oxib_cpc_include and btl_oxib_cpc_exclude on both sides"
    )]
    NothingInCommon { ours: String, theirs: String },
}
