use proptest::prelude::*;

use super::*;

fn any_state() -> impl Strategy<Value = State> {
    proptest::sample::select(State::ALL.to_vec())
}

fn any_seen() -> impl Strategy<Value = Seen> {
    proptest::sample::select(vec![Seen::Running, Seen::Paused, Seen::Stopped])
}

fn any_event() -> impl Strategy<Value = Event> {
    prop_oneof![
        proptest::sample::select(vec![
            Event::Start,
            Event::Stop,
            Event::Kill,
            Event::Halt,
            Event::Pause,
            Event::Resume,
            Event::Archive,
            Event::Recover,
            Event::Destroy,
            Event::Launched,
            Event::LaunchFailed,
            Event::Stopped,
            Event::Paused,
            Event::Resumed,
            Event::Exported,
            Event::Imported,
            Event::Destroyed,
            Event::Undone,
            Event::Departed,
            Event::Missing,
            Event::MissingButArchived,
        ]),
        any_seen().prop_map(Event::Seen),
    ]
}

/// What an effect that works brings about.
fn success(effect: Effect) -> Event {
    match effect {
        Effect::Launch => Event::Launched,
        Effect::Stop | Effect::Kill => Event::Stopped,
        Effect::Pause => Event::Paused,
        Effect::Resume => Event::Resumed,
        Effect::Export => Event::Exported,
        Effect::Import => Event::Imported,
        Effect::Destroy => Event::Destroyed,
    }
}

fn settle(mut step: Step) -> State {
    for _ in 0..4 {
        match step.effect {
            None => return step.state,
            Some(effect) => step = apply(step.state, success(effect)).expect("an effect's success is always taken"),
        }
    }
    panic!("effects never end from {step:?}");
}

proptest! {
    /// Whatever has happened, a destroy is taken and its success is the end.
    #[test]
    fn anything_can_be_destroyed(events in proptest::collection::vec(any_event(), 0..40)) {
        let mut state = State::Creating;
        for event in events {
            if let Ok(step) = apply(state, event) {
                state = step.state;
            }
        }
        prop_assert_eq!(settle(apply(state, Event::Destroy).unwrap()), State::Destroyed);
    }

    /// A server that died at any moment gets out of every transition by asking the provider.
    #[test]
    fn reconcile_leads_to_a_lasting_state(state in any_state(), seen in proptest::option::of(any_seen())) {
        let event = seen.map_or(Event::Missing, Event::Seen);
        let settled = settle(apply(state, event).unwrap());
        prop_assert!(!settled.is_in_transition(), "{} {:?} ends in {}", state, event, settled);
    }

    /// Nothing but a provider that kept something back leads out of the end.
    #[test]
    fn destroyed_is_the_end(event in any_event()) {
        if let Ok(step) = apply(State::Destroyed, event) {
            prop_assert!(matches!(step.state, State::Destroyed | State::Destroying));
        }
    }

    /// An effect is only begun from a state that says it is under way.
    #[test]
    fn an_effect_is_always_written_down_first(state in any_state(), event in any_event()) {
        if let Ok(Step { state, effect: Some(_) }) = apply(state, event) {
            prop_assert!(state.is_in_transition());
        }
    }

    /// What is asked twice is done once.
    #[test]
    fn asking_again_in_the_lasting_state_changes_nothing(
        state in any_state().prop_filter("lasting", |state| !state.is_in_transition()),
        event in proptest::sample::select(vec![Event::Start, Event::Stop, Event::Pause, Event::Archive, Event::Destroy]),
    ) {
        if let Ok(step) = apply(state, event) {
            let settled = settle(step);
            prop_assert_eq!(apply(settled, event), Ok(Step { state: settled, effect: None }));
        }
    }
}

#[test]
fn a_refusal_names_the_state_and_the_remedy() {
    let denied = apply(State::Running, Event::Archive).unwrap_err();
    assert_eq!(denied.to_string(), "sandbox is running and cannot be archived; stop it first");
}

#[test]
fn a_first_launch_that_fails_leaves_nothing_and_a_later_one_its_files() {
    assert_eq!(settle(apply(State::Creating, Event::LaunchFailed).unwrap()), State::Destroyed);
    assert_eq!(apply(State::Starting, Event::LaunchFailed), Ok(to(State::Failed)));
}

#[test]
fn a_stop_that_the_processes_outran_is_a_stop() {
    assert_eq!(apply(State::Stopping, Event::Departed), Ok(to(State::Stopped)));
}
