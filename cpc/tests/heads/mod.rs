//! The head of a peer's REQ, for tests of single machines.

use cpc::ProcessName;
use cpc::wire::{CommId, Depth, Path, ReqHead};
use verbs::Psn;

/// Of an exchange that the peer calls `local` and wants with `service`.
pub fn req_head(local: CommId, service: ProcessName, depth: Depth, path: Path) -> ReqHead {
    ReqHead {
        local,
        service,
        psn: Psn(7),
        depth,
        path,
        mtu: 5,
        pkey: 0xffff,
        retry_count: 7,
        rnr_retry: 7,
        max_cm_retries: 12,
        response_timeout: 15,
    }
}
