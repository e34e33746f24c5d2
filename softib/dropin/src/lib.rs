//! softib as libibverbs.so.1 and librdmacm.so.1: unmodified verbs programs run on the software device.
//!
//! ```text
//!   program ── ibv_create_qp@IBVERBS_1.1 ──> trampoline ──> TARGETS[i] ──> softib, or a function of this crate
//!                                            (link.rs)      (symbols.rs)
//! ```
//!
//! A Rust cdylib cannot carry symbol versions, and one name may exist under several. So the exported names are
//! trampolines in a small assembly file, one a name and version, each a jump through [`symbols::TARGETS`]. The assembly and
//! the linker's version script are generated from the same table as the targets ([`symbols`]), so that they cannot
//! disagree; `cargo xtask build` links the three into `target/oxib/verbs/libibverbs.so.1`. The Rust side exports nothing that is
//! called like a libibverbs function: tests may link this crate and the real library at once.
//!
//! | module    | what                                                                                  |
//! |-----------|---------------------------------------------------------------------------------------|
//! | `symbols` | the table: every name, its versions, what it leads to                                  |
//! | `link`    | assembly and version script made from it                                               |
//! | `cm`      | librdmacm.so.1: the same for the connection manager's calls                            |
//! | `nodes`   | what the assembly and version scripts of both libraries have in common                  |
//! | `refuse`  | what functions lead to that this device does not offer, one a convention of reporting  |
//! | `names`   | numbers to words: ibv_wc_status_str and the like                                       |
//! | `rate`    | rates to multiples and megabits, and back                                              |
//! | `query`   | ports, GID and P_Key tables in the shapes that libibverbs has beyond the driver table  |
//! | `device`  | closing, whatever is left behind                                                      |
//! | `memory`  | fork; how much is registered                                                          |
//! | `address` | the way back to the sender of a datagram                                               |
//! | `paths`   | a path that only a preloaded library can answer for                                    |
//! | `preload` | the same beside a real rdma-core, whose devices stay: `libsoftib-preload.so`            |
//! | `sysfs`   | the few files that programs read below /sys/class/infiniband                           |

mod address;
/// The library librdmacm.so.1.
pub mod cm;
mod device;
/// Assembly and version script.
pub mod link;
mod memory;
/// `ibv_wc_status_str` and its like.
pub mod names;
mod nodes;
/// What a preloaded library answers for.
pub mod paths;
/// Two libraries in one process.
pub mod preload;
mod query;
/// `ibv_rate_to_mult` and its like.
pub mod rate;
mod refuse;
/// Exported names.
pub mod symbols;
/// `ibv_read_sysfs_file` and its like.
pub mod sysfs;

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs `body`; a panic ends here and becomes `otherwise`, because it must not cross into C.
fn guarded<T>(otherwise: T, body: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(otherwise)
}
