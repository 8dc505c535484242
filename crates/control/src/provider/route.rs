//! Which of several providers a new sandbox goes to.
//!
//! An operator writes rules (`[[routes]]`); the first one that is about the sandbox decides. Those that it names are put in
//! an order: one of the well by its weight, the other well ones as they are written, then the ill ones, which are tried
//! only where nobody else is left. Nothing here asks a clock, a provider or a store.
//!
//! ```text
//!   labels = "tier=paid", template = "python*", providers = "local=3, docker=1, e2b=0"
//!                                                │                            └── takes what the others cannot
//!                                                └── three of four, as long as both are well
//! ```

use std::collections::BTreeMap;

use crate::config;

/// A rule about new sandboxes that name no provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// All of them must be among the sandbox's own.
    labels: BTreeMap<String, String>,
    /// What it starts from; `*` stands for any letters. Lower case.
    origin: Option<String>,
    /// With weights; one of weight zero takes what the others cannot.
    providers: Vec<(String, u32)>,
}

/// What a rule can be about.
#[derive(Debug, Clone, Copy)]
pub struct Ask<'a> {
    pub labels: &'a BTreeMap<String, String>,
    /// The template, environment or image, as the caller wrote it.
    pub origin: &'a str,
}

impl Route {
    /// As the operator wrote it; the error names what is wrong.
    pub fn read(written: &config::Route) -> Result<Route, String> {
        let mut labels = BTreeMap::new();
        for pair in entries(&written.labels) {
            let (label, value) = pair.split_once('=').ok_or_else(|| format!("labels: {pair:?} is not NAME=VALUE"))?;
            labels.insert(label.trim().to_owned(), value.trim().to_owned());
        }
        let mut providers: Vec<(String, u32)> = Vec::new();
        for entry in entries(&written.providers) {
            let (name, weight) = match entry.split_once('=') {
                None => (entry, 1),
                Some((name, weight)) => {
                    match weight.trim().parse::<u32>().ok().filter(|weight| *weight <= WEIGHT_MAX) {
                        Some(weight) => (name.trim(), weight),
                        None => {
                            return Err(format!("providers: {entry:?} is not NAME or NAME=WEIGHT, up to {WEIGHT_MAX}"));
                        }
                    }
                }
            };
            if providers.iter().any(|(other, _)| other == name) {
                return Err(format!("providers: {name:?} is there twice"));
            }
            providers.push((name.to_owned(), weight));
        }
        if providers.is_empty() {
            return Err("providers: names none".into());
        }
        let origin = Some(written.template.trim().to_lowercase()).filter(|origin| !origin.is_empty());
        Ok(Route { labels, origin, providers })
    }

    /// The providers that it names.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.providers.iter().map(|(name, _)| name.as_str())
    }

    fn is_about(&self, ask: &Ask<'_>) -> bool {
        let labels = self.labels.iter().all(|(label, value)| ask.labels.get(label) == Some(value));
        let origin = self.origin.as_deref().is_none_or(|pattern| matches(pattern, &ask.origin.to_lowercase()));
        labels && origin
    }
}

/// A million shares are as good as any number of them.
const WEIGHT_MAX: u32 = 1_000_000;

fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|entry| !entry.is_empty())
}

