//! The steps at which the process can be killed: every call, and these, which tell apart what a call does.

use super::call::Call;
use rdma_sys::*;

/// Declares the steps that are no calls, and their names.
macro_rules! steps {
    ($($variant:ident = $name:literal),* $(,)?) => {
        /// A step of the process, before which it can be killed; those whose names end in `_posted` come after the request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Step {
            /// A call, before it does anything.
            Call(Call),
            $($variant),*
        }

        pub(crate) const NAMES: &[(&str, Step)] = &[$(($name, Step::$variant)),*];
    };
}

steps! {
    ToInit = "to_init", ToRtr = "to_rtr", ToRts = "to_rts", ToErr = "to_err", Datagram = "datagram",
    Send = "send", Write = "write", Read = "read", Atomic = "atomic", Recv = "recv",
    DatagramPosted = "datagram_posted", SendPosted = "send_posted", WritePosted = "write_posted",
    ReadPosted = "read_posted", AtomicPosted = "atomic_posted", RecvPosted = "recv_posted",
}

/// A step at which the process kills itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KillFault {
    /// Which step.
    pub step: Step,
    /// Which time it comes to that, counted from 1 over the life of the process.
    pub number: u64,
}

impl Step {
    /// How many there are that are no calls.
    pub const COUNT: usize = NAMES.len();

    pub(crate) fn named(name: &str) -> Option<Step> {
        let own = NAMES.iter().find(|(known, _)| *known == name).map(|(_, step)| *step);
        own.or_else(|| Call::named(name).map(Step::Call))
    }

    /// Its place among [`NAMES`]; none for a call.
    pub(crate) fn place(self) -> Option<usize> {
        NAMES.iter().position(|(_, step)| *step == self)
    }

    /// Whether it is a step of the data path.
    pub(crate) fn is_of_data_path(self) -> bool {
        match self {
            Step::Call(call) => call.is_of_data_path(),
            Step::ToInit | Step::ToRtr | Step::ToRts | Step::ToErr => false,
            _ => true,
        }
    }

    /// What it is for a queue pair of this type to be modified so; connected ones only.
    pub(crate) fn of_change(kind: u32, mask: u32, to: u32) -> Option<Step> {
        if kind == IBV_QPT_UD || mask & IBV_QP_STATE == 0 {
            return None;
        }
        match to {
            IBV_QPS_INIT => Some(Step::ToInit),
            IBV_QPS_RTR => Some(Step::ToRtr),
            IBV_QPS_RTS => Some(Step::ToRts),
            IBV_QPS_ERR => Some(Step::ToErr),
            _ => None,
        }
    }

    /// What it is for a request to be posted to a queue pair of this type.
    pub(crate) fn of_request(kind: u32, opcode: u32) -> Option<Step> {
        match opcode {
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM if kind == IBV_QPT_UD => Some(Step::Datagram),
            IBV_WR_SEND | IBV_WR_SEND_WITH_IMM | IBV_WR_SEND_WITH_INV => Some(Step::Send),
            IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM => Some(Step::Write),
            IBV_WR_RDMA_READ => Some(Step::Read),
            IBV_WR_ATOMIC_CMP_AND_SWP | IBV_WR_ATOMIC_FETCH_AND_ADD | IBV_WR_ATOMIC_WRITE => {
                Some(Step::Atomic)
            }
            _ => None,
        }
    }

    /// The step behind that of a request.
    pub(crate) fn posted(self) -> Option<Step> {
        match self {
            Step::Datagram => Some(Step::DatagramPosted),
            Step::Send => Some(Step::SendPosted),
            Step::Write => Some(Step::WritePosted),
            Step::Read => Some(Step::ReadPosted),
            Step::Atomic => Some(Step::AtomicPosted),
            Step::Recv => Some(Step::RecvPosted),
            _ => None,
        }
    }
}
