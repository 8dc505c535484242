//! The contract of providers.
//!
//! Each story makes its own sandboxes and removes them. What a provider says it cannot do is not told, but asked for: it
//! must be refused with a sentence.

use std::sync::Arc;
use std::time::Duration;

use cove_control::guest::{Guest, GuestError, Item};
use cove_control::provider::images::Removed;
use cove_control::provider::manifest::Pulse;
use cove_control::provider::{
    Ability, Access, Handle, Image, Limit, Limits, Order, Provider, ProviderError, Root, Seen, Under, VolumeMount,
};
use cove_control::random;
use cove_protocol::file::{FileKind, WriteMode};
use cove_protocol::process::{Command, Exit, Selector, Spec, Stdio};
use cove_protocol::{Event, FailureKind, Reply, Request, SandboxId};

use super::place::Place;

/// Nothing in these stories takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

pub async fn tell_all(place: &Place) {
    macro_rules! tell {
        ($($story:ident),* $(,)?) => {$(
            eprintln!("story: {}", stringify!($story));
            let mut teller = Teller { place, provider: Some(place.open()) };
            let told = tokio::time::timeout(PATIENCE, $story(&mut teller)).await;
            told.unwrap_or_else(|_| panic!("{} took longer than {PATIENCE:?}", stringify!($story)));
        )*};
    }
    tell!(
        a_launch_is_answered_and_done_once,
        a_command_is_streamed_with_its_exit,
        much_goes_in_and_comes_out_whole,
        files_are_written_and_read,
        processes_have_the_environment_user_and_folder_of_the_order,
        limits_hold,
        limits_change_while_it_runs,
        a_closed_network_is_closed,
        a_pause_freezes_and_a_resume_goes_on,
        a_stop_keeps_files_and_nothing_else,
        an_end_that_nobody_asked_for_is_told,
        a_server_that_comes_back_finds_what_runs_and_what_it_said,
        a_snapshot_keeps_files_and_a_rollback_brings_them_back,
        a_fork_has_the_same_files_and_its_own_from_then_on,
        a_volume_outlives_its_sandboxes,
        an_archive_brings_back_what_was_destroyed,
        what_nobody_owns_is_kept_aside_and_taken_back,
        what_it_cannot_do_is_refused_with_a_sentence,
        many_at_once,
    );
}

struct Teller<'a> {
    place: &'a Place,
    /// Absent for the moment in which a server is away.
    provider: Option<Arc<dyn Provider>>,
}

/// What a command did.
#[derive(Debug, Default)]
struct Ran {
    out: Vec<u8>,
    err: Vec<u8>,
    exit: Option<Exit>,
}

impl Ran {
    fn out(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }

    fn err(&self) -> String {
        String::from_utf8_lossy(&self.err).into_owned()
    }

    fn status(&self) -> i32 {
        self.exit.expect("it has ended").status()
    }
}

