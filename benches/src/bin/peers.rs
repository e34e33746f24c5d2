//! What a message costs beside peers that are connected and say nothing.
//!
//!     cargo run --release -p benches --bin peers [PEERS [ROUND_TRIPS [RECEIVE_QUEUES]]]
//!
//! One thread drives both sides of the exchange, as in `transport`; the silent peers are in processes of their own. For instructions,
//! which do not depend on the machine's load: `valgrind --tool=callgrind --toggle-collect='*ping_pong*' target/release/peers PEERS N`,
//! for N and for 2N; the difference, divided by 2N, is a message's.
//!
//! A software device has 4096 queue pairs: over the default layout, of four queues, for 1000 peers; for 1024 over one of fewer.

use benches::{Pair, Result, TAG, open, send};
use cpc::Advert;
use mca_btl_oxib::protocol::layout::DEFAULT;
use mca_btl_oxib::transport::{EpId, Transport, Upcall};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// Silent peers of one process.
const TOGETHER: u64 = 64;

/// The job of all of them.
const JOB: u64 = 1;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [word, first, count, hub, layout] = &words[..]
        && word == "silent"
    {
        return silent(first.parse()?, count.parse()?, &adverts_of(hub)?, layout);
    }
    let number = |at: usize, usual: u64| words.get(at).map_or(Ok(usual), |word| word.parse());
    let (peers, round_trips) = (number(0, 64)?, number(1, 100_000)?);
    let layout = words.get(2).map_or(DEFAULT, String::as_str);
    let mut pair = Pair::open(layout, JOB)?;
    pair.ping_pong(8, 1);
    let silent = Silent::start(&mut pair.sides[0], peers.saturating_sub(1), layout)?;
    pair.ping_pong(8, 1000);
    let begin = Instant::now();
    pair.ping_pong(8, round_trips);
    let each = begin.elapsed().as_secs_f64() * 1e6 / (2 * round_trips) as f64;
    println!("{peers:>8} peers {each:>14.3} us a message of 8 bytes");
    pair.close();
    silent.end()
}

/// Processes whose transports are connected to ours.
struct Silent(Vec<Child>);

impl Silent {
    /// Connects so many: one message there and one back.
    fn start(hub: &mut Transport<()>, count: u64, layout: &str) -> Result<Silent> {
        let ours = text_of(hub.adverts());
        let mut children = Vec::new();
        let mut ids = Vec::new();
        for first in (0..count).step_by(TOGETHER as usize) {
            let here = TOGETHER.min(count - first);
            let words =
                ["silent".to_owned(), first.to_string(), here.to_string(), ours.clone(), layout.to_owned()];
            let mut command = Command::new(std::env::current_exe()?);
            let mut child = command.args(words).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
            let lines = BufReader::new(child.stdout.take().ok_or("no output")?).lines();
            for (peer, line) in (first..first + here).zip(lines) {
                ids.push(hub.add(name(peer), &adverts_of(&line?)?)?);
            }
            children.push(child);
        }
        ids.iter().for_each(|id| send(hub, *id, 8));
        let mut left = ids.len();
        while left != 0 {
            left -= deliveries(hub)?.len();
        }
        Ok(Silent(children))
    }

    /// They take their transports down.
    fn end(self) -> Result<()> {
        for mut child in self.0 {
            drop(child.stdin.take());
            child.wait()?;
        }
        Ok(())
    }
}

/// A process of silent peers: each answers one message; they end with the input, which they do not outlive.
fn silent(first: u64, count: u64, hub: &[Advert], layout: &str) -> Result<()> {
    let mut sides =
        (first..first + count).map(|peer| open(layout, name(peer))).collect::<Result<Vec<_>>>()?;
    for side in &mut sides {
        side.add(JOB << 32, hub)?;
        println!("{}", text_of(side.adverts()));
    }
    std::io::stdout().flush()?;
    let over = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let mut left = count;
    while left != 0 && !over.is_finished() {
        for side in &mut sides {
            for from in deliveries(side)? {
                send(side, from, 8);
                left -= 1;
            }
        }
        std::thread::yield_now();
    }
    over.join().map_err(|_| "the end of the input was not waited for")??;
    sides.into_iter().for_each(Transport::close);
    Ok(())
}

/// Looks around once; who has sent a message.
fn deliveries(side: &mut Transport<()>) -> Result<Vec<EpId>> {
    let mut from = Vec::new();
    side.poll();
    while let Some(what) = side.take_upcall() {
        match what {
            Upcall::Deliver(delivery) => {
                debug_assert_eq!(delivery.tag, TAG);
                from.push(delivery.endpoint());
                side.delivered(delivery);
            }
            Upcall::Failed { endpoint, reason, .. } => {
                return Err(format!("endpoint {} has failed: {reason}", endpoint.index).into());
            }
            _ => {}
        }
    }
    Ok(from)
}

/// The name of a silent peer.
fn name(peer: u64) -> u64 {
    JOB << 32 | (2 + peer)
}

/// `name:priority:blob`, and more of them behind commas; the blob in hexadecimal digits.
fn text_of(adverts: &[Advert]) -> String {
    let hex = |blob: &[u8]| blob.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let one = |advert: &Advert| format!("{}:{}:{}", advert.name, advert.priority, hex(&advert.blob));
    adverts.iter().map(one).collect::<Vec<_>>().join(",")
}

fn adverts_of(text: &str) -> Result<Vec<Advert>> {
    let one = |text: &str| -> Result<Advert> {
        let [name, priority, hex] = text.split(':').collect::<Vec<_>>()[..] else {
            return Err("no advert".into());
        };
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16);
        let blob = (0..hex.len()).step_by(2).map(byte).collect::<std::result::Result<_, _>>()?;
        Ok(Advert { name: name.to_owned(), priority: priority.parse()?, blob })
    };
    text.split(',').map(one).collect()
}
