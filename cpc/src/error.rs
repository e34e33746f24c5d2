//! What can go wrong outside a single connection.

/// A service could not be opened or started.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A name in include or exclude is not one of ours.
    #[error("there is no connection component \"{name}\"; known are: {known}")]
    UnknownComponent { name: String, known: String },
    /// No component can serve the port.
    #[error("no connection component can serve {port}: {reasons}")]
    NoComponent { port: String, reasons: String },
    /// No IP address leads to the port.
    #[error(
        "{port} has no IP address to listen on: {reasons}; see `ip address` and `rdma link`, or btl_oxib_rdmacm_address"
    )]
    NoAddress { port: String, reasons: String },
    /// It is for other queues than these.
    #[error("{0}")]
    Queues(&'static str),
    /// The plan can't be carried out.
    #[error("the queue pair plan is unusable: {0}")]
    Plan(&'static str),
    /// A verbs call failed.
    #[error(transparent)]
    Verbs(#[from] verbs::Error),
    /// No memory for datagrams.
    #[error("no buffers for connection datagrams: {0}")]
    Buffers(#[from] verbs::PoolError),
    /// The helper thread could not be started.
    #[error("the connection helper thread can't start: {0}; check the limits on threads and open files")]
    Thread(#[from] std::io::Error),
    /// The service has been closed.
    #[error("the connection service is closed")]
    Closed,
}

/// No component fits a peer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectError {
    /// Nothing in common.
    #[error(
        "no connection component in common: here {ours}, there {theirs}; check btl_oxib_cpc_include and btl_oxib_cpc_exclude on both sides"
    )]
    NothingInCommon { ours: String, theirs: String },
}