/// Whether a text is as a pattern says, in which `*` stands for any letters.
fn matches(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(rest) = text.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    let mut rest = rest;
    for part in parts {
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

/// Those that may take the sandbox, the best first; empty where no rule is about it. `dice` is from 0 up to, and not, 1.
pub fn choose<'a>(routes: &'a [Route], ask: &Ask<'_>, is_well: impl Fn(&str) -> bool, dice: f64) -> Vec<&'a str> {
    let Some(route) = routes.iter().find(|route| route.is_about(ask)) else { return Vec::new() };
    let (well, ill): (Vec<_>, Vec<_>) = route.providers.iter().partition(|(name, _)| is_well(name));
    let (taking, spare): (Vec<_>, Vec<_>) = well.into_iter().partition(|(_, weight)| *weight > 0);
    let all: f64 = taking.iter().map(|(_, weight)| f64::from(*weight)).sum();
    let mut left = dice.clamp(0.0, 1.0) * all;
    let first = taking.iter().position(|(_, weight)| {
        left -= f64::from(*weight);
        left < 0.0
    });
    // A dice of exactly one, or what rounding made of it.
    let first = first.or_else(|| taking.len().checked_sub(1));
    let chosen = first.map(|place| taking[place]);
    let others = taking.iter().copied().enumerate().filter(|(place, _)| Some(*place) != first).map(|(_, one)| one);
    chosen.into_iter().chain(others).chain(spare).chain(ill).map(|(name, _)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn route(labels: &str, template: &str, providers: &str) -> Route {
        let written = config::Route { labels: labels.into(), template: template.into(), providers: providers.into() };
        Route::read(&written).unwrap()
    }

    fn labelled(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_first_rule_that_is_about_a_sandbox_decides() {
        let routes = [route("tier=paid", "", "local"), route("", "python*", "docker"), route("", "", "e2b")];
        let go = |pairs: &[(&str, &str)], origin: &str| {
            choose(&routes, &Ask { labels: &labelled(pairs), origin }, |_| true, 0.0).join(" ")
        };
        assert_eq!(go(&[("tier", "paid"), ("a", "b")], "Python3"), "local");
        assert_eq!(go(&[("tier", "free")], "Python3"), "docker");
        assert_eq!(go(&[], "base"), "e2b");
        assert!(choose(&routes[..2], &Ask { labels: &labelled(&[]), origin: "base" }, |_| true, 0.5).is_empty());
    }

    #[test]
    fn an_ill_one_comes_last_and_a_spare_before_it() {
        let routes = [route("", "", "a=3, b=1, c=0")];
        let ask = Ask { labels: &labelled(&[]), origin: "base" };
        let go = |well: &[&str], dice: f64| choose(&routes, &ask, |name| well.contains(&name), dice).join(" ");
        assert_eq!((go(&["a", "b", "c"], 0.0).as_str(), go(&["a", "b", "c"], 0.75).as_str()), ("a b c", "b a c"));
        assert_eq!((go(&["b", "c"], 0.1).as_str(), go(&["c"], 0.1).as_str()), ("b c a", "c a b"));
        assert_eq!(go(&[], 0.9), "a b c", "where all are ill they are tried all the same");
    }

    #[test]
    fn what_is_written_wrong_is_named() {
        let wrong = |labels: &str, providers: &str| {
            let (labels, providers) = (labels.to_owned(), providers.to_owned());
            Route::read(&config::Route { labels, template: String::new(), providers }).unwrap_err()
        };
        assert_eq!(wrong("a", "x"), "labels: \"a\" is not NAME=VALUE");
        assert_eq!(wrong("", ""), "providers: names none");
        assert_eq!(wrong("", "x=much"), "providers: \"x=much\" is not NAME or NAME=WEIGHT, up to 1000000");
        assert_eq!(wrong("", "x, x=2"), "providers: \"x\" is there twice");
    }

    #[test]
    fn a_star_stands_for_any_letters() {
        for (pattern, text) in [("*", ""), ("py*", "python"), ("*3", "python3"), ("a*b*c", "axxbyyc"), ("x", "x")] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("py", "python"), ("py*n*n", "python"), ("a*a", "a"), ("x*", "y"), ("*b*", "a")] {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    proptest! {
        #[test]
        fn all_are_there_once_and_the_well_before_the_ill(
            weights in prop::collection::vec((0u32..5, any::<bool>()), 1..8), dice in 0.0f64..1.0,
        ) {
            let written: Vec<String> = weights.iter().enumerate().map(|(n, (weight, _))| format!("p{n}={weight}")).collect();
            let routes = [route("", "", &written.join(","))];
            let well = |name: &str| weights[name[1..].parse::<usize>().unwrap()].1;
            let chosen = choose(&routes, &Ask { labels: &BTreeMap::new(), origin: "base" }, well, dice);
            let mut sorted = chosen.clone();
            sorted.sort_unstable();
            sorted.dedup();
            prop_assert_eq!(sorted.len(), weights.len());
            let first_ill = chosen.iter().position(|name| !well(name)).unwrap_or(chosen.len());
            prop_assert!(chosen[first_ill..].iter().all(|name| !well(name)));
            if weights.iter().any(|(weight, well)| *weight > 0 && *well) {
                prop_assert!(weights[chosen[0][1..].parse::<usize>().unwrap()].0 > 0);
            }
        }

        #[test]
        fn shares_are_as_the_weights_say(a in 1u32..20, b in 1u32..20) {
            let routes = [route("", "", &format!("a={a}, b={b}"))];
            let labels = BTreeMap::new();
            let ask = Ask { labels: &labels, origin: "base" };
            let steps = 10_000u32;
            let to_a = (0..steps).filter(|step| {
                choose(&routes, &ask, |_| true, f64::from(*step) / f64::from(steps))[0] == "a"
            });
            let share = to_a.count() as f64 / f64::from(steps);
            prop_assert!((share - f64::from(a) / f64::from(a + b)).abs() < 0.001, "{} of {}", share, a);
        }
    }
}
