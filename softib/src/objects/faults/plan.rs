//! What is asked for, and the little language it is asked in.
//!
//! ```text
//! faults = item { "," item }
//! item   = "seed=" number | "drop=" percent | "duplicate=" percent | "reorder=" percent
//!        | "delay=" time | "rnr=" when ":" time | "error=" when | "cut=" when
//!        | "cm-late=" percent ":" time
//!        | "port-down=" time ":" time [ ":" number ] | "fail=" call ":" number ":" errno
//!        | "kill=" step ":" number | "event=" name ":" time [ ":" number ] | "report"
//! when   = "at:" number | "every:" number | "about:" number
//! ```
//!
//! No character in it means anything to a shell or to mpirun's `-x`.

use super::call::Call;
use super::event::EventFault;
use super::step::{KillFault, Step};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Which of the events that are counted it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// The n-th, counted from 1.
    At(u64),
    /// Every k-th.
    Every(u64),
    /// About every k-th: after five of them each comes one later, after ten another one. It keeps step with nothing that is repeated: a fault of
    /// every k-th request meets the same request of each connection, for ever, if each carries k of them.
    About(u64),
}

/// So many of [`When::About`] come at the same distance.
const EVENLY: u64 = 5;

impl When {
    /// Whether it is the `count`-th.
    pub fn is(self, count: u64) -> bool {
        match self {
            When::At(n) => count == n,
            When::Every(k) => count.is_multiple_of(k),
            When::About(k) => is_about(k, count),
        }
    }
}

fn is_about(mut distance: u64, count: u64) -> bool {
    let mut left = count;
    while left > distance.saturating_mul(EVENLY) {
        left -= distance * EVENLY;
        distance += 1;
    }
    left != 0 && left.is_multiple_of(distance)
}

/// A time without a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outage {
    /// Since the plan came into force.
    pub after: Duration,
    /// How long.
    pub lasts: Duration,
    /// The number of the port, on each device; none: all ports.
    pub port: Option<u8>,
}

/// A call that fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallFault {
    /// Which function.
    pub call: Call,
    /// Which call of it, counted from 1 over the life of the process.
    pub number: u64,
    /// With which errno value.
    pub errno: i32,
}

/// A plan of faults; the default one has none. Chances are in parts of a million.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// For everything that is left to chance.
    pub seed: u64,
    /// Datagrams that are lost.
    pub drop: u32,
    /// Datagrams that arrive twice.
    pub duplicate: u32,
    /// Datagrams that are overtaken by the next one of their queue pair (or are 5 ms late, if there is none).
    pub reorder: u32,
    /// Added to every send.
    pub delay: Duration,
    /// Sends of reliable queue pairs for which no receive is found for a while.
    pub rnr: Option<(When, Duration)>,
    /// Requests of connected queue pairs that fail with LOC_QP_OP_ERR; the queue pair goes to the error state, with QP_FATAL.
    pub error: Option<When>,
    /// Requests of connected queue pairs that fail with RETRY_EXC_ERR, as if the peer were gone.
    pub cut: Option<When>,
    /// Messages of RDMA-CM that arrive late, and by how much at most.
    pub cm_late: Option<(u32, Duration)>,
    /// When the port is down.
    pub port_down: Option<Outage>,
    /// Calls that fail.
    pub fail: Vec<CallFault>,
    /// Steps at which the process kills itself.
    pub kill: Vec<KillFault>,
    /// Asynchronous events that are raised.
    pub event: Vec<EventFault>,
    /// Says at the end, on standard error, how often each fault has struck.
    pub report: bool,
}

/// Where a plan cannot be understood, and what was expected there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanError {
    /// The character, counted from 1.
    pub at: usize,
    /// A description.
    pub expected: &'static str,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at character {}: expected {}", self.at, self.expected)
    }
}

impl std::error::Error for PlanError {}

const ITEM: &str = "seed=, drop=, duplicate=, reorder=, delay=, rnr=, error=, cut=, cm-late=, port-down=, fail=, kill=, event= or report";
const NUMBER: &str = "a number";
const COUNT: &str = "a number from 1 on";
const PERCENT: &str = "a percentage up to 100 like 20% or 0.5%";
const TIME: &str = "a time like 10us, 2ms or 1s";
const WHEN: &str = "at:, every: or about:";
const PORT: &str = "the number of a port";
const COLON: &str = "a colon";
const COMMA: &str = "a comma or the end";
const CALL: &str = "the name of a call like create_qp or rdma_connect";
const STEP: &str = "the name of a step like to_rtr, or of a call";
const ERRNO: &str = "an errno name like ENOMEM";
const EVENT: &str = "the name of an event like qp-fatal";
const ONCE: &str = "each item once";

