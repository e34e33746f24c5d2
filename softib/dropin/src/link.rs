//! What the linker needs beside the static library: trampolines in assembly and a version script, both made from the table.
//!
//! ```text
//!   oxib_verbs_7:                          IBVERBS_1.1 {
//!       jmp *oxib_verbs_targets+56(%rip)       ibv_open_device;
//!   .symver oxib_verbs_7, ibv_open_device@@IBVERBS_1.1   } IBVERBS_1.0;
//! ```
//!
//! A trampoline changes no register that a call uses, so that arguments and results pass through it as they are.
//!
//! [`write_files`] writes them all. It is in the static library, too, by a C name: a program that links that library asks the library
//! itself what to link it with, and needs no second build of softib for it.

use crate::cm::{self, TARGETS_SYMBOL};
use crate::nodes::{NO_EXECUTABLE_STACK, find_nodes};
use crate::paths::FUNCTIONS;
use crate::preload::{self, Rule};
use crate::symbols::{SYMBOLS, Symbol};
use crate::{guarded, sysfs};
use rdma_sys::SOFTIB_MARKER;
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Node of the marker by which a driver knows this library.
const MARKER_NODE: &str = "OXIB_1.0";

/// A function beside it (`memory::registered`).
const REGISTERED: &str = "oxib_softib_registered";

/// What every library is linked with, as `NAME.s` and `NAME.map`, and the files below `sys`, into `folder`.
///
/// # Errors
/// A file cannot be written.
pub fn write_files(folder: &Path) -> std::io::Result<()> {
    let libraries = [
        ("libibverbs.so.1", assembly(), version_script()),
        ("libsoftib-preload.so", preload_assembly(), preload_script()),
        ("libsoftib-paths.so", paths_assembly(), paths_script()),
        ("librdmacm.so.1", cm::assembly(), cm::version_script()),
    ];
    std::fs::create_dir_all(folder)?;
    for (name, assembly, script) in libraries {
        std::fs::write(folder.join(format!("{name}.s")), assembly)?;
        std::fs::write(folder.join(format!("{name}.map")), script)?;
    }
    for (path, content) in sysfs::FILES {
        let file = folder.join("sys").join(path);
        file.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(file, content)?;
    }
    Ok(())
}

/// [`write_files`] for a program that is linked with the static library: 0, or an errno.
///
/// # Safety
/// `folder` is a C string.
#[unsafe(export_name = "oxib_write_link_files")]
pub unsafe extern "C" fn write_link_files(folder: *const c_char) -> c_int {
    // SAFETY: the caller hands over a C string.
    let folder = unsafe { CStr::from_ptr(folder) };
    guarded(libc::EIO, || match write_files(Path::new(OsStr::from_bytes(folder.to_bytes()))) {
        Ok(()) => 0,
        Err(error) => error.raw_os_error().unwrap_or(libc::EIO),
    })
}

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

/// What the library that is preloaded beside a real one exports, and by which rule. Historical versions (IBVERBS_1.0 of what has
/// a newer one) are the real library's.
pub fn preload_exports() -> Vec<(Export, Rule)> {
    let (all, newest) = (exports(), |name: &str| SYMBOLS.iter().rposition(|symbol| symbol.name == name));
    let ruled = all.into_iter().map(|export| (export, preload::rule(export.name)));
    ruled.filter(|(export, rule)| *rule != Rule::Real && newest(export.name) == Some(export.target)).collect()
}

/// The version script of the drop-in.
pub fn version_script() -> String {
    script(&exports())
}

/// The version script of the preloaded library.
pub fn preload_script() -> String {
    script(&preload_exports().into_iter().map(|(export, _)| export).collect::<Vec<_>>())
}

/// Public nodes depend on the one before; private ones stand alone.
fn script(exports: &[Export]) -> String {
    let nodes = find_nodes(exports.iter().map(|export| export.node));
    let marker = SOFTIB_MARKER.to_string_lossy();
    let mut text =
        format!("{MARKER_NODE} {{ global: {marker}; {REGISTERED}; {TARGETS_SYMBOL}; local: *; }};\n");
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
    let direct = |export: &Export| jump(export.target * size_of::<usize>());
    let trampolines = exports().into_iter().enumerate();
    let text: String = trampolines.map(|(at, export)| trampoline(at, &export, &direct(&export))).collect();
    format!("    .text\n{text}{}", marker())
}

