//! Every route of every door, as those ask for it who may not: the attempts are made of the server's own tables, and the
//! tests make the same ones.

use std::collections::BTreeMap;

use cove_control::door::At;
use cove_control::door::walk::{Attempt, Spelling, Things, Who, attempts};
use cove_probe::{Outcome, Verdict};

use super::house::House;
use super::wire::{self, Line};
use super::{Probe, held, hung_up, lost};

/// A door, as probes name it, and the way to it.
const DOORS: [(&str, At); 8] = [
    ("the_native_api", At::Path("/api")),
    ("e2bs_api", At::Path("/e2b")),
    ("e2bs_daemon", At::Port(49983)),
    ("e2bs_interpreter", At::Port(49999)),
    ("daytonas_api", At::Path("/daytona/api")),
    ("daytonas_toolbox", At::Path("/daytona/toolbox/{id}")),
    ("daytonas_previews", At::Path("/daytona/preview")),
    ("vercels_api", At::Path("/vercel/api")),
];

const WHO: [(&str, Who); 4] = [
    ("without_a_key", Who::Nobody),
    ("with_a_key_for_looking", Who::Reader),
    ("with_a_strangers_key", Who::Stranger),
    ("with_a_revoked_key", Who::Revoked),
];

/// How many attempts were made of a kind, and those that were not refused.
#[derive(Default)]
struct Count {
    made: usize,
    lost: Vec<String>,
}

/// All attempts, by door, who and spelling; and the doors through which something was woken.
pub struct Walked {
    counts: BTreeMap<(usize, usize, bool), Count>,
    woken: Vec<Option<bool>>,
}

impl Walked {
    fn new(house: &House) -> Walked {
        let things = Things {
            private: &house.private,
            public: &house.public,
            session: &house.session,
            key: &house.revoked_id,
            webhook: &house.webhook,
        };
        let all = attempts(things);
        let mut line = Line::new(&house.address);
        let (mut counts, mut woken) = (BTreeMap::<_, Count>::new(), Vec::<Option<bool>>::new());
        for (door, (_, at)) in DOORS.iter().enumerate() {
            for attempt in all.iter().filter(|attempt| attempt.at == *at) {
                let who = WHO.iter().position(|(_, who)| *who == attempt.who).unwrap_or_default();
                let count = counts.entry((door, who, attempt.spelling == Spelling::Other)).or_default();
                count.made += 1;
                let what = format!("{} {}", attempt.method, attempt.path);
                match line.ask(&request(house, things, attempt)) {
                    Ok(answer) if attempt.is_refused_by(answer.status) => {}
                    Ok(answer) => count.lost.push(format!("{what}: {}", answer.status)),
                    Err(error) => {
                        if let (Verdict::NotHeld, detail) = hung_up(&what, &error) {
                            count.lost.push(detail);
                        }
                    }
                }
            }
            // Once awake it tells nothing of the doors that follow.
            let before = woken.iter().all(|seen| *seen == Some(false));
            woken.push(before.then(|| !house.sleeps()));
        }
        Walked { counts, woken }
    }
}

fn request(house: &House, things: Things<'_>, attempt: &Attempt) -> String {
    let host = attempt.host(things).unwrap_or_else(|| house.address.clone());
    let key = match attempt.who {
        Who::Nobody => None,
        Who::Reader => Some(&house.reader),
        Who::Stranger => Some(&house.stranger),
        Who::Revoked => Some(&house.revoked),
    };
    let bearer = key.map(|key| format!("Bearer {key}"));
    let mut headers = vec![("host", host.as_str()), ("content-type", "application/json")];
    if let (Some(key), Some(bearer)) = (key, &bearer) {
        headers.extend([("authorization", bearer.as_str()), ("x-api-key", key.as_str())]);
    }
    wire::written(attempt.method, &attempt.path, &headers, "{}")
}

fn told(count: Option<&Count>) -> Outcome {
    match count {
        None => (Verdict::NotApplicable, "no route of this door asks for that".into()),
        Some(count) if count.lost.is_empty() => held(format!("{} requests refused", count.made)),
        Some(count) => {
            lost(format!("{} of {} requests got in, the first: {}", count.lost.len(), count.made, count.lost[0]))
        }
    }
}

pub fn probes() -> Vec<Probe> {
    let mut all = Vec::new();
    for (door, (name, _)) in DOORS.iter().enumerate() {
        for (who, (manner, _)) in WHO.iter().enumerate() {
            let meaning = "somebody uses what is not theirs";
            let run = move |house: &House| {
                told(house.walked.get_or_init(|| Walked::new(house)).counts.get(&(door, who, false)))
            };
            all.push(Probe::new(&format!("cannot_enter_{name}_{manner}"), meaning, run));
        }
        let meaning = "a path that is written differently leads past the check";
        let run = move |house: &House| {
            let walked = house.walked.get_or_init(|| Walked::new(house));
            let mut sum = Count::default();
            for (_, count) in walked.counts.iter().filter(|((at, _, other), _)| *at == door && *other) {
                sum.made += count.made;
                sum.lost.extend(count.lost.iter().cloned());
            }
            told(Some(&sum))
        };
        all.push(Probe::new(&format!("cannot_enter_{name}_by_another_spelling"), meaning, run));
        let meaning = "a stranger keeps sandboxes awake at their owner's cost";
        let run = move |house: &House| match house.walked.get_or_init(|| Walked::new(house)).woken[door] {
            Some(true) => lost("a sandbox that slept is awake"),
            Some(false) => held("what slept sleeps still"),
            None => (Verdict::NotApplicable, "another door had woken the sandbox already".into()),
        };
        all.push(Probe::new(&format!("cannot_wake_a_sandbox_through_{name}"), meaning, run));
    }
    all
}