impl FromStr for Plan {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Plan, PlanError> {
        let (mut plan, mut cursor, mut seen) = (Plan::default(), Cursor { text, at: 0 }, Vec::new());
        if text.is_empty() {
            return Ok(plan);
        }
        loop {
            let start = cursor.at;
            let key = cursor.word(|c| c.is_ascii_lowercase() || c == '-');
            if !["fail", "kill", "event"].contains(&key) && seen.contains(&key) {
                return Err(cursor.error_at(start, ONCE));
            }
            seen.push(key);
            plan.read(key, start, &mut cursor)?;
            if cursor.is_at_end() {
                return Ok(plan);
            }
            cursor.demand(",", COMMA)?;
        }
    }
}

impl Plan {
    /// Reads what follows an item's name.
    fn read(&mut self, key: &str, start: usize, cursor: &mut Cursor<'_>) -> Result<(), PlanError> {
        if key == "report" {
            self.report = true;
            return Ok(());
        }
        const KNOWN: [&str; 13] = [
            "seed",
            "drop",
            "duplicate",
            "reorder",
            "delay",
            "rnr",
            "error",
            "cut",
            "cm-late",
            "port-down",
            "fail",
            "kill",
            "event",
        ];
        if !KNOWN.contains(&key) || !cursor.take("=") {
            return Err(cursor.error_at(start, ITEM));
        }
        match key {
            "seed" => self.seed = cursor.number(NUMBER)?,
            "drop" => self.drop = cursor.percent()?,
            "duplicate" => self.duplicate = cursor.percent()?,
            "reorder" => self.reorder = cursor.percent()?,
            "delay" => self.delay = cursor.time()?,
            "rnr" => self.rnr = Some((cursor.when()?, cursor.after_colon(Cursor::time)?)),
            "error" => self.error = Some(cursor.when()?),
            "cut" => self.cut = Some(cursor.when()?),
            "cm-late" => self.cm_late = Some((cursor.percent()?, cursor.after_colon(Cursor::time)?)),
            "fail" => self.fail.push(cursor.call_fault()?),
            "kill" => self.kill.push(cursor.kill_fault()?),
            "event" => self.event.push(cursor.event_fault()?),
            _ => self.port_down = Some(cursor.outage()?),
        }
        Ok(())
    }

    /// Whether sends or the port are touched at all.
    pub(crate) fn touches_traffic(&self) -> bool {
        *self != Plan { seed: self.seed, fail: self.fail.clone(), kill: self.kill.clone(), ..Plan::default() }
    }
}

