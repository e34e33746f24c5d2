//! What can go wrong outside a single connection.

/// A service could not be opened or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no connection component \"{name}\"; known are: {known}")]
    UnknownComponent { name: String, known: String },
    #[error("no connection component can serve {port}: {reasons}")]
    NoComponent { port: String, reasons: String },
    #[error(
        "{port} has no IP address to listen on: {reasons}; see `ip address` and `rdma link`, or btl_oxib_rdmacm_address"
    )]
    NoAddress { port: String, reasons: String },
    /// It is for other queues than these.
    #[error("{0}")]
    Queues(&'static str),
    #[error("the queue pair plan is unusable: {0}")]
    Plan(&'static str),
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    #[error("no buffers for connection datagrams: {0}")]
    Buffers(#[from] verbs::PoolError),
    #[error("the connection helper thread can't start: {0}; check the limits on threads and open files")]
    Thread(#[from] std::io::Error),
    #[error("the connection service is closed")]
    Closed,
}

/// No component fits a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    #[error(
        "no connection component in common: here {ours}, there {theirs}; check btl_oxib_cpc_include and btl_oxib_cpc_exclude on both sides"
    )]
    NothingInCommon { ours: String, theirs: String },
}