impl Teller<'_> {
    fn provider(&self) -> &Arc<dyn Provider> {
        self.provider.as_ref().expect("the server is there")
    }

    /// The server goes without a word, and another one comes.
    fn come_back(&mut self) {
        self.provider = None;
        self.provider = Some(self.place.open());
    }

    async fn launch(&self, order: &Order) -> Handle {
        self.provider().launch(order).await.unwrap_or_else(|error| panic!("launch: {error}"))
    }

    async fn launched(&self) -> (Order, Handle) {
        let order = self.place.order();
        let handle = self.launch(&order).await;
        (order, handle)
    }

    async fn end(&self, handle: &Handle) {
        self.provider().destroy(handle).await.unwrap();
    }

    fn guest(&self, handle: &Handle) -> Guest {
        self.provider().guest(handle)
    }

    fn can(&self, ability: Ability) -> bool {
        self.provider().capabilities().of(ability).is_yes()
    }

    fn holds(&self, limit: Limit) -> bool {
        self.provider().unheld().iter().all(|unheld| unheld.limit != limit)
    }

    async fn run(&self, handle: &Handle, line: &str) -> Ran {
        self.run_spec(handle, Spec::new(Command::Shell(line.into()))).await
    }

    async fn run_spec(&self, handle: &Handle, spec: Spec) -> Ran {
        let (reply, mut operation) = self.guest(handle).open(&Request::Start(spec)).await.unwrap();
        assert!(matches!(reply, Reply::Started { .. }), "{reply:?}");
        let mut ran = Ran::default();
        while let Some(item) = operation.from.next().await.unwrap() {
            take(&mut ran, item);
        }
        ran
    }

    /// What a command prints that succeeds.
    async fn said(&self, handle: &Handle, line: &str) -> String {
        let ran = self.run(handle, line).await;
        assert_eq!(ran.status(), 0, "{line}: {} {}", ran.out(), ran.err());
        ran.out().trim_end().to_owned()
    }

    async fn write(&self, handle: &Handle, path: &str, bytes: &[u8]) {
        let (how, mode) = (WriteMode::Replace, Some(0o644));
        let request = Request::Write { path: path.into(), user: Some("root".into()), how, mode, parents: true };
        let mut operation = self.guest(handle).send(&request).await.unwrap();
        operation.to.data(bytes).await.unwrap();
        operation.to.end().await.unwrap();
        operation.reply().await.unwrap();
    }

    async fn read(&self, handle: &Handle, path: &str) -> Option<Vec<u8>> {
        let request = Request::Read { path: path.into(), user: Some("root".into()), offset: 0, length: None };
        let (_, mut operation) = match self.guest(handle).open(&request).await {
            Err(GuestError::Failed(failure)) if failure.kind == FailureKind::NotFound => return None,
            opened => opened.unwrap(),
        };
        let mut bytes = Vec::new();
        while let Some(item) = operation.from.next().await.unwrap() {
            if let Item::Data(piece) = item {
                bytes.extend(piece);
            }
        }
        Some(bytes)
    }

    async fn state(&self, id: &SandboxId) -> Option<Seen> {
        let sightings = self.provider().sightings().await.unwrap();
        let listed = sightings.iter().find(|sighting| sighting.id == *id).map(|sighting| sighting.state);
        // One that is asked for alone is the same as in the list.
        let alone = self.provider().sighting(&Handle::from(id)).await.unwrap().map(|sighting| sighting.state);
        assert_eq!(listed, alone);
        listed
    }

    async fn answers(&self, handle: &Handle) -> bool {
        matches!(self.guest(handle).call(&Request::Ping).await, Ok(Reply::Pong { .. }))
    }
}

fn take(ran: &mut Ran, item: Item) {
    match item {
        Item::Stdout(bytes) | Item::Pty(bytes) => ran.out.extend(bytes),
        Item::Stderr(bytes) => ran.err.extend(bytes),
        Item::Event(Event::Exited { exit }) => ran.exit = Some(exit),
        Item::Event(_) | Item::Data(_) => {}
    }
}

/// As another start of the same sandbox is ordered.
fn again(order: &Order, handle: &Handle) -> Order {
    Order { earlier: Some(handle.clone()), ..order.clone() }
}

async fn a_launch_is_answered_and_done_once(t: &Teller<'_>) {
    t.provider().answers().await.unwrap();
    let (order, handle) = t.launched().await;
    assert!(t.answers(&handle).await);
    assert_eq!(t.launch(&again(&order, &handle)).await, handle, "it runs: nothing to do");
    let running = t.said(&handle, "echo still here").await;
    assert_eq!(running, "still here");
    // A server may die before it has noted the handle.
    assert!(t.answers(&Handle::from(&order.id)).await, "it is known by its id as well");
    assert_eq!(t.state(&order.id).await, Some(Seen::Running));
    t.end(&handle).await;
    assert_eq!(t.state(&order.id).await, None);
    assert!(!t.answers(&handle).await);
    t.end(&handle).await;
    t.end(&Handle::from(&random::sandbox_id())).await;
}

