//! Private data of rdmacm's CM messages: hello, join and refusal.

use cpc::wire::join::{JOIN_LEN, Join};
use cpc::wire::refusal::{REFUSAL_LEN, Refusal};
use cpc::wire::{HELLO_LEN, Hello};

pub(crate) fn run(data: &[u8]) {
    if let Ok(hello) = Hello::parse(data) {
        assert_eq!(Hello::parse_any(data), Ok(hello), "what one reader takes, the other takes");
    }
    if let Ok(hello) = Hello::parse_any(data) {
        let mut bytes = [0; HELLO_LEN];
        hello.emit(&mut bytes);
        assert_eq!(Hello::parse_any(&bytes), Ok(hello));
        assert_eq!(hello.layout.count(), hello.qpns.as_slice().len(), "a number for each queue");
    }
    if let Some(join) = Join::parse(data) {
        let bytes: [u8; JOIN_LEN] = join.emit();
        assert_eq!(Join::parse(&bytes), Some(join));
    }
    if let Some(refusal) = Refusal::parse(data) {
        let bytes: [u8; REFUSAL_LEN] = refusal.emit();
        assert_eq!(Refusal::parse(&bytes), Some(refusal));
    }
}
