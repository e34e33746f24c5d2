//! Where the protocols meet the world: the helper thread, and for each connection manager a driver that carries out what its machine
//! says. Thin: nothing is decided here.
//!
//! ```text
//!   thread      the helper thread: runs every manager's driver, sleeps on their descriptors and timers
//!   ibcm  xrc  rdmacm    one driver each: the manager trait, over a machine
//!   datagrams   the UD queue pair under ibcm and xrc       listener    where rdmacm listens
//!   qp_set      an endpoint's queue pairs, from INIT to RTS         seed       random seeds and incarnations
//! ```

mod datagrams;
pub(crate) mod ibcm;
mod listener;
pub(crate) mod qp_set;
pub(crate) mod rdmacm;
mod seed;
pub(crate) mod thread;
pub(crate) mod xrc;

pub use datagrams::Q_KEY;
