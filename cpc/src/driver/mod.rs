//! Where the protocols meet the world: the helper thread, and what carries out the calls of the connection managers' machines. Thin: nothing is decided here.
//!
//! ```text
//!   thread      the helper thread: runs every manager's driver, sleeps on their descriptors and timers
//!   module      the manager trait, implemented once: a machine and its backend
//!   ibcm  xrc  rdmacm    one backend each: carries out the calls of a machine
//!   datagrams   the UD queue pair under ibcm and xrc       listener    where rdmacm listens
//!   qp_set      an endpoint's queue pairs, from INIT to RTS         seed       random seeds and incarnations
//! ```

mod datagrams;
pub(crate) mod ibcm;
mod listener;
pub(crate) mod module;
pub(crate) mod qp_set;
pub(crate) mod rdmacm;
mod seed;
pub(crate) mod thread;
pub(crate) mod xrc;

pub use datagrams::Q_KEY;
pub use qp_set::to_itself;
