//! Cost of a message and of a connection in the transport and below, both sides on one thread.
//!
//!     cargo run --release -p benches --bin transport [MESSAGES [BYTES]]
//!
//! For instructions per message, which do not depend on the machine's load, count a run of N and one of 2N messages with
//! `valgrind --tool=callgrind target/release/transport N` and divide the difference by 2N (a round trip is two messages).

use benches::{Pair, Result};
use std::time::Instant;

/// The default layout's first queue, then each further one.
const SIZES: [usize; 5] = [8, 100, 1000, 8000, 60000];

/// Pairs that are connected for the rate of connections.
const CONNECTIONS: u64 = 64;

fn main() -> Result<()> {
    let messages: u64 = std::env::args().nth(1).map_or(Ok(200_000), |text| text.parse())?;
    let sizes = match std::env::args().nth(2) {
        Some(bytes) => vec![bytes.parse()?],
        None => SIZES.to_vec(),
    };
    let layout = mca_btl_oxib::protocol::layout::DEFAULT;
    let mut pair = Pair::open(layout, 1)?;
    pair.ping_pong(8, 1);
    let before = softib::stats().doorbells;
    println!("{:>8} {:>14}", "bytes", "us a message");
    for len in sizes {
        // Long messages take longer: fewer of them.
        let count = (messages / (1 + len as u64 / 500)).max(1);
        let begin = Instant::now();
        pair.ping_pong(len, count);
        println!("{len:>8} {:>14.3}", begin.elapsed().as_secs_f64() * 1e6 / (2 * count) as f64);
    }
    println!("doorbells: {}", softib::stats().doorbells - before);
    pair.close();
    connections(layout)
}

/// From an opened port to the first message's arrival, one pair after the other.
fn connections(layout: &str) -> Result<()> {
    let mut seconds = Vec::new();
    for job in 2..2 + CONNECTIONS {
        let mut pair = Pair::open(layout, job)?;
        let begin = Instant::now();
        pair.send(0, 8);
        pair.until(1);
        seconds.push(begin.elapsed().as_secs_f64());
        pair.close();
    }
    seconds.sort_by(f64::total_cmp);
    let median = seconds[seconds.len() / 2];
    println!("connection and first message: median {:.0} us, best {:.0} us", median * 1e6, seconds[0] * 1e6);
    Ok(())
}
