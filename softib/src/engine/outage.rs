//! Ports that go down and come up, events without their causes, and what a plan of faults has for
//! the time.

use super::state::State;
use crate::datapath::responder::events;
use crate::fabric::Ports;
use crate::objects::events::Subject;
use crate::objects::faults::event::{About, EventFault};
use crate::objects::qp::Qp;
use rdma_sys::*;

impl State {
    /// Tells every queue pair, and its peers, about a change of plan or port.
    pub fn fit_queue_pairs(&mut self) {
        let State { qps, w, .. } = self;
        for qp in qps.iter_mut() {
            qp.set_state(qp.state, w);
        }
    }

    /// Takes ports down, or brings them up: those of this number, else all.
    pub fn set_ports(&mut self, number: Option<u8>, up: bool) {
        let ports = &mut self.w.ports;
        let meant = |ports: &Ports, at| number.is_none_or(|number| ports.number(at) == number);
        let places = 0..ports.all().len() as u8;
        let changed: Vec<u8> = places.filter(|&at| meant(ports, at) && ports.set_up(at, up)).collect();
        if changed.is_empty() {
            return;
        }
        let which = number.map_or("all ports are".to_owned(), |number| format!("port {number} is"));
        log::info!("{which} {}", if up { "up" } else { "down" });
        self.fit_queue_pairs();
        let kind = if up { IBV_EVENT_PORT_ACTIVE } else { IBV_EVENT_PORT_ERR };
        let contexts: Vec<usize> = self.w.contexts.iter().map(|(key, _)| key).collect();
        for context in contexts {
            let (device, ports) = (self.w.device(context), &self.w.ports);
            let own = changed.iter().filter(|&&at| ports.device(at) == device);
            let numbers: Vec<u8> = own.map(|&at| ports.number(at)).collect();
            numbers.into_iter().for_each(|num| self.w.async_event(context, kind, Subject::Port(num)));
        }
    }

    /// Carries out what the plan has for this time.
    pub fn follow_plan(&mut self) {
        while let Some((number, up)) = self.w.faults.as_mut().and_then(|faults| faults.port_change()) {
            self.set_ports(number, up);
        }
        while let Some(event) = self.w.faults.as_mut().and_then(|faults| faults.event_due()) {
            self.raise(event);
        }
    }

    /// Raises an event, and takes queue pairs to the error state if it says that they are in it.
    /// How many objects it was about.
    pub fn raise(&mut self, event: EventFault) -> u64 {
        if event.about == About::Receiver {
            return self.raise_for_receivers(event);
        }
        let subjects = self.subjects(event);
        for &(context, subject) in &subjects {
            self.w.async_event(context, event.code, subject);
            if let (Subject::Qp(index), true) = (subject, event.is_fatal()) {
                self.fail(index);
            }
        }
        if event.code == IBV_EVENT_DEVICE_FATAL {
            let contexts: Vec<usize> = subjects.iter().map(|&(context, _)| context).collect();
            self.fail_all_of(&contexts);
        }
        self.count_raised(subjects.len() as u64)
    }

    /// What the event is about, each with the context that is told.
    fn subjects(&self, event: EventFault) -> Vec<(usize, Subject)> {
        let contexts = self.w.contexts.iter().map(|(key, _)| key);
        let all: Vec<(usize, Subject)> = match event.about {
            About::Cq => self.w.cqs.iter().map(|(key, cq)| (cq.context, Subject::Cq(key))).collect(),
            About::Srq => self.w.srqs.iter().map(|(key, srq)| (srq.context, Subject::Srq(key))).collect(),
            About::Qp => {
                let connected =
                    |qp: &&Qp| qp.kind != IBV_QPT_UD && matches!(qp.state, IBV_QPS_RTR | IBV_QPS_RTS);
                self.qps.iter().filter(connected).map(|qp| (qp.context, Subject::Qp(qp.index))).collect()
            }
            About::Port => return self.port_subjects(event),
            About::Device => contexts.map(|context| (context, Subject::Port(0))).collect(),
            About::Receiver => Vec::new(),
        };
        let strikes = |(place, _): &(usize, _)| event.strikes(*place);
        all.into_iter().enumerate().filter(strikes).map(|(_, subject)| subject).collect()
    }

    /// Every open device tells of a port.
    fn port_subjects(&self, event: EventFault) -> Vec<(usize, Subject)> {
        let ports = (1..=self.w.ports.per_device()).filter(|&num| event.strikes(usize::from(num) - 1));
        let contexts = self.w.contexts.iter().map(|(key, _)| key);
        contexts.flat_map(|context| ports.clone().map(move |num| (context, Subject::Port(num)))).collect()
    }

    /// Receive queue pairs of domains go to the error state; every handle is told, in every
    /// process.
    fn raise_for_receivers(&mut self, event: EventFault) -> u64 {
        let handles = self.w.xrc.handles.iter();
        let mut receivers: Vec<_> = handles.map(|(_, handle)| (handle.domain, handle.index)).collect();
        receivers.sort_unstable();
        receivers.dedup();
        let chosen = receivers.iter().enumerate().filter(|(place, _)| event.strikes(*place));
        let mut count = 0;
        for (_, &(domain, index)) in chosen {
            let Some(file) = self.w.xrc.domains.get(domain).map(|domain| domain.file.clone()) else {
                continue;
            };
            events::fail(&mut self.w, &file, index, None, event.code);
            count += 1;
        }
        self.count_raised(count)
    }

    fn fail_all_of(&mut self, contexts: &[usize]) {
        let of = |qp: &&Qp| contexts.contains(&qp.context);
        let broken: Vec<usize> = self.qps.iter().filter(of).map(|qp| qp.index).collect();
        broken.into_iter().for_each(|index| self.fail(index));
    }

    fn count_raised(&mut self, count: u64) -> u64 {
        if let Some(faults) = &mut self.w.faults {
            faults.counts.events += count;
        }
        count
    }
}
