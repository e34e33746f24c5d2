//! Jobs of the ping-pong under control, as `cargo xtask bench` uses them ([`crate::session`]): they take turns, and the end of one is
//! noticed.

use crate::measured::{Kind, Measurement};
use crate::mpirun::Transport;
use crate::session::Session;
use crate::suite::{Case, Setting};
use crate::{Failure, Result};

const MILLISECONDS: u64 = 5;
const LARGEST: u64 = 64 << 10;

/// Both.
pub fn cases() -> Vec<Case> {
    vec![
        Case::new("jobs under control take turns with every kind of measurement", take_turns),
        Case::new("a job under control that has no buffers for a size says so and ends", is_refused),
    ]
}

fn take_turns(setting: &Setting) -> Result<()> {
    let mut sessions = [start(setting, 2)?, start(setting, 4)?];
    let measured = measure_all(&mut sessions);
    let [two, four] = sessions.map(Session::end);
    // How a job has ended says more than that it has.
    two.and(four).and(measured)
}

fn measure_all([two, four]: &mut [Session; 2]) -> Result<()> {
    two.connect(2)?;
    four.connect(4)?;
    for kind in Kind::ALL {
        for bytes in [0, 8, 2000, LARGEST] {
            for session in [&mut *two, &mut *four] {
                session.measure(Measurement { kind, bytes }, MILLISECONDS)?;
            }
        }
    }
    Ok(())
}

/// More than the buffers hold.
fn is_refused(setting: &Setting) -> Result<()> {
    let mut session = start(setting, 2)?;
    session.connect(2)?;
    let answered = session.measure(Measurement::half_round_trip(1 << 30), MILLISECONDS);
    let ended = session.end();
    // Of ranks that were ended; the next process would sweep them.
    setting.segments.clear();
    match (answered, ended) {
        (Err(_), Err(Failure(text))) if text.contains("FAIL") && text.contains("1073741824") => Ok(()),
        (answered, ended) => Err(Failure(format!("the answer was {answered:?}, the end {ended:?}"))),
    }
}

fn start(setting: &Setting, ranks: usize) -> Result<Session> {
    let transport: &Transport = &setting.transport;
    let program = setting.programs.compiled("pingpong")?;
    Session::start(setting.foreign_job(ranks, transport, program), LARGEST)
}
