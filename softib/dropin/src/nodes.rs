//! What the link files of both libraries have in common.

/// Ends every assembly file.
pub const NO_EXECUTABLE_STACK: &str = "    .section .note.GNU-stack,\"\",%progbits\n";

/// Version nodes in the order of their first mention.
pub fn find_nodes<'a>(all: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut nodes = Vec::new();
    for node in all {
        if !nodes.contains(&node) {
            nodes.push(node);
        }
    }
    nodes
}