async fn a_command_is_streamed_with_its_exit(t: &Teller<'_>) {
    let (_, handle) = t.launched().await;
    let ran = t.run(&handle, "echo out; echo err >&2; exit 3").await;
    assert_eq!((ran.out().as_str(), ran.err().as_str(), ran.status()), ("out\n", "err\n", 3));
    // What it prints arrives while it runs: the second line is written only after the first was seen.
    let mut spec = Spec::new(Command::Shell("echo first; read word; echo got $word".into()));
    spec.stdio = Stdio::Piped;
    let (_, mut operation) = t.guest(&handle).open(&Request::Start(spec)).await.unwrap();
    let mut ran = Ran::default();
    while !ran.out().contains("first") {
        take(&mut ran, operation.from.next().await.unwrap().expect("it has not ended"));
    }
    operation.to.stdin(b"it\n").await.unwrap();
    while let Some(item) = operation.from.next().await.unwrap() {
        take(&mut ran, item);
    }
    assert_eq!((ran.out().as_str(), ran.status()), ("first\ngot it\n", 0));
    let missing = Spec::new(Command::Argv(vec!["no-such-program".into()]));
    let refused = t.guest(&handle).open(&Request::Start(missing)).await.err().expect("there is no such program");
    assert!(matches!(&refused, GuestError::Failed(failure) if failure.kind == FailureKind::NotFound), "{refused}");
    t.end(&handle).await;
}

