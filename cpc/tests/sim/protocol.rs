//! What the simulated world asks of a connection manager, whatever its protocol.

use std::fmt::Debug;
use std::time::Instant;

use cpc::wire::Layout;
use cpc::{EndpointKey, ProcessName};
use verbs::Qpn;

use super::faults::{Fault, draw_each};
use super::machine::{Action, Machine};
use super::process::Process;
use super::{NetOf, World};

/// What only this manager's machine asks for.
pub type Call<P> = <<P as Protocol>::Machine as Machine>::Call;
/// A machine, what its manager has besides, and where it is.
pub type Spawned<P> = (<P as Protocol>::Machine, P, <P as Protocol>::Address);

/// With what identity a machine comes into the world.
pub struct Identity {
    /// Number of its process; stays the same when that starts anew.
    pub index: usize,
    /// How many have been spawned, this one included.
    pub number: u32,
    /// A queue pair number that no other process has.
    pub qpn: Qpn,
    pub incarnation: u32,
    pub name: ProcessName,
    pub layout: Layout,
}

/// A connection manager; the value is what one process has of it besides its machine.
pub trait Protocol: Sized {
    type Machine: Machine;
    type Params: Clone + Default;
    type Address: Copy + PartialEq + Debug;
    type Datagram: Clone;
    /// What else arrives some time after it was sent, but is neither lost nor late.
    type Message: Clone;
    /// What the transport keeps of an endpoint.
    type End: Default;
    /// What processes share besides the network.
    type Shared: Default;
    /// Its name in messages.
    const NAME: &'static str;
    /// How many lower bits of the generator's numbers are not used: what the seeds in tests mean.
    const SHIFT: u32;

    fn spawn(id: &Identity, params: &Self::Params, net: &mut NetOf<Self>) -> Spawned<Self>;
    /// Where datagrams of a process at this address arrive.
    fn reach(address: &Self::Address) -> Qpn;
    /// Datagrams that wait in the receive queue of a busy process, at most. The kernel posts as
    /// many on the queue pair of its manager.
    fn room(_: &Self::Params) -> u32 {
        512
    }
    /// Bytes of a datagram that the network may damage.
    fn bytes(_: &mut Self::Datagram) -> &mut [u8] {
        &mut []
    }
    fn draw_fault(net: &mut NetOf<Self>) -> Option<Fault> {
        draw_each(net)
    }

    fn add(m: &mut Self::Machine, key: EndpointKey, name: ProcessName, at: Self::Address, now: Instant);
    fn next_action(process: &mut Process<Self>, _now: Instant) -> Option<Action<Call<Self>>> {
        process.machine.next_action()
    }
    fn call(world: &mut World<Self>, me: usize, call: Call<Self>);
    fn datagram(world: &mut World<Self>, me: usize, from: Qpn, datagram: &Self::Datagram);
    fn message(world: &mut World<Self>, message: Self::Message);
    fn poll_timeout(process: &Process<Self>) -> Option<Instant> {
        process.machine.poll_timeout()
    }
    fn handle_timeout(world: &mut World<Self>, me: usize) {
        world.processes[me].machine.handle_timeout(world.net.now);
    }

    /// The machine has said so.
    fn connected(world: &mut World<Self>, me: usize, key: EndpointKey);
    /// The transport hears that an endpoint has failed.
    fn failed(_: &mut World<Self>, _me: usize, _: EndpointKey) {}
    /// True if the process has an endpoint of the peer that will do for a request of it.
    fn has_endpoint_for(world: &World<Self>, me: usize, peer: usize) -> bool;
    /// The process is killed: what the operating system does for it.
    fn killed(_: &mut World<Self>, _me: usize) {}
    /// The process is about to start anew, elsewhere.
    fn before_move(_: &mut World<Self>, _me: usize) {}
}
