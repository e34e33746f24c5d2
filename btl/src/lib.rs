//! oxib: a byte transfer layer (BTL) for Open MPI over RDMA verbs. This crate is the plugin,
//! `mca_btl_oxib.so`.
//!
//! ```text
//!   Open MPI (ob1 + bml)
//!        |  MCA BTL ABI
//!       mca         the face: component, parameters, modules, descriptors. The only part with `unsafe`
//!        |
//!    transport      endpoints, posting, progress: one `Transport` per port, driven from outside
//!        |  \
//!        |   protocol   layouts, headers, credits, pending queues, modex: values and arithmetic, no I/O
//!        |
//!   cpc (connections, on a helper thread), verbs (the safe layer), softib (the software device)
//! ```
//!
//! A message's way down: `mca::callbacks::sendi`, `transport::send`, `verbs::Qp::post_send_inline`;
//! up: `mca::start::progress`, `transport::recv`, `mca::module::Module::deliver`.

/// What Open MPI sees.
pub mod mca;
/// The protocol, as values.
pub mod protocol;
/// The protocol, carried out.
pub mod transport;
