//! The BTL's functions called as Open MPI's upper layers call them, by programs that look the module up: what no MPI function
//! makes certain.

use crate::Result;
use crate::suite::case::passes;
use crate::suite::{Case, Setting};

const DEADLINE: u64 = 60;

/// What the parts of the program show.
const FLUSHES: [(&str, &str); 5] = [
    ("found", "btl_flush waits for the callback of what has completed already"),
    ("meanwhile", "btl_flush does not wait for what its callbacks begin"),
    ("threads", "btl_flush waits for what it has to, and for no more, whatever other threads do"),
    ("within", "btl_flush from within a callback does not wait for that callback"),
    ("nothing", "a put or get of 0 bytes needs no registration"),
];

/// All of them: they are about the plugin itself.
pub fn cases(setting: &Setting) -> Vec<Case> {
    if !setting.transport.needs_plugin() {
        return Vec::new();
    }
    let flush = |(part, what): (&'static str, &str)| {
        Case::new(format!("{what} (flush {part}, 3 ranks)"), move |setting| flushes(setting, part))
    };
    let mut cases: Vec<Case> = FLUSHES.into_iter().map(flush).collect();
    let lost = "a message whose connection fails ends with an error, once (lost, 2 ranks)";
    cases.push(Case::new(lost, loses));
    cases
}

fn flushes(setting: &Setting, part: &str) -> Result<()> {
    passes(&setting.job(3, "flush")?.arguments([part]), "flush", DEADLINE).map(drop)
}

fn loses(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "lost")?.variable("SOFTIB_FAULTS", "seed=1,drop=100%");
    let job = job.parameter("btl_oxib_cpc_include", "ibcm").parameter("btl_oxib_ibcm_timeout", "10ms");
    passes(&job.parameter("btl_oxib_ibcm_max_retries", "3"), "lost", DEADLINE).map(drop)
}
