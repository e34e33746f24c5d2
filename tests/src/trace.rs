//! What Open MPI's processes write when a signal ends them. mpirun forwards what its ranks write, and writes its own; the number in
//! brackets is the process.
//!
//!     [vm:19579] *** Process received signal ***
//!     [vm:19579] Signal: Segmentation fault (11)
//!     [vm:19579] [ 1] /lib/x86_64-linux-gnu/libpmix.so.2(PMIx_server_finalize+0xb08)[0x7f566c47d118]
//!     [vm:19579] [ 6] mpirun(+0x13ea)[0x555fb83453ea]
//!     [vm:19579] *** End of error message ***

/// The processes that say in `output` that they have received a signal.
pub fn signalled(output: &str) -> impl Iterator<Item = u32> {
    let said = output.lines().filter_map(said);
    said.filter(|(_, what)| *what == "*** Process received signal ***").map(|(pid, _)| pid)
}

/// The frames of the stack of process `pid`, innermost first: "[ 6] mpirun(+0x13ea)[0x555fb83453ea]".
pub fn frames(output: &str, pid: u32) -> impl Iterator<Item = &str> {
    let said = output.lines().filter_map(said).filter(move |(by, _)| *by == pid);
    said.map(|(_, what)| what).filter(|what| is_frame(what))
}

/// A line's process and words.
fn said(line: &str) -> Option<(u32, &str)> {
    let (who, what) = line.strip_prefix('[')?.split_once("] ")?;
    let (_, pid) = who.rsplit_once(':')?;
    Some((pid.parse().ok()?, what))
}

fn is_frame(what: &str) -> bool {
    let number = what.strip_prefix('[').and_then(|rest| rest.split_once("] "));
    number.is_some_and(|(number, _)| number.trim().parse::<u32>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_told_by_its_process_from_others_and_from_what_else_is_said() {
        let output = "\
            [vm:19586] *** An error occurred in MPI_Init\n\
            [vm:19579] *** Process received signal ***\n\
            [vm:19579] [[22708,0],0] ORTE_ERROR_LOG: Out of resource in file show_help.c at line 501\n\
            [vm:19579] Signal: Segmentation fault (11)\n\
            [vm:19579] [ 0] /lib/x86_64-linux-gnu/libc.so.6(+0x3c050)[0x7f566f416050]\n\
            [n-2.a:77] *** Process received signal ***\n\
            [n-2.a:77] [ 0] /lib/x86_64-linux-gnu/libc.so.6(abort+0x1)[0x7f566f416051]\n\
            [vm:19579] [10] mpirun(+0x1131)[0x555fb8345131]\n\
            [vm:19579] *** End of error message ***\n\
            [  3/889] ok [ 1] of them\n";
        assert_eq!(signalled(output).collect::<Vec<_>>(), [19579, 77]);
        let of_mpirun: Vec<_> = frames(output, 19579).collect();
        assert_eq!(of_mpirun.len(), 2, "{of_mpirun:?}");
        assert!(of_mpirun[0].starts_with("[ 0] /lib") && of_mpirun[1].starts_with("[10] mpirun("));
        assert_eq!(frames(output, 78).count(), 0);
    }
}
