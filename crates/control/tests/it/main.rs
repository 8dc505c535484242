//! Stories about the control plane, told on the fake provider: fast, and true wherever the provider does not matter.

mod harness;
mod lifecycle;
