//! Covers secrets in what a build says.
//!
//! Whoever builds chooses how many secrets there are, how they look and what its commands print. So a line is looked
//! through once for all of them together (the algorithm of Aho and Corasick): it costs as much however many there are.

use std::borrow::Cow;
use std::collections::HashMap;

/// Shorter ones are not covered: every second line has such a word.
const SHORTEST: usize = 4;
/// Shown in place of a secret.
const STARS: &str = "***";
/// Where every search begins.
const ROOT: u32 = 0;

pub struct Cover {
    /// Beginnings of secrets; the first is the empty one.
    nodes: Vec<Node>,
    /// From a beginning by one more byte to a longer one. Those of the empty one are in `first`: most bytes begin none.
    ways: HashMap<(u32, u8), u32>,
    first: [u32; 256],
}

#[derive(Default)]
struct Node {
    /// The longest end of this beginning that is itself the beginning of a secret.
    fallback: u32,
    /// Bytes of the longest secret that ends here; zero where none does.
    covers: usize,
}

/// How a beginning came to be.
#[derive(Clone, Copy)]
struct Origin {
    node: u32,
    before: u32,
    byte: u8,
    length: usize,
}

impl Cover {
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Cover {
        let mut cover = Cover { nodes: vec![Node::default()], ways: HashMap::new(), first: [ROOT; 256] };
        let mut origins = Vec::new();
        for secret in secrets.into_iter().filter(|secret| secret.len() >= SHORTEST) {
            cover.learn(secret, &mut origins);
        }
        // What is shorter is known before what falls back on it.
        origins.sort_by_key(|origin: &Origin| origin.length);
        for Origin { node, before, byte, .. } in origins {
            let fallback = match before {
                ROOT => ROOT,
                before => cover.step(cover.node(before).fallback, byte),
            };
            let covers = cover.node(fallback).covers;
            let node = &mut cover.nodes[node as usize];
            node.fallback = fallback;
            // One that ends here is longer than one that ends here and begins later.
            node.covers = node.covers.max(covers);
        }
        cover
    }

    fn learn(&mut self, secret: &str, origins: &mut Vec<Origin>) {
        let mut at = ROOT;
        for (place, byte) in secret.bytes().enumerate() {
            if let Some(next) = self.next(at, byte) {
                at = next;
                continue;
            }
            let node = self.nodes.len() as u32;
            self.nodes.push(Node::default());
            match at {
                ROOT => self.first[usize::from(byte)] = node,
                at => {
                    self.ways.insert((at, byte), node);
                }
            }
            origins.push(Origin { node, before: at, byte, length: place + 1 });
            at = node;
        }
        self.nodes[at as usize].covers = secret.len();
    }

    fn node(&self, at: u32) -> &Node {
        &self.nodes[at as usize]
    }

    /// The beginning that is longer by this byte, if a secret has it.
    fn next(&self, at: u32, byte: u8) -> Option<u32> {
        match at {
            ROOT => Some(self.first[usize::from(byte)]).filter(|next| *next != ROOT),
            at => self.ways.get(&(at, byte)).copied(),
        }
    }

    /// The longest beginning of a secret that ends with this byte.
    fn step(&self, mut at: u32, byte: u8) -> u32 {
        loop {
            match self.next(at, byte) {
                Some(next) => return next,
                None if at == ROOT => return ROOT,
                None => at = self.node(at).fallback,
            }
        }
    }

    /// The text without secrets. Those that overlap are covered as one.
    pub fn over<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut hidden: Vec<(usize, usize)> = Vec::new();
        let mut at = ROOT;
        for (place, byte) in text.bytes().enumerate() {
            at = self.step(at, byte);
            let covers = self.node(at).covers;
            if covers == 0 {
                continue;
            }
            let (mut start, end) = (place + 1 - covers, place + 1);
            while let Some((earlier, _)) = hidden.pop_if(|(_, last)| start < *last) {
                start = start.min(earlier);
            }
            hidden.push((start, end));
        }
        if hidden.is_empty() {
            return Cow::Borrowed(text);
        }
        // A secret is text: it begins and ends between characters.
        let (mut shown, mut from) = (String::with_capacity(text.len()), 0);
        for (start, end) in hidden {
            shown.push_str(&text[from..start]);
            shown.push_str(STARS);
            from = end;
        }
        shown.push_str(&text[from..]);
        Cow::Owned(shown)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn over(secrets: &[&str], text: &str) -> String {
        Cover::new(secrets.iter().copied()).over(text).into_owned()
    }

    #[test]
    fn secrets_within_and_across_each_other_are_covered() {
        assert_eq!(over(&["hunter", "hunter2"], "hunter2, hunter"), "***, ***");
        assert_eq!(over(&["abcd", "cdef"], "xabcdefx"), "x***x");
        assert_eq!(over(&["bcde", "abcdefgh"], "abcdefg bcde"), "a***fg ***", "the longer one does not come");
        assert_eq!(over(&["secret"], "secretsecret"), "******");
        assert_eq!(over(&["abc", ""], "abc"), "abc", "too short");
        assert_eq!(over(&["schlüssel"], "der schlüssel ü"), "der *** ü");
        assert_eq!(over(&[], "nothing"), "nothing");
    }

    proptest! {
        #[test]
        fn what_is_left_is_what_no_secret_has(
            secrets in proptest::collection::vec("[ab]{4,7}", 0..6),
            text in "[abc]{0,60}"
        ) {
            let mut is_hidden = vec![false; text.len()];
            for secret in &secrets {
                for start in (0..text.len()).filter(|start| text[*start..].starts_with(secret.as_str())) {
                    is_hidden[start..start + secret.len()].fill(true);
                }
            }
            let left: String = text.chars().zip(is_hidden).filter_map(|(c, hidden)| (!hidden).then_some(c)).collect();
            let shown = Cover::new(secrets.iter().map(String::as_str)).over(&text).replace('*', "");
            prop_assert_eq!(shown, left);
        }
    }
}
