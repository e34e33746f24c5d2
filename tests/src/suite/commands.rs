//! Verbs programs that run as a pair, each as a line of its shell: what the suite runs of rdma-core's examples, perftest and UCX.
//!
//! Quick: each program once or twice with few iterations. All: perftest's programs with every connection type that they
//! offer, times what can be varied about them, and the sizes, event modes and newer interfaces of rdma-core's examples.

/// Always run.
const QUICK: &[&str] = &[
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 1",
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 65536",
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 4096 -e",
    "ibv_rc_pingpong -d softib0 -c -n 200 -N -o",
    "ibv_uc_pingpong -d softib0 -c -n 200",
    "ibv_ud_pingpong -d softib0 -c -n 200",
    "ibv_ud_pingpong -d softib0 -c -n 200 -g 0 -e",
    "ibv_srq_pingpong -d softib0 -c -n 200",
    "ibv_srq_pingpong -d softib0 -c -n 200 -e",
    "ib_send_lat -d softib0 -n 200",
    "ib_send_lat -d softib0 -n 200 -c UD",
    "ib_send_bw -d softib0 -n 200",
    "ib_send_bw -d softib0 -n 500 -c UD -s 4096",
    "ib_write_lat -d softib0 -n 200",
    "ib_write_bw -d softib0 -n 200 -q 4 -b",
    "ib_read_lat -d softib0 -n 200",
    "ib_read_bw -d softib0 -n 200",
    "ib_atomic_lat -d softib0 -n 200 -A FETCH_AND_ADD",
    "ib_atomic_bw -d softib0 -n 200 -A CMP_AND_SWAP",
    "ib_send_lat -d softib0 -n 200 -c XRC",
    "ib_write_bw -d softib0 -n 200 -c XRC",
    "ucx_perftest -d softib0:1 -x rc_verbs -t am_lat -n 200",
    "ucx_perftest -d softib0:1 -x ud_verbs -t am_lat -n 200",
];

/// rdma-core's examples and UCX in the full matrix.
const MORE: &[&str] = &[
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 4096",
    "ibv_rc_pingpong -d softib0 -c -n 200 -s 4096 -m 4096 -r 20",
    "ibv_rc_pingpong -d softib0 -c -n 50 -s 1048576",
    "ibv_rc_pingpong -d softib0 -c -n 50 -s 1048576 -e",
    "ibv_rc_pingpong -d softib0 -c -n 200 -g 0",
    "ibv_rc_pingpong -d softib0 -c -n 200 -N",
    "ibv_rc_pingpong -d softib0 -c -n 200 -N -e -s 64",
    "ibv_rc_pingpong -d softib0 -c -n 200 -o",
    "ibv_rc_pingpong -d softib0 -c -n 200 -o -P",
    "ibv_rc_pingpong -d softib0 -c -n 200 -O",
    "ibv_rc_pingpong -d softib0 -c -n 200 -t",
    "ibv_rc_pingpong -d softib0 -c -n 200 -j",
    "ibv_rc_pingpong -d softib0 -c -n 200 -j -N",
    "ibv_uc_pingpong -d softib0 -c -n 200 -s 1",
    "ibv_uc_pingpong -d softib0 -c -n 200 -s 262144",
    "ibv_uc_pingpong -d softib0 -c -n 200 -e",
    "ibv_ud_pingpong -d softib0 -c -n 200 -s 1",
    "ibv_ud_pingpong -d softib0 -c -n 200 -s 2048 -e",
    "ibv_srq_pingpong -d softib0 -c -n 200 -s 1",
    "ibv_srq_pingpong -d softib0 -c -n 200 -q 3 -s 65536",
    "ibv_srq_pingpong -d softib0 -c -n 200 -q 3 -s 65536 -e",
    "ibv_srq_pingpong -d softib0 -c -n 200 -o",
    "ucx_perftest -d softib0:1 -x rc_verbs -t am_bw -n 200",
    "ucx_perftest -d softib0:1 -x rc_verbs -t put_lat -n 200",
    "ucx_perftest -d softib0:1 -x rc_verbs -t put_bw -n 200",
    "ucx_perftest -t tag_bw -s 1000000 -n 50",
];

