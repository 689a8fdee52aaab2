//! What clients must not get away with, and the world must not do to us.

mod bodies;
mod h2_floods;
mod h2_requests;
mod identity;
mod responses;
mod slots;
mod slow;
mod smuggling;
mod wire;