async fn much_goes_in_and_comes_out_whole(t: &Teller<'_>) {
    let (_, handle) = t.launched().await;
    let sent: Vec<u8> = (0..3u32 << 20).map(|number| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let mut spec = Spec::new(Command::Argv(vec!["cat".into()]));
    spec.stdio = Stdio::Piped;
    let (_, operation) = t.guest(&handle).open(&Request::Start(spec)).await.unwrap();
    let (mut from, mut to) = operation.split();
    let sending = async {
        to.stdin(&sent).await.unwrap();
        to.end().await.unwrap();
    };
    let mut ran = Ran::default();
    let receiving = async {
        while let Some(item) = from.next().await.unwrap() {
            take(&mut ran, item);
        }
    };
    tokio::join!(sending, receiving);
    assert_eq!(ran.status(), 0);
    assert!(ran.out == sent, "{} of {} bytes", ran.out.len(), sent.len());
    t.end(&handle).await;
}

async fn files_are_written_and_read(t: &Teller<'_>) {
    let (_, handle) = t.launched().await;
    let bytes: Vec<u8> = (0..1_500_000u32).map(|number| number as u8).collect();
    t.write(&handle, "/srv/deep/file", &bytes).await;
    assert_eq!(t.said(&handle, "wc -c < /srv/deep/file").await.trim(), "1500000");
    assert!(t.read(&handle, "/srv/deep/file").await.unwrap() == bytes);
    assert_eq!(t.read(&handle, "/srv/nothing").await, None);
    let stat = Request::Stat { path: "/srv/deep".into(), user: Some("root".into()), follow: true };
    match t.guest(&handle).call(&stat).await.unwrap() {
        Reply::Entry { entry } => assert_eq!(entry.kind, FileKind::Directory),
        other => panic!("{other:?}"),
    }
    t.end(&handle).await;
}

async fn processes_have_the_environment_user_and_folder_of_the_order(t: &Teller<'_>) {
    let mut order = t.place.order();
    order.env.insert("GREETING".into(), "hello  'world'".into());
    order.cwd = Some("/srv/work".into());
    let handle = t.launch(&order).await;
    let said = t.said(&handle, "echo \"$GREETING\"; id -un; pwd; echo $HOME").await;
    assert_eq!(said, "hello  'world'\nuser\n/srv/work\n/home/user");
    // A service names its machines itself.
    if t.place.far.is_none() {
        assert_eq!(t.said(&handle, "hostname").await, "story");
    }
    let root = Spec { user: Some("root".into()), ..Spec::new(Command::Shell("id -u; echo \"$GREETING\"".into())) };
    assert_eq!(t.run_spec(&handle, root).await.out(), "0\nhello  'world'\n");
    let stranger = Spec { user: Some("mallory".into()), ..Spec::new(Command::Shell("true".into())) };
    let refused = t.guest(&handle).open(&Request::Start(stranger)).await.err().expect("nobody has that name");
    assert!(matches!(&refused, GuestError::Failed(failure) if failure.kind == FailureKind::UnknownUser), "{refused}");
    // What no command has is what the guest was given for itself.
    assert!(!t.said(&handle, "env").await.contains("COVE_GUEST"));
    // Another start has another environment.
    t.provider().stop(&handle, Duration::ZERO).await.unwrap();
    order.env.insert("GREETING".into(), "good bye".into());
    t.launch(&again(&order, &handle)).await;
    assert_eq!(t.said(&handle, "echo $GREETING").await, "good bye");
    t.end(&handle).await;
}

async fn limits_hold(t: &Teller<'_>) {
    let mut order = t.place.order();
    order.limits = Limits { memory: 96 << 20, pids: 40, disk: None, ..order.limits };
    let handle = t.launch(&order).await;
    if t.holds(Limit::Memory) {
        let size = 300 << 20;
        let ran = t.run(&handle, &format!("head -c {size} /dev/zero | tail -c {size} >/dev/null")).await;
        assert_eq!(ran.status(), 137, "{}", ran.err());
        assert!(ran.exit.is_some_and(|exit| exit.out_of_memory), "{:?}", ran.exit);
        assert!(t.answers(&handle).await, "the guest outlives it");
        let usage = t.provider().usage(&handle).await.unwrap();
        assert_eq!(usage.memory_limit, order.limits.memory);
        assert!(usage.cpu_ns > 0 && usage.pids > 0, "{usage:?}");
    }
    if t.holds(Limit::Pids) {
        let crowd = "for i in $(seq 1 80); do sleep 60 & done; echo all of them";
        let spec = Spec::new(Command::Argv(["sh", "-c", crowd].map(ToOwned::to_owned).to_vec()));
        let (_, mut operation) = t.guest(&handle).open(&Request::Start(spec)).await.unwrap();
        let mut ran = Ran::default();
        while ran.exit.is_none() && !ran.err().contains("fork") {
            match operation.from.next().await.unwrap() {
                Some(item) => take(&mut ran, item),
                None => break,
            }
        }
        assert!(ran.err().contains("fork") && !ran.out().contains("all of them"), "{} {}", ran.out(), ran.err());
    }
    t.end(&handle).await;
}

async fn limits_change_while_it_runs(t: &Teller<'_>) {
    let (order, handle) = t.launched().await;
    let more = Limits { memory: order.limits.memory * 2, cpus: 2.0, ..order.limits };
    if t.can(Ability::Resize) {
        t.provider().resize(&handle, &more).await.unwrap();
        if t.holds(Limit::Memory) {
            assert_eq!(t.provider().usage(&handle).await.unwrap().memory_limit, more.memory);
        }
        assert!(t.answers(&handle).await, "it went on meanwhile");
    }
    t.end(&handle).await;
}

async fn a_closed_network_is_closed(t: &Teller<'_>) {
    let (_, handle) = t.launched().await;
    let devices = t.said(&handle, "cat /proc/net/dev").await;
    let others: Vec<&str> = devices
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim())
        .filter(|name| *name != "lo")
        .collect();
    // Devices of the kernel's own that are in every namespace are down and lead nowhere.
    let up = "for d in /sys/class/net/*; do [ \"$(cat $d/operstate)\" = up ] && echo $d; done; true";
    assert_eq!(t.said(&handle, up).await, "", "{others:?}");
    t.end(&handle).await;
}

