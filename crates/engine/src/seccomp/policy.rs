//! The policy as text and as data.

use std::collections::BTreeMap;

use cove_sys::namespace::Secret;

use super::Rules;

const POLICY: &str = include_str!("../policies/default");
const SHARED_FILES: &str = include_str!("../policies/shared-files");
const VOLUMES: &str = include_str!("../policies/volumes");
const TEXT: &str = include_str!("../policies/text");
#[cfg(target_arch = "x86_64")]
const NUMBERS: &str = include_str!("../policies/numbers-x86_64");
#[cfg(target_arch = "aarch64")]
const NUMBERS: &str = include_str!("../policies/numbers-aarch64");

const EPERM: u16 = 1;

/// What becomes of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    Allow,
    /// EPERM: known and denied.
    Refuse,
    /// ENOSYS: as if the kernel did not have it.
    Absent,
    /// Answered with success, and not done.
    Pretend,
    /// Allowed if one of the alternatives holds, else answered with the error.
    When(Vec<Alternative>, u16),
    /// Answered with the error if one of the alternatives holds, else allowed.
    Unless(Vec<Alternative>, u16),
}

/// All of its comparisons hold.
pub type Alternative = Vec<Comparison>;

/// Half of an argument, under a mask, equals a value, or does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Comparison {
    pub argument: u8,
    pub half: Half,
    pub mask: u32,
    pub value: u32,
    pub equal: bool,
}

/// Which 32 bits of an argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Half {
    /// All that the kernel reads of a number.
    Lower,
    /// What it does not look at where a number has 32 bits: a filter does.
    Upper,
}

/// Verdicts by system call number; a number without one is absent.
pub type Policy = BTreeMap<u32, Verdict>;

/// The policy that is part of the program.
pub fn built_in() -> Policy {
    parse(POLICY, NUMBERS).expect("the built-in policy is tested")
}

/// A policy in the form of the built-in one.
#[cfg(feature = "fuzzing")]
pub fn of_text(policy: &str) -> Result<Policy, String> {
    parse(policy, NUMBERS)
}

/// The same with what is different for some sandboxes.
pub fn built_in_for(rules: Rules) -> Policy {
    let mut policy = built_in();
    let further = [(rules.shared_files, SHARED_FILES), (rules.volumes, VOLUMES)];
    for (_, text) in further.into_iter().filter(|(applies, _)| *applies) {
        policy.extend(parse(text, NUMBERS).expect("the built-in policy is tested"));
    }
    policy
}

/// For a process that reads one text and writes another.
pub fn built_in_for_text() -> Policy {
    parse(TEXT, NUMBERS).expect("the built-in policy is tested")
}

/// Lets whoever knows the secret enter a user namespace, in a policy that refuses it to all: the launcher, which puts its
/// filter up before that step. See [`super::Filter`].
pub fn admit(mut policy: Policy, secret: Secret) -> Policy {
    let upper =
        |argument: u8, value: u32| Comparison { argument, half: Half::Upper, mask: u32::MAX, value, equal: true };
    let kind = Comparison { argument: 1, half: Half::Lower, mask: u32::MAX, value: secret.kind(), equal: true };
    let [first, second] = secret.halves();
    let alternative = vec![kind, upper(0, first), upper(1, second)];
    policy.insert(Secret::CALL, Verdict::When(vec![alternative], EPERM));
    policy
}

