//! ibcm's backend: carries datagrams and moves queue pairs.

use verbs::Psn;

use super::datagrams::{Transport, terms};
use super::module::{Backend, Desk, Parts};
use super::qp_set::{PeerSide, QpSets};
use crate::config::datagram::Params;
use crate::ibcm::machine::{Call, Ibcm, Local, Remote};
use crate::manager::Query;
use crate::wire::listener::{Address, Facing};
use crate::wire::{Queues, Source};
use crate::{Config, EndpointKey, EndpointPlan, Error};

/// ibcm on one port.
#[derive(Debug)]
pub(crate) struct IbcmBackend {
    address: Address,
    sets: QpSets,
}

impl Backend for IbcmBackend {
    type Protocol = Ibcm;
    type Port = Transport;

    const NAME: &'static str = "ibcm";
    const SERVES_XRC: bool = false;

    fn params(config: &Config) -> (&Params, u8, Option<u64>) {
        (&config.ibcm, config.ibcm.priority, config.ibcm.seed)
    }

    fn open(query: &Query<'_>, params: &Params, _: u64) -> Result<Parts<Self>, Error> {
        let (plan, layout) = (query.plan, query.plan.layout()?);
        let port = Transport::open(Self::NAME, "ibcm_unsent", plan, params.recv_count)?;
        let address = port.address();
        let Address { qpn, lid, incarnation, .. } = address;
        log::debug!("ibcm listens on {qpn:?} of {}, {lid:?}, {incarnation:?}", plan.port.ctx.name());
        let queues = Queues::new(plan.receive_queues.fingerprint, &plan.receive_queues.text);
        let (name, terms, srq) = (query.me, terms(plan), plan.has_srq());
        let local = Local { name, address, layout, queues, terms, srq };
        let backend = IbcmBackend { address, sets: QpSets::new(plan) };
        Ok(Parts { backend, port, local, blob: address.emit().to_vec() })
    }

    fn add_endpoint(&mut self, desk: Desk<'_, Self>, endpoint: EndpointPlan) -> Result<(), String> {
        let EndpointPlan { key, peer, peer_blob, cts, gids, stream, .. } = endpoint;
        let address = Address::parse(&peer_blob).map_err(|e| e.to_string())?;
        self.address.check_link(&address)?;
        let address = Facing::over(address, gids);
        log::debug!("ibcm: {peer:?} listens on {:?}, {:?}", address.qpn, address.incarnation);
        self.sets.add(key, cts);
        desk.port.add_peer(key, Source::from(&address), peer);
        desk.machine.add_endpoint(key, peer, address, desk.now);
        desk.machine.goes_on_with(key, stream);
        Ok(())
    }

    fn remove_endpoint(&mut self, key: EndpointKey) {
        self.sets.remove(key);
    }

    fn call(&mut self, desk: Desk<'_, Self>, call: Call) {
        let Desk { machine, port, now, out } = desk;
        match call {
            Call::CreateQps { key } => machine.qps_created(key, self.sets.create_announced(key, out), now),
            Call::BringUp { key, remote, address, psn } => match self.bring_up(key, &remote, address, psn) {
                // The main thread has taken them down: what it wants instead, removal or the word that its end has failed, is on
                // its way, and says it better than a failure that is none.
                Err(error) if self.sets.is_taken_down(key) => log::debug!("ibcm: {error}"),
                outcome => machine.qps_up(key, outcome, now),
            },
            Call::Send { to, datagram } => port.send(to, &datagram),
        }
    }

    fn progress(&mut self, desk: Desk<'_, Self>) {
        desk.port.progress(|from, bytes| desk.machine.datagram(from, bytes, desk.now));
    }
}

impl IbcmBackend {
    fn bring_up(
        &self,
        key: EndpointKey,
        remote: &Remote,
        address: Facing<Address>,
        psn: Psn,
    ) -> Result<(), String> {
        let far = PeerSide { address, psn: remote.psn, depth: remote.depth };
        self.sets.bring_up(key, &far, &remote.qpns, psn)
    }
}