async fn a_pause_freezes_and_a_resume_goes_on(t: &Teller<'_>) {
    let (order, handle) = t.launched().await;
    if !t.can(Ability::Pause) {
        return t.end(&handle).await;
    }
    let mut spec = Spec::new(Command::Shell("while true; do echo tick; sleep 0.05; done".into()));
    spec.tag = Some("clock".into());
    let (_, mut operation) = t.guest(&handle).open(&Request::Start(spec)).await.unwrap();
    operation.from.next().await.unwrap().expect("it ticks");
    t.provider().pause(&handle).await.unwrap();
    assert_eq!(t.state(&order.id).await, Some(Seen::Paused));
    t.provider().resume(&handle).await.unwrap();
    assert_eq!(t.state(&order.id).await, Some(Seen::Running));
    // The same process ticks on, on the same connection; a service's proxies may have closed that one.
    if t.place.far.is_some() {
        let attach = Request::Attach { process: Selector::Living("clock".into()), from: None };
        operation = t.guest(&handle).open(&attach).await.unwrap().1;
    }
    operation.from.next().await.unwrap().expect("it ticks on");
    // What is paused can be removed as it is.
    t.provider().pause(&handle).await.unwrap();
    t.end(&handle).await;
    assert_eq!(t.state(&order.id).await, None);
}

async fn a_stop_keeps_files_and_nothing_else(t: &Teller<'_>) {
    let (order, handle) = t.launched().await;
    t.write(&handle, "/srv/kept", b"kept").await;
    let _left = t.run(&handle, "sleep 1000 >/dev/null 2>&1 & echo $!").await;
    let first = t.provider().last_order(&handle).await.unwrap();
    t.provider().stop(&handle, Duration::from_secs(2)).await.unwrap();
    assert_eq!(t.state(&order.id).await, Some(Seen::Stopped));
    assert!(!t.answers(&handle).await);
    t.provider().stop(&handle, Duration::from_secs(2)).await.unwrap();
    assert_eq!(t.launch(&again(&order, &handle)).await, handle);
    assert_eq!(t.read(&handle, "/srv/kept").await.unwrap(), b"kept");
    match t.guest(&handle).call(&Request::Processes).await.unwrap() {
        Reply::Processes { processes } => assert!(processes.is_empty(), "{processes:?}"),
        other => panic!("{other:?}"),
    }
    if let Some(first) = first {
        assert_eq!((first.id, first.limits, first.hostname), (order.id.clone(), order.limits, order.hostname));
    }
    t.end(&handle).await;
}

async fn an_end_that_nobody_asked_for_is_told(t: &Teller<'_>) {
    let (first, handle) = t.launched().await;
    let (second, other) = t.launched().await;
    // A stop on request is no news: what is heard is about the other one.
    t.provider().stop(&other, Duration::ZERO).await.unwrap();
    t.guest(&handle).call(&Request::Shutdown { grace_ms: 0 }).await.unwrap();
    let departure = tokio::time::timeout(PATIENCE, t.provider().departure()).await.expect("its end is told");
    assert_eq!(departure.id, first.id, "{:?} of {}", departure.ended, second.id);
    assert_eq!(t.state(&first.id).await, Some(Seen::Stopped));
    t.launch(&again(&first, &handle)).await;
    assert!(t.answers(&handle).await);
    t.end(&handle).await;
    t.end(&other).await;
}