/// The trampolines of the preloaded library: most ask [`preload::choose`] where to go.
pub fn preload_assembly() -> String {
    let body = |export: &Export, rule: Rule| match rule {
        Rule::Ours => jump(export.target * size_of::<usize>()),
        Rule::Both(function) => branch(function),
        _ => ask(export.target),
    };
    let trampolines = preload_exports().into_iter().enumerate();
    let text: String =
        trampolines.map(|(at, (export, rule))| trampoline(at, &export, &body(&export, rule))).collect();
    format!("    .text\n{}{text}{}", chooser(), marker())
}

/// A function of this body under the export's name and version.
fn trampoline(at: usize, export: &Export, body: &str) -> String {
    let (label, versions) = (format!("oxib_verbs_{at}"), if export.default { "@@" } else { "@" });
    format!(
        "    .globl {label}\n    .type {label}, %function\n    .balign 16\n{label}:\n{body}\
         \x20   .size {label}, . - {label}\n    .symver {label}, {}{versions}{}\n",
        export.name, export.node
    )
}

fn marker() -> String {
    let marker = SOFTIB_MARKER.to_string_lossy();
    format!(
        "    .section .rodata\n    .globl {marker}\n    .type {marker}, %object\n    .balign 4\n{marker}:\n\
         \x20   .4byte 1\n    .size {marker}, 4\n{NO_EXECUTABLE_STACK}"
    )
}

/// Goes to the chooser with an index, in a register that no argument is in.
fn ask(index: usize) -> String {
    match std::env::consts::ARCH {
        "x86_64" => format!("    movl ${index}, %eax\n    jmp oxib_preload_ask\n"),
        "aarch64" => format!("    mov w9, #{index}\n    b oxib_preload_ask\n"),
        other => format!("    .error \"no trampolines for {other} yet\"\n"),
    }
}

/// Saves the registers of the arguments, asks [`preload::choose`] with the index and the first of them, and jumps to what it says.
fn chooser() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => {
            "    .type oxib_preload_ask, %function\noxib_preload_ask:\n\
             \x20   pushq %rdi\n    pushq %rsi\n    pushq %rdx\n    pushq %rcx\n    pushq %r8\n    pushq %r9\n\
             \x20   subq $8, %rsp\n    movq %rdi, %rsi\n    movl %eax, %edi\n    call oxib_preload_choose\n\
             \x20   addq $8, %rsp\n    popq %r9\n    popq %r8\n    popq %rcx\n    popq %rdx\n    popq %rsi\n\
             \x20   popq %rdi\n    jmp *%rax\n    .size oxib_preload_ask, . - oxib_preload_ask\n"
        }
        "aarch64" => {
            "    .type oxib_preload_ask, %function\noxib_preload_ask:\n\
             \x20   stp x29, x30, [sp, #-80]!\n    mov x29, sp\n    stp x0, x1, [sp, #16]\n    stp x2, x3, [sp, #32]\n\
             \x20   stp x4, x5, [sp, #48]\n    stp x6, x7, [sp, #64]\n    mov x1, x0\n    mov w0, w9\n\
             \x20   bl oxib_preload_choose\n    mov x16, x0\n    ldp x0, x1, [sp, #16]\n    ldp x2, x3, [sp, #32]\n\
             \x20   ldp x4, x5, [sp, #48]\n    ldp x6, x7, [sp, #64]\n    ldp x29, x30, [sp], #80\n    br x16\n\
             \x20   .size oxib_preload_ask, . - oxib_preload_ask\n"
        }
        _ => "",
    }
}

/// A jump to a symbol of the static library.
fn branch(to: &str) -> String {
    let jump = if std::env::consts::ARCH == "aarch64" { "b" } else { "jmp" };
    format!("    {jump} {to}\n")
}

/// The trampolines of `libsoftib-paths.so`: see [`crate::paths`].
pub fn paths_assembly() -> String {
    let one = |(name, to): &(&str, &str)| {
        let jump = branch(to);
        format!(
            "    .globl {name}\n    .type {name}, %function\n{name}:\n{jump}    .size {name}, . - {name}\n"
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
