//! Stories about the real program: what a person types and what they see.

mod doctor;