async fn a_server_that_comes_back_finds_what_runs_and_what_it_said(t: &mut Teller<'_>) {
    let (order, handle) = t.launched().await;
    let lines = 300;
    let line = format!("for i in $(seq 1 {lines}); do echo line $i; sleep 0.01; done");
    let mut spec = Spec::new(Command::Shell(line));
    spec.tag = Some("long".into());
    let (_, mut operation) = t.guest(&handle).open(&Request::Start(spec)).await.unwrap();
    let mut ran = Ran::default();
    while !ran.out().contains("line 20\n") {
        take(&mut ran, operation.from.next().await.unwrap().expect("it has not ended"));
    }
    drop(operation);
    t.come_back();
    assert_eq!(t.state(&order.id).await, Some(Seen::Running));
    let sighting = t.provider().sighting(&Handle::from(&order.id)).await.unwrap().unwrap();
    assert_eq!(sighting.handle, handle, "its name is found again");
    let attach = Request::Attach { process: Selector::Tag("long".into()), from: Some(ran.out.len() as u64) };
    let (_, mut operation) = t.guest(&handle).open(&attach).await.unwrap();
    while let Some(item) = operation.from.next().await.unwrap() {
        take(&mut ran, item);
    }
    let expected: String = (1..=lines).map(|number| format!("line {number}\n")).collect();
    assert_eq!((ran.out(), ran.status()), (expected, 0), "nothing is missing and nothing is there twice");
    assert_eq!(t.launch(&again(&order, &handle)).await, handle, "it runs: nothing to do");
    t.end(&handle).await;
}

/// With the files of another sandbox, from a layer of it.
fn on_layer(t: &Teller<'_>, layer: cove_control::provider::LayerId) -> Order {
    let mut order = t.place.order();
    let Root { under, over } = order.image.root.clone();
    let over = std::iter::once(layer).chain(over).collect();
    order.image = Image { root: Root { under, over }, reference: None };
    order
}

async fn a_snapshot_keeps_files_and_a_rollback_brings_them_back(t: &Teller<'_>) {
    if !t.can(Ability::Snapshot) {
        return;
    }
    let (order, handle) = t.launched().await;
    t.write(&handle, "/srv/file", b"before").await;
    let (layers, layer) = (t.provider().layers(), random::layer_id());
    let info = layers.capture(&handle, layer).await.unwrap();
    assert_eq!(info.id, layer);
    assert_eq!(layers.capture(&handle, layer).await.unwrap(), info, "it is there: nothing to do");
    assert!(layers.layers().await.unwrap().contains(&layer));
    t.write(&handle, "/srv/file", b"after").await;
    t.write(&handle, "/srv/more", b"more").await;

    let copy = on_layer(t, layer);
    let other = t.launch(&copy).await;
    assert_eq!(t.read(&other, "/srv/file").await.unwrap(), b"before");
    assert_eq!(t.read(&other, "/srv/more").await, None);
    assert_eq!(t.read(&handle, "/srv/file").await.unwrap(), b"after", "the first has its own");
    assert_eq!(layers.remove_layer(layer).await.unwrap(), Removed::InUse, "a sandbox stands on it");
    t.end(&other).await;

    let kept = random::layer_id();
    t.provider().stop(&handle, Duration::ZERO).await.unwrap();
    layers.rollback(&handle, layer, kept).await.unwrap();
    layers.rollback(&handle, layer, kept).await.unwrap();
    t.launch(&again(&order, &handle)).await;
    assert_eq!(t.read(&handle, "/srv/file").await.unwrap(), b"before");
    assert_eq!(t.read(&handle, "/srv/more").await, None);
    let undone = t.launch(&on_layer(t, kept)).await;
    assert_eq!(t.read(&undone, "/srv/more").await.unwrap(), b"more", "what was replaced was kept");
    t.end(&undone).await;
    t.end(&handle).await;
    for layer in [layer, kept] {
        assert_eq!(layers.remove_layer(layer).await.unwrap(), Removed::Gone);
        assert_eq!(layers.remove_layer(layer).await.unwrap(), Removed::Gone, "gone: nothing to do");
        assert_eq!(layers.layer(layer).await.unwrap(), None);
    }
}