fn parse(policy: &str, numbers: &str) -> Result<Policy, String> {
    let numbers: BTreeMap<&str, u32> = lines(numbers)
        .map(|line| {
            let (number, name) = line.split_once(' ').ok_or_else(|| format!("not a number and a name: {line}"))?;
            Ok((name, number.parse().map_err(|_| format!("not a number: {line}"))?))
        })
        .collect::<Result<_, String>>()?;
    let mut verdicts = Policy::new();
    let mut enter = |name: &str, verdict: Verdict| match numbers.get(name) {
        // Names of another architecture have no number here.
        None => Ok(()),
        Some(&number) => match verdicts.insert(number, verdict) {
            None => Ok(()),
            Some(_) => Err(format!("{name} is named twice")),
        },
    };
    for line in lines(policy) {
        let (word, rest) = line.split_once(' ').ok_or_else(|| format!("not a rule: {line}"))?;
        let verdict = match word {
            "allow" => Verdict::Allow,
            "refuse" => Verdict::Refuse,
            "absent" => Verdict::Absent,
            "pretend" => Verdict::Pretend,
            "when" | "unless" => {
                let (name, conditions) = rest.split_once(' ').ok_or_else(|| format!("no condition: {line}"))?;
                let (conditions, error) = match conditions.split_once(" else ") {
                    Some((conditions, error)) => (conditions, error.parse().map_err(|_| format!("no error: {line}"))?),
                    None => (conditions, EPERM),
                };
                let conditions = conditions.split('|').map(alternative).collect::<Result<_, _>>()?;
                let verdict = if word == "when" { Verdict::When } else { Verdict::Unless };
                enter(name, verdict(conditions, error))?;
                continue;
            }
            _ => return Err(format!("not a rule: {line}")),
        };
        for name in rest.split_whitespace() {
            enter(name, verdict.clone())?;
        }
    }
    Ok(verdicts)
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// `arg0=16 arg2=0`, `arg0&0x7e020000=0`, `arg1!=0x5412`.
///
/// None at all would always hold, and more than a jump of the program reaches over would land elsewhere: both are refused.
fn alternative(text: &str) -> Result<Alternative, String> {
    const MOST: usize = 16;
    let comparisons: Alternative = text
        .split_whitespace()
        .map(|part| {
            let wrong = || format!("not a condition: {part}");
            let (left, value) = part.split_once('=').ok_or_else(wrong)?;
            let (left, equal) = left.strip_suffix('!').map_or((left, true), |left| (left, false));
            let (argument, mask) = left.split_once('&').unwrap_or((left, "0xffffffff"));
            let argument = argument.strip_prefix("arg").and_then(|n| n.parse().ok()).filter(|&n| n < 6);
            Ok(Comparison {
                argument: argument.ok_or_else(wrong)?,
                half: Half::Lower,
                mask: number(mask).ok_or_else(wrong)?,
                value: number(value).ok_or_else(wrong)?,
                equal,
            })
        })
        .collect::<Result<_, String>>()?;
    match comparisons.len() {
        0 => Err(format!("a condition without a comparison: {text:?}")),
        1..=MOST => Ok(comparisons),
        many => Err(format!("{many} comparisons in one condition, at most {MOST}: {text}")),
    }
}

fn number(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_that_would_always_hold_or_jump_too_far_is_refused() {
        let numbers = "1 write";
        for wrong in ["when write  ", "when write arg0=1 |", "unless write | else 1"] {
            assert!(parse(wrong, numbers).is_err(), "{wrong}");
        }
        let far = format!("when write {}", "arg0=1 ".repeat(90));
        assert!(parse(&far, numbers).is_err());
        assert!(parse("when write arg0=1 arg2=0 | arg1&0x7=0 else 38", numbers).is_ok());
    }

    #[test]
    fn every_name_of_the_built_in_policy_is_a_system_call_of_some_machine() {
        let known: Vec<&str> =
            [include_str!("../policies/numbers-x86_64"), include_str!("../policies/numbers-aarch64")]
                .into_iter()
                .flat_map(lines)
                .filter_map(|line| line.split_once(' ').map(|(_, name)| name))
                .collect();
        for line in [POLICY, SHARED_FILES, VOLUMES, TEXT].into_iter().flat_map(lines) {
            let mut words = line.split_whitespace();
            let conditional = matches!(words.next(), Some("when" | "unless"));
            for name in words.take(if conditional { 1 } else { usize::MAX }) {
                assert!(known.contains(&name), "{name} is no system call");
            }
        }
    }

    #[test]
    fn a_call_cannot_be_named_twice() {
        assert!(parse("allow read\nrefuse read", "0 read").is_err());
    }

    #[test]
    fn a_condition_is_read_with_its_mask() {
        let policy = parse("when clone arg0&0x7e020000=0", "56 clone").unwrap();
        let expected = Comparison { argument: 0, half: Half::Lower, mask: 0x7e02_0000, value: 0, equal: true };
        assert_eq!(policy[&56], Verdict::When(vec![vec![expected]], EPERM));
    }
}
