//! librdmacm.so.1: trampolines into libibverbs.so.1, which holds the connection manager, so that a process has one device.
//!
//! ```text
//!   program ── rdma_connect@RDMACM_1.0 ──> trampoline ── oxib_cm_targets[i] ──> softib
//!                                          (librdmacm.so.1)  (libibverbs.so.1, OXIB_1.0)
//! ```
//! The library needs ours: with another libibverbs.so.1 in front of it, the dynamic linker refuses the program at its start.

use crate::nodes::{NO_EXECUTABLE_STACK, find_nodes};
use softib::CM_CALLS;
use std::fmt::Write;

/// Where a trampoline jumps to. Only ever called by C, with the signature that goes with the name.
#[repr(transparent)]
#[derive(Debug)]
pub struct Target(#[allow(dead_code)] *const ());

// SAFETY: the address of a function, which is the same for every thread.
unsafe impl Sync for Target {}

const COUNT: usize = CM_CALLS.len();

/// The connection manager's functions, in the order of [`CM_CALLS`]; librdmacm.so.1 knows this array by its symbol.
#[unsafe(export_name = "oxib_cm_targets")]
pub static TARGETS: [Target; COUNT] = targets();

const fn targets() -> [Target; COUNT] {
    let mut all = [const { Target(std::ptr::null()) }; COUNT];
    let mut at = 0;
    while at < COUNT {
        all[at] = Target(CM_CALLS[at].target);
        at += 1;
    }
    all
}

/// The symbol of [`TARGETS`].
pub const TARGETS_SYMBOL: &str = "oxib_cm_targets";

/// The version script: nodes depend on the one before.
pub fn version_script() -> String {
    let (mut text, mut parent) = (String::from("OXIB_CM_1.0 { local: *; };\n"), "");
    for node in find_nodes(CM_CALLS.iter().map(|call| call.node)) {
        let names = CM_CALLS.iter().filter(|call| call.node == node).map(|call| call.name);
        let names: String = names.map(|name| format!("    {name};\n")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{node} {{\n  global:\n{names}}} {parent};");
        parent = node;
    }
    text
}

/// The trampolines, for the processor that this code was compiled for.
pub fn assembly() -> String {
    let mut text = String::from("    .text\n");
    for (at, call) in CM_CALLS.iter().enumerate() {
        let (label, jump) = (format!("oxib_cm_{at}"), jump(at * size_of::<usize>()));
        let _ = write!(
            text,
            "    .globl {label}\n    .type {label}, %function\n    .balign 16\n{label}:\n{jump}\
             \x20   .size {label}, . - {label}\n    .symver {label}, {}@@{}\n",
            call.name, call.node
        );
    }
    text + NO_EXECUTABLE_STACK
}

/// A jump through the other library's array; uses only registers that the calling conventions leave to linkers.
fn jump(offset: usize) -> String {
    match std::env::consts::ARCH {
        "x86_64" => format!("    movq {TARGETS_SYMBOL}@GOTPCREL(%rip), %r11\n    jmp *{offset}(%r11)\n"),
        "aarch64" => format!(
            "    adrp x16, :got:{TARGETS_SYMBOL}\n    ldr x16, [x16, :got_lo12:{TARGETS_SYMBOL}]\n    \
             ldr x16, [x16, #{offset}]\n    br x16\n"
        ),
        other => format!("    .error \"no trampolines for {other} yet\"\n"),
    }
}
