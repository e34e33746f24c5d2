//! Which connection managers take part, and their parameters.

/// Of ibcm and xrc.
pub mod datagram;
/// Of rdmacm.
pub mod rdmacm;

/// What the connection managers are told once, when they are opened: which of them may serve, and the settings of each.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Only these, if there are any.
    pub include: Vec<String>,
    /// Not these.
    pub exclude: Vec<String>,
    /// Parameters of ibcm.
    pub ibcm: datagram::Params,
    /// Parameters of rdmacm.
    pub rdmacm: rdmacm::Params,
    /// Parameters of xrc, which are as ibcm's.
    pub xrc: datagram::Params,
}
