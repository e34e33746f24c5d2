//! Replays what fuzzing has kept.

use std::path::{Path, PathBuf};

/// The kept inputs of a target.
pub fn inputs(target: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut inputs: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    inputs.sort();
    inputs
}

/// Runs them.
pub fn replay(target: &str) {
    let inputs = inputs(target);
    assert!(inputs.len() >= 8, "the corpus of {target} has {} inputs", inputs.len());
    for path in inputs {
        let data = std::fs::read(&path).expect("an input");
        std::panic::catch_unwind(|| fuzz::run(target, &data))
            .unwrap_or_else(|_| panic!("{target} fails with {}", path.display()));
    }
}
