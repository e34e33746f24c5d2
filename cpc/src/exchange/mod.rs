//! What the managers that carry datagrams share: ibcm and xrc.
#![forbid(unsafe_code)]

pub(crate) mod received;