/// With a file, which each of the two maps, as their memory: softib maps those of the other side, too.
const IN_FILES: &[&str] = &[
    "ib_write_lat -d softib0 -n 2000 -s 8",
    "ib_write_bw -d softib0 -n 500 -b",
    "ib_read_bw -d softib0 -n 500 -b",
    "ib_atomic_lat -d softib0 -n 500 -A FETCH_AND_ADD",
    "ib_send_lat -d softib0 -n 2000 -s 16384",
    "ib_send_bw -d softib0 -n 500 -b",
];

/// A program of perftest, the connection types it offers, and what is varied about it.
struct Program(&'static str, &'static [&'static str], &'static [&'static str]);

/// perftest in the full matrix: the product of each row. (`-a`, all sizes, only where bandwidth is measured: for a latency it
/// measures the processor's frequency again with each size, which takes half a second of processor each time.)
const PERFTEST: &[Program] = &[
    Program(
        "ib_send_lat",
        &["RC", "UC", "UD"],
        &["-s 1", "-s 64 -I 64", "-s 1024 -I 0", "-s 2048", "-e", "-r 64 --use-srq", "--use_old_post_send"],
    ),
    Program("ib_send_lat", &["RC", "UC"], &["-s 65536", "-s 1048576 -n 20", "-s 8388608 -n 5"]),
    Program("ib_send_lat", &["RC"], &["--odp"]),
    // Without a shared queue each queue pair has 512 receives. UC and UD lose what finds none, and perftest waits for it for ever:
    // so no variant sends more than there are.
    Program(
        "ib_send_bw",
        &["RC", "UC", "UD"],
        &[
            "-s 64",
            "-s 4096",
            "-s 64 -I 64",
            "-e",
            "-b",
            "-q 4",
            "-b -e",
            "-r 1024 --use-srq",
            "-Q 1",
            "-l 8",
        ],
    ),
    // With `-b -q 4 -e`, perftest polls once for an event, for as many completions as one queue pair has receives, and then waits for the
    // next event, while those of the other three may lie in the completion queue, all there when it was armed. It ends because the queue
    // fires then. (2 KiB come all at once: without that, 13 of 15 runs did not end.)
    Program("ib_send_bw", &["RC", "UC", "UD", "XRC"], &["-b -q 4 -e -s 2048"]),
    Program("ib_send_bw", &["RC", "UC"], &["-b -q 4 -e"]),
    Program("ib_send_bw", &["RC"], &["-r 64 --use-srq", "-q 4 -r 64 --use-srq", "-r 64 --use-srq -e"]),
    Program("ib_send_bw", &["RC", "UC"], &["-s 1048576", "-a -n 20", "--mr_per_qp -q 2"]),
    Program(
        "ib_write_lat",
        &["RC", "UC"],
        &["-s 1", "-s 64 -I 64", "-s 4096", "-s 65536", "-s 8388608 -n 5", "--use_old_post_send"],
    ),
    Program(
        "ib_write_bw",
        &["RC", "UC"],
        &["-s 64", "-s 64 -I 64", "-s 1048576", "-b", "-q 4", "-b -q 4", "-l 8", "-a -n 20"],
    ),
    Program("ib_write_bw", &["RC"], &["--odp"]),
    Program("ib_read_lat", &["RC"], &["-s 1", "-s 4096", "-s 65536", "-e", "-s 8388608 -n 5", "-o 1"]),
    Program(
        "ib_read_bw",
        &["RC"],
        &["-s 64", "-s 1048576", "-e", "-b", "-q 4", "-b -q 4 -e", "-o 1", "-l 8", "-a -n 20"],
    ),
    Program(
        "ib_atomic_lat",
        &["RC"],
        &["-A FETCH_AND_ADD -e", "-A CMP_AND_SWAP", "-A CMP_AND_SWAP -e", "-A FETCH_AND_ADD -o 1"],
    ),
    Program(
        "ib_atomic_bw",
        &["RC"],
        &["-A FETCH_AND_ADD", "-A FETCH_AND_ADD -e", "-A CMP_AND_SWAP -b", "-A FETCH_AND_ADD -q 4", "-l 8"],
    ),
    Program("ib_send_lat", &["XRC"], &["-s 1", "-s 64 -I 64", "-s 65536", "-e", "-s 8388608 -n 5"]),
    Program("ib_send_bw", &["XRC"], &["-s 64", "-s 1048576", "-e", "-b", "-q 4", "-b -q 4 -e", "-a -n 20"]),
    Program("ib_write_lat", &["XRC"], &["-s 1", "-s 64 -I 64", "-s 65536"]),
    Program("ib_write_bw", &["XRC"], &["-s 64", "-s 1048576", "-b", "-q 4", "-b -q 4", "-a -n 20"]),
    Program("ib_read_lat", &["XRC"], &["-s 1", "-s 65536", "-e"]),
    Program("ib_read_bw", &["XRC"], &["-s 64", "-s 1048576", "-e", "-b -q 4", "-a -n 20"]),
    Program("ib_atomic_lat", &["XRC"], &["-A FETCH_AND_ADD", "-A CMP_AND_SWAP -e"]),
    Program("ib_atomic_bw", &["XRC"], &["-A FETCH_AND_ADD", "-A CMP_AND_SWAP -b", "-A FETCH_AND_ADD -q 4"]),
];

/// One server and two clients, `-c 2`: quick, and what the full matrix adds.
const TWO_CLIENTS: [&[&str]; 2] = [
    &["ibv_xsrq_pingpong -d softib0 -n 200", "ibv_xsrq_pingpong -d softib0 -n 200 -e"],
    &[
        "ibv_xsrq_pingpong -d softib0 -n 200 -s 1",
        "ibv_xsrq_pingpong -d softib0 -n 200 -s 65536",
        "ibv_xsrq_pingpong -d softib0 -n 50 -s 1048576 -e",
        "ibv_xsrq_pingpong -d softib0 -n 200 -g 0",
        "ibv_xsrq_pingpong -d softib0 -n 200 -o",
    ],
];

/// Commands for a server that takes two clients (`-c 2` is for the server to say).
pub fn with_two_clients(all: bool) -> impl Iterator<Item = &'static str> {
    TWO_CLIENTS.iter().take(if all { 2 } else { 1 }).flat_map(|part| part.iter().copied())
}

/// Commands whose two sides have memory in files of their own (`--mmap`).
pub fn in_files() -> &'static [&'static str] {
    IN_FILES
}

/// The quick selection, and with `all` the full matrix.
pub fn commands(all: bool) -> Vec<String> {
    let quick = QUICK.iter().map(|command| (*command).to_owned());
    if !all {
        return quick.collect();
    }
    let more = MORE.iter().map(|command| (*command).to_owned());
    quick.chain(more).chain(PERFTEST.iter().flat_map(perftest)).collect()
}

/// 200 iterations, unless the variant says how many.
fn perftest(Program(name, connections, variants): &Program) -> impl Iterator<Item = String> {
    let pairs =
        connections.iter().flat_map(|connection| variants.iter().map(move |variant| (connection, variant)));
    pairs.map(move |(connection, variant)| format!("{name} -d softib0 -n 200 -c {connection} {variant}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_full_matrix_holds_the_quick_selection_and_nothing_twice() {
        let (quick, all) = (commands(false), commands(true));
        let set: BTreeSet<&String> = all.iter().collect();
        assert_eq!(set.len(), all.len());
        assert!(quick.iter().all(|command| set.contains(command)));
    }
}
