//! What the linker needs beside the static library: trampolines in assembly and a version script, both made from the table.
//!
//! ```text
//!   oxib_verbs_7:                          IBVERBS_1.1 {
//!       jmp *oxib_verbs_targets+56(%rip)       ibv_open_device;
//!   .symver oxib_verbs_7, ibv_open_device@@IBVERBS_1.1   } IBVERBS_1.0;
//! ```
//!
//! A trampoline changes no register that a call uses, so that arguments and results pass through it as they are.

use crate::paths::FUNCTIONS;
use crate::symbols::{SYMBOLS, Symbol};
use rdma_sys::SOFTIB_MARKER;
use std::fmt::Write;

/// Node of the marker by which a driver knows this library.
const MARKER_NODE: &str = "OXIB_1.0";
const NO_EXECUTABLE_STACK: &str = "    .section .note.GNU-stack,\"\",%progbits\n";

/// One name under one version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Export {
    /// As programs know it.
    pub name: &'static str,
    /// Its version node.
    pub node: &'static str,
    /// Whether it is what a program without versions gets.
    pub default: bool,
    /// Index of its target.
    target: usize,
}

/// Every exported function, one entry a name and version.
pub fn exports() -> Vec<Export> {
    let pairs = |(target, symbol): (usize, &'static Symbol)| {
        symbol.nodes.iter().map(move |node| Export { name: symbol.name, node, default: false, target })
    };
    let mut all: Vec<Export> = SYMBOLS.iter().enumerate().flat_map(pairs).collect();
    for at in 0..all.len() {
        all[at].default = !all[at + 1..].iter().any(|later| later.name == all[at].name);
    }
    all
}

/// The version script. Public nodes depend on the one before; private ones stand alone.
pub fn version_script() -> String {
    let exports = exports();
    let mut nodes: Vec<&str> = Vec::new();
    for export in &exports {
        if !nodes.contains(&export.node) {
            nodes.push(export.node);
        }
    }
    let marker = SOFTIB_MARKER.to_string_lossy();
    let mut text = format!("{MARKER_NODE} {{ global: {marker}; local: *; }};\n");
    let mut parent = "";
    for node in nodes {
        let public = node.starts_with("IBVERBS_1.");
        let names = exports.iter().filter(|export| export.node == node).map(|export| export.name);
        let names: String = names.map(|name| format!("    {name};\n")).collect();
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{node} {{\n  global:\n{names}}} {};", if public { parent } else { "" });
        if public {
            parent = node;
        }
    }
    text
}

/// The trampolines and the marker, for the processor that this code was compiled for.
pub fn assembly() -> String {
    let marker = SOFTIB_MARKER.to_string_lossy();
    let mut text = String::from("    .text\n");
    for (at, export) in exports().iter().enumerate() {
        let label = format!("oxib_verbs_{at}");
        let versions = if export.default { "@@" } else { "@" };
        let jump = jump(export.target * size_of::<usize>());
        let _ = write!(
            text,
            "    .globl {label}\n    .type {label}, %function\n    .balign 16\n{label}:\n{jump}\
             \x20   .size {label}, . - {label}\n    .symver {label}, {}{versions}{}\n",
            export.name, export.node
        );
    }
    let _ = write!(
        text,
        "    .section .rodata\n    .globl {marker}\n    .type {marker}, %object\n    .balign 4\n{marker}:\n\
         \x20   .4byte 1\n    .size {marker}, 4\n{NO_EXECUTABLE_STACK}"
    );
    text
}

/// The trampolines of `libsoftib-paths.so`: see [`crate::paths`].
pub fn paths_assembly() -> String {
    let jump = if std::env::consts::ARCH == "aarch64" { "b" } else { "jmp" };
    let one = |(name, to): &(&str, &str)| {
        format!(
            "    .globl {name}\n    .type {name}, %function\n{name}:\n    {jump} {to}\n    .size {name}, . - {name}\n"
        )
    };
    let all: String = FUNCTIONS.iter().map(one).collect();
    format!("    .text\n{all}{NO_EXECUTABLE_STACK}")
}

/// Its version script: names without a version, so that they stand in for every version.
pub fn paths_script() -> String {
    let names: String = FUNCTIONS.iter().map(|(name, _)| format!("{name}; ")).collect();
    format!("{{ global: {names}local: *; }};\n")
}

/// A jump through the target at this offset; uses only registers that the calling conventions leave to linkers.
fn jump(offset: usize) -> String {
    let to = format!("oxib_verbs_targets+{offset}");
    match std::env::consts::ARCH {
        "x86_64" => format!("    jmp *{to}(%rip)\n"),
        "aarch64" => format!("    adrp x16, {to}\n    ldr x16, [x16, :lo12:{to}]\n    br x16\n"),
        other => format!("    .error \"no trampolines for {other} yet\"\n"),
    }
}
