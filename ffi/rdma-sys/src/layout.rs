//! Layout assertions.
