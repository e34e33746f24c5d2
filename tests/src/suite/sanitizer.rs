//! A program of many threads under ThreadSanitizer. It sees the program, and not what the device synchronises by; what it
//! says of the device is named, with the reasons, in `configs/thread-sanitizer.supp`.

use std::process::Command;

use crate::failure::Context;
use crate::process::{Limits, run};
use crate::suite::verbs::says;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const LIMITS: u64 = 120;

/// One.
pub fn cases(_: &Setting) -> Vec<Case> {
    vec![Case::new("eight threads under ThreadSanitizer, with the suppressions", eight_threads)]
}

/// Compiles `tests/verbs/threads.c` with the sanitizer and runs it over the drop-in. It needs the usual layout of the address space.
fn eight_threads(setting: &Setting) -> Result<()> {
    let (folder, library) = (setting.target.join("oxib/sanitizer"), setting.target.join("oxib/verbs"));
    std::fs::create_dir_all(&folder).context(format_args!("cannot create {}", folder.display()))?;
    let program = folder.join("threads");
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", "-Wall", "-Wextra", "-fsanitize=thread", "-o"]).arg(&program);
    cc.arg(setting.sources.join("verbs/threads.c")).arg(library.join("libibverbs.so")).arg("-pthread");
    let compiled = run(&mut cc, Limits::deadline(LIMITS), &mut |_| {})?;
    if !compiled.ok() {
        return Err(Failure(format!("{cc:?} {}:\n{}", compiled.describe(), compiled.output)));
    }
    let suppressions = setting.sources.join("../configs/thread-sanitizer.supp");
    let mut command = Command::new("setarch");
    command.arg("-R").arg(program).env("LD_LIBRARY_PATH", &library);
    command.env("TSAN_OPTIONS", format!("suppressions={}", suppressions.display()));
    command.env("SOFTIB_DIR", setting.segments.path());
    says(command, "ok: eight threads")
}