struct Cursor<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    fn is_at_end(&self) -> bool {
        self.rest().is_empty()
    }

    fn error_at(&self, at: usize, expected: &'static str) -> PlanError {
        PlanError { at: self.text[..at].chars().count() + 1, expected }
    }

    fn take(&mut self, token: &str) -> bool {
        let found = self.rest().starts_with(token);
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn demand(&mut self, token: &str, expected: &'static str) -> Result<(), PlanError> {
        if self.take(token) { Ok(()) } else { Err(self.error_at(self.at, expected)) }
    }

    fn word(&mut self, belongs: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let word = &rest[..rest.find(|c| !belongs(c)).unwrap_or(rest.len())];
        self.at += word.len();
        word
    }

    fn number(&mut self, expected: &'static str) -> Result<u64, PlanError> {
        let start = self.at;
        let digits = self.word(|c| c.is_ascii_digit());
        digits.parse().map_err(|_| self.error_at(start, expected))
    }

    fn count(&mut self) -> Result<u64, PlanError> {
        let start = self.at;
        match self.number(COUNT)? {
            0 => Err(self.error_at(start, COUNT)),
            count => Ok(count),
        }
    }

    /// Parts of a million.
    fn percent(&mut self) -> Result<u32, PlanError> {
        let start = self.at;
        let digits = self.word(|c| c.is_ascii_digit() || c == '.');
        let value: Option<f64> = digits.parse().ok().filter(|value| (0.0..=100.0).contains(value));
        match value {
            Some(value) if self.take("%") => Ok((value * 10_000.0).round() as u32),
            _ => Err(self.error_at(start, PERCENT)),
        }
    }

    fn time(&mut self) -> Result<Duration, PlanError> {
        let start = self.at;
        let number = self.number(TIME)?;
        let scale = match self.word(|c| c.is_ascii_lowercase()) {
            "us" => 1,
            "ms" => 1_000,
            "s" => 1_000_000,
            _ => return Err(self.error_at(start, TIME)),
        };
        // A day is longer than any test; it keeps sums with the clock in range.
        let time = number.checked_mul(scale).filter(|&us| us <= 86_400_000_000);
        time.map(Duration::from_micros).ok_or_else(|| self.error_at(start, TIME))
    }

    fn when(&mut self) -> Result<When, PlanError> {
        if self.take("at:") {
            return self.count().map(When::At);
        }
        if self.take("about:") {
            return self.count().map(When::About);
        }
        self.demand("every:", WHEN)?;
        self.count().map(When::Every)
    }

    fn after_colon<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, PlanError>) -> Result<T, PlanError> {
        self.demand(":", COLON)?;
        read(self)
    }

    fn outage(&mut self) -> Result<Outage, PlanError> {
        let (after, lasts) = (self.time()?, self.after_colon(Cursor::time)?);
        let start = self.at + 1;
        let port = if self.take(":") { Some(self.count()?) } else { None };
        let port = port.map(u8::try_from).transpose().map_err(|_| self.error_at(start, PORT))?;
        Ok(Outage { after, lasts, port })
    }

    fn call_fault(&mut self) -> Result<CallFault, PlanError> {
        let start = self.at;
        let name = self.word(|c| c.is_ascii_lowercase() || c == '_');
        let call = Call::named(name).ok_or_else(|| self.error_at(start, CALL))?;
        let number = self.after_colon(Cursor::count)?;
        let errno = self.after_colon(Cursor::errno)?;
        Ok(CallFault { call, number, errno })
    }

    fn kill_fault(&mut self) -> Result<KillFault, PlanError> {
        let start = self.at;
        let name = self.word(|c| c.is_ascii_lowercase() || c == '_');
        let step = Step::named(name).ok_or_else(|| self.error_at(start, STEP))?;
        Ok(KillFault { step, number: self.after_colon(Cursor::count)? })
    }

    fn event_fault(&mut self) -> Result<EventFault, PlanError> {
        let start = self.at;
        let name = self.word(|c| c.is_ascii_lowercase() || c == '-');
        let fault = EventFault::named(name, 0).ok_or_else(|| self.error_at(start, EVENT))?;
        let after = self.after_colon(Cursor::time)?;
        let number = if self.take(":") { self.count()? } else { 0 };
        Ok(EventFault { after, number, ..fault })
    }

    fn errno(&mut self) -> Result<i32, PlanError> {
        const NAMES: [(&str, i32); 14] = [
            ("EACCES", libc::EACCES),
            ("EADDRINUSE", libc::EADDRINUSE),
            ("EAGAIN", libc::EAGAIN),
            ("EBUSY", libc::EBUSY),
            ("EINTR", libc::EINTR),
            ("EINVAL", libc::EINVAL),
            ("EIO", libc::EIO),
            ("EMFILE", libc::EMFILE),
            ("ENODEV", libc::ENODEV),
            ("ENOMEM", libc::ENOMEM),
            ("ENOSPC", libc::ENOSPC),
            ("EOPNOTSUPP", libc::EOPNOTSUPP),
            ("EPERM", libc::EPERM),
            ("ETIMEDOUT", libc::ETIMEDOUT),
        ];
        let start = self.at;
        let name = self.word(|c| c.is_ascii_uppercase());
        let known = NAMES.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        known.ok_or_else(|| self.error_at(start, ERRNO))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_about_every_third_comes_at_distances_that_grow() {
        let strikes: Vec<u64> = (0..=45).filter(|count| When::About(3).is(*count)).collect();
        assert_eq!(strikes, [3, 6, 9, 12, 15, 19, 23, 27, 31, 35, 40, 45]);
        assert!(When::About(u64::MAX).is(u64::MAX) && !When::About(u64::MAX).is(1));
    }

    #[test]
    fn every_item_is_understood() {
        let text = "seed=7,drop=20%,duplicate=0.5%,reorder=100%,delay=10us,rnr=every:3:2ms,error=at:100,cut=every:9,cm-late=30%:50ms,\
                    port-down=1s:500ms,fail=create_qp:2:ENOMEM,fail=reg_mr:1:EPERM,kill=to_rtr:2,kill=poll_cq:9,event=qp-fatal:5ms:3,event=lid-change:1s,report";
        let plan: Plan = text.parse().unwrap();
        assert_eq!((plan.seed, plan.drop, plan.duplicate, plan.reorder), (7, 200_000, 5_000, 1_000_000));
        assert_eq!(plan.rnr, Some((When::Every(3), Duration::from_millis(2))));
        assert_eq!((plan.error, plan.cut), (Some(When::At(100)), Some(When::Every(9))));
        assert_eq!(plan.cm_late, Some((300_000, Duration::from_millis(50))));
        let outage = Outage { after: Duration::from_secs(1), lasts: Duration::from_millis(500), port: None };
        assert_eq!(plan.port_down, Some(outage));
        let about: Plan = "error=about:9".parse().unwrap();
        assert_eq!(about.error, Some(When::About(9)));
        let second: Plan = "port-down=1s:500ms:2".parse().unwrap();
        assert_eq!(second.port_down, Some(Outage { port: Some(2), ..outage }));
        assert_eq!(plan.fail[1], CallFault { call: Call::RegMr, number: 1, errno: libc::EPERM });
        let steps = [(Step::ToRtr, 2), (Step::Call(Call::PollCq), 9)];
        assert_eq!(plan.kill, steps.map(|(step, number)| KillFault { step, number }));
        let fatal =
            EventFault { after: Duration::from_millis(5), ..EventFault::named("qp-fatal", 3).unwrap() };
        let lid = EventFault { after: Duration::from_secs(1), ..EventFault::named("lid-change", 0).unwrap() };
        assert_eq!(plan.event, [fatal, lid]);
        assert!(plan.report && plan.touches_traffic());
    }

    #[test]
    fn mistakes_are_shown_where_they_are() {
        let at = |text: &str| text.parse::<Plan>().map_err(|error| (error.at, error.expected));
        assert_eq!(at("loss=20%"), Err((1, ITEM)));
        assert_eq!(at("drop=20"), Err((6, PERCENT)));
        assert_eq!(at("drop=120%"), Err((6, PERCENT)));
        assert_eq!(at("drop=1%;seed=3"), Err((8, COMMA)));
        assert_eq!(at("drop=1%,"), Err((9, ITEM)));
        assert_eq!(at("drop=1%,drop=2%"), Err((9, ONCE)));
        assert_eq!(at("rnr=3:1ms"), Err((5, WHEN)));
        assert_eq!(at("rnr=every:0:1ms"), Err((11, COUNT)));
        assert_eq!(at("rnr=every:3"), Err((12, COLON)));
        assert_eq!(at("delay=10"), Err((7, TIME)));
        assert_eq!(at("delay=99999999999999999999s"), Err((7, TIME)));
        assert_eq!(at("fail=create_pq:1:ENOMEM"), Err((6, CALL)));
        assert_eq!(at("fail=create_qp:1:NOMEM"), Err((18, ERRNO)));
        assert_eq!(at("kill=to_rtx:1"), Err((6, STEP)));
        assert_eq!(at("kill=send"), Err((10, COLON)));
        assert_eq!(at("event=lid:1s"), Err((7, EVENT)));
        assert_eq!(at("event=lid-change"), Err((17, COLON)));
        assert_eq!(at("event=lid-change:1s:0"), Err((21, COUNT)));
        assert_eq!(at("port-down=1s:1s:0"), Err((17, COUNT)));
        assert_eq!(at("port-down=1s:1s:256"), Err((17, PORT)));
        assert_eq!(at("cm-late=30%"), Err((12, COLON)));
        assert_eq!(at("report=1"), Err((7, COMMA)));
        assert_eq!(at(""), Ok(Plan::default()));
    }

    proptest::proptest! {
        #[test]
        fn no_text_confuses_the_reader(text in "\\PC{0,40}") {
            let _ = text.parse::<Plan>();
        }

        #[test]
        fn nothing_close_to_the_language_confuses_it_either(
            text in "((seed|drop|rnr|fail|kill|port-down|cut)(=|:|)(every:|at:|about:|[0-9]{0,22}|)(%|ms|s|:|EIO|,|é){0,3}){0,4}"
        ) {
            let _ = text.parse::<Plan>();
        }
    }
}
