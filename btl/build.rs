//! Link options of the plugin file.

fn main() {
    // Open MPI closes a component's file at the end, or right after its init found nothing to do.
    // Code that is still referenced then (a thread-local destructor, a thread on its way out) would
    // be gone from under it.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo:rerun-if-changed=build.rs");
}
