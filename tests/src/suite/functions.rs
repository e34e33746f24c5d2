//! The BTL's functions called as Open MPI's upper layers call them, by programs that look the module up: what no MPI function
//! makes certain.

use std::time::Duration;

use crate::process::Limits;
use crate::suite::case::{passes, passes_within};
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const DEADLINE: u64 = 60;
/// For those that take every registration there is.
const LIMITS: Limits = Limits { deadline: Duration::from_secs(300), silence: None };

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
    cases.extend(["private", "mapped"].map(is_within));
    let keys =
        "registrations are refused while the transport can still have its own, and said once (keys, 2 ranks)";
    cases.push(Case::new(keys, |setting| is_brief(setting, "keys", &[])));
    let pending = "more rendezvous wait than the device has registrations, and all arrive (pending, 2 ranks)";
    // The messages leave the same memory, and none at once.
    let each_its_own = [("btl_oxib_reg_cache_max", "0"), ("btl_oxib_eager_limit", "12k")];
    cases.push(Case::new(pending, move |setting| is_brief(setting, "pending", &each_its_own)));
    cases
}

fn flushes(setting: &Setting, part: &str) -> Result<()> {
    passes(&setting.job(3, "flush")?.arguments([part]), "flush", DEADLINE).map(drop)
}

/// Gets from memory of this kind.
fn is_within(memory: &'static str) -> Case {
    let name = format!(
        "gets that are over within their call neither nest nor keep messages waiting (within {memory}, 2 ranks)"
    );
    Case::new(name, move |setting| {
        passes(&setting.job(2, "within")?.arguments([memory]), "within", DEADLINE).map(drop)
    })
}

fn loses(setting: &Setting) -> Result<()> {
    let job = setting.job(2, "lost")?.variable("SOFTIB_FAULTS", "seed=1,drop=100%");
    let job = job.parameter("btl_oxib_cpc_include", "ibcm").parameter("btl_oxib_ibcm_timeout", "10ms");
    passes(&job.parameter("btl_oxib_ibcm_max_retries", "3"), "lost", DEADLINE).map(drop)
}

/// Passes without a flood of messages, and says what is short.
fn is_brief(setting: &Setting, program: &str, parameters: &[(&str, &str)]) -> Result<()> {
    let job = setting.job(2, program)?.parameter("btl_oxib_verbose", "warn");
    let job = parameters.iter().fold(job, |job, (name, value)| job.parameter(name, value));
    let finished = passes_within(&job, program, LIMITS)?;
    let (lines, said) =
        (finished.output.lines().count(), finished.output.contains("registrations are in use"));
    if said && lines < 20 {
        return Ok(());
    }
    let Failure(text) = job.explain(&finished);
    Err(Failure(format!("{lines} lines, and the shortage named: {said}; {text}")))
}
