//! softib as libibverbs.so.1.
