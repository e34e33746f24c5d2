//! Link options of the plugin file.

use std::process::Command;

fn main() {
    let option = |option: &str| println!("cargo:rustc-cdylib-link-arg=-Wl,{option}");
    // Open MPI closes a component's file at the end, or right after its init found nothing to do.
    // Code that is still referenced then (a thread-local destructor, a thread on its way out) would
    // be gone from under it.
    option("-z,nodelete");
    // The functions of a job's start together: the kernel maps code by 64 KiB. `cargo xtask order` writes the file.
    option(concat!("-T,", env!("CARGO_MANIFEST_DIR"), "/link/order.ld"));
    // Relocations in 1 KiB instead of 115, all of which the dynamic linker reads.
    if knows_packed_relocations() {
        option("-z,pack-relative-relocs");
    }
    println!("cargo:rerun-if-changed=link/order.ld");
    println!("cargo:rerun-if-changed=build.rs");
}

/// Whether the dynamic linker does: glibc 2.36 was the first one.
fn knows_packed_relocations() -> bool {
    let output = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let version = text.trim().strip_prefix("glibc ").and_then(|version| version.split_once('.'));
    let number = |text: &str| text.parse::<u32>().ok();
    version.and_then(|(major, minor)| Some((number(major)?, number(minor)?))).is_some_and(|it| it >= (2, 36))
}