async fn a_fork_has_the_same_files_and_its_own_from_then_on(t: &Teller<'_>) {
    if !t.can(Ability::Fork) {
        return;
    }
    let (_, handle) = t.launched().await;
    t.write(&handle, "/srv/file", b"shared").await;
    let orders = [t.place.order(), t.place.order()];
    let forks = t.provider().layers().forks(&handle, &orders).await;
    let forks: Vec<Handle> = forks.into_iter().map(|fork| fork.unwrap()).collect();
    t.write(&forks[0], "/srv/file", b"changed").await;
    assert_eq!(t.read(&forks[1], "/srv/file").await.unwrap(), b"shared");
    assert_eq!(t.read(&handle, "/srv/file").await.unwrap(), b"shared");
    t.end(&handle).await;
    assert_eq!(t.read(&forks[1], "/srv/file").await.unwrap(), b"shared", "it outlives where it came from");
    for fork in &forks {
        t.end(fork).await;
    }
}

async fn a_volume_outlives_its_sandboxes(t: &Teller<'_>) {
    if !t.can(Ability::Volumes) {
        return;
    }
    let (volumes, volume) = (t.provider().volumes(), random::volume_id());
    volumes.make_volume(&volume, 1 << 30).await.unwrap();
    volumes.make_volume(&volume, 1 << 30).await.unwrap();
    assert!(volumes.volumes().await.unwrap().contains(&volume));
    // A size is held, or nobody is told that it is.
    match t.provider().unheld_volumes() {
        None => assert_eq!(volumes.volume_usage(&volume).await.unwrap().limit, 1 << 30),
        Some(unheld) => {
            let refused = volumes.resize_volume(&volume, 2 << 30).await.unwrap_err();
            assert!(matches!(&refused, ProviderError::Unsupported(why) if *why == unheld.why), "{refused:?}");
        }
    }
    let with = |access: Access| {
        let mut order = t.place.order();
        order.volumes = vec![VolumeMount { volume: volume.clone(), subpath: None, target: "/data".into(), access }];
        order
    };
    let writer = t.launch(&with(Access::ReadWrite)).await;
    t.write(&writer, "/data/file", b"shared").await;
    t.end(&writer).await;
    let reader = t.launch(&with(Access::ReadOnly)).await;
    assert_eq!(t.read(&reader, "/data/file").await.unwrap(), b"shared");
    let spec = Spec { user: Some("root".into()), ..Spec::new(Command::Shell("echo x > /data/file".into())) };
    assert_ne!(t.run_spec(&reader, spec).await.status(), 0, "it is read-only there");
    t.end(&reader).await;
    volumes.remove_volume(&volume).await.unwrap();
    volumes.remove_volume(&volume).await.unwrap();
    assert!(!volumes.volumes().await.unwrap().contains(&volume));
    let refused = t.provider().launch(&with(Access::ReadWrite)).await.unwrap_err();
    assert!(matches!(refused, ProviderError::Refused(_)), "{refused:?}");
}

async fn an_archive_brings_back_what_was_destroyed(t: &Teller<'_>) {
    if !t.can(Ability::Archive) {
        return;
    }
    let (order, handle) = t.launched().await;
    t.write(&handle, "/srv/file", b"archived").await;
    t.said(&handle, "echo mine > /tmp/own").await;
    t.provider().stop(&handle, Duration::ZERO).await.unwrap();
    let mut archive = Vec::new();
    t.provider().export(&handle, &mut archive).await.unwrap();
    t.end(&handle).await;
    assert_eq!(t.state(&order.id).await, None);

    // Half of it is not taken for the whole.
    let half = &archive[..archive.len() / 2];
    assert!(t.provider().import(&order, &mut &*half).await.is_err());
    t.end(&Handle::from(&order.id)).await;

    let back = t.provider().import(&order, &mut archive.as_slice()).await.unwrap();
    assert_eq!(t.state(&order.id).await, Some(Seen::Stopped));
    t.launch(&again(&order, &back)).await;
    assert_eq!(t.read(&back, "/srv/file").await.unwrap(), b"archived");
    assert_eq!(t.said(&back, "cat /tmp/own; [ -O /tmp/own ] && echo its owner").await, "mine\nits owner");
    t.end(&back).await;
}

async fn what_nobody_owns_is_kept_aside_and_taken_back(t: &Teller<'_>) {
    let (order, handle) = t.launched().await;
    assert!(t.provider().is_blank(&handle).await.unwrap() || !t.provider().is_exclusive(), "nothing was written yet");
    t.write(&handle, "/srv/file", b"worth something").await;
    assert!(!t.provider().is_blank(&handle).await.unwrap());
    if t.provider().is_exclusive() {
        let aside = cove_control::provider::Aside { since: 1_700_000_000_000, reason: "nobody knows it".into() };
        t.provider().keep_aside(&handle, &aside).await.unwrap();
        let seen = t.provider().sighting(&handle).await.unwrap().unwrap();
        assert_eq!((seen.state, seen.aside), (Seen::Stopped, Some(aside)));
        t.provider().take_back(&handle).await.unwrap();
        assert_eq!(t.provider().sighting(&handle).await.unwrap().unwrap().aside, None);
        t.launch(&again(&order, &handle)).await;
        assert_eq!(t.read(&handle, "/srv/file").await.unwrap(), b"worth something");
    }
    t.end(&handle).await;
}

async fn what_it_cannot_do_is_refused_with_a_sentence(t: &Teller<'_>) {
    for (ability, why) in t.provider().capabilities().refusals() {
        assert!(why.len() > 20 && !why.ends_with('.'), "{ability:?}: {why}");
    }
    let (_, handle) = t.launched().await;
    let unsupported = |error: ProviderError| match error {
        ProviderError::Unsupported(sentence) => assert!(!sentence.is_empty()),
        other => panic!("{other:?}"),
    };
    if !t.can(Ability::Manifest) {
        let pulse = Arc::new(Pulse::default());
        unsupported(t.provider().manifests().seal(&handle, pulse).await.unwrap_err());
    }
    if !t.can(Ability::Snapshot) {
        unsupported(t.provider().layers().capture(&handle, random::layer_id()).await.unwrap_err());
    }
    if !t.can(Ability::Volumes) {
        unsupported(t.provider().volumes().make_volume(&random::volume_id(), 1 << 30).await.unwrap_err());
    }
    // What is not there is refused, and nothing is made of it.
    let mut order = t.place.order();
    order.image = Image::from(Root { under: Under::Nothing, over: vec![random::layer_id()] });
    let refused = t.provider().launch(&order).await.unwrap_err();
    assert!(!matches!(refused, ProviderError::Failed(_)), "{refused:?}");
    t.end(&Handle::from(&order.id)).await;
    assert_eq!(t.state(&order.id).await, None);
    let nobody = Handle::from(&random::sandbox_id());
    assert!(t.provider().usage(&nobody).await.is_err());
    assert!(!t.answers(&nobody).await && !t.answers(&Handle::new("../../etc")).await);
    t.end(&handle).await;
}

async fn many_at_once(t: &Teller<'_>) {
    let count = if std::env::var_os("COVE_LONG").is_some() { 50 } else { 8 };
    let orders: Vec<Order> = (0..count).map(|_| t.place.order()).collect();
    let one = |order: Order| {
        let provider = Arc::clone(t.provider());
        async move {
            let handle = provider.launch(&order).await?;
            let answer = provider.guest(&handle).call(&Request::Ping).await;
            assert!(matches!(answer, Ok(Reply::Pong { .. })), "{answer:?}");
            provider.destroy(&handle).await
        }
    };
    let all: Vec<_> = orders.iter().cloned().map(|order| tokio::spawn(one(order))).collect();
    for task in all {
        task.await.unwrap().unwrap();
    }
    let left = t.provider().sightings().await.unwrap();
    assert!(left.is_empty(), "{left:?}");
}
