//! Services elsewhere: each is played by a second server of ours, through its own door of that dialect.
//!
//! With our guest inside they keep the whole contract. By the service's own calls alone they run commands and move files, and
//! say of the rest what is missing.

use std::sync::Arc;
use std::time::Duration;

use cove_control::guest::{GuestError, Item};
use cove_control::provider::{Handle, Order, Provider, ProviderError};
use cove_protocol::file::WriteMode;
use cove_protocol::process::{Command, Spec, Stdio, TerminalSize};
use cove_protocol::{Event, FailureKind, Reply, Request};

use super::place::Place;
use super::stories;

pub type Keys = Vec<(&'static str, toml::Value)>;
/// The keys of a section, with the address of the server.
type Making = fn(&str) -> Keys;

/// What each takes to be a door of a second server's.
pub const KINDS: [(&str, Making); 3] = [("e2b", e2b), ("daytona", daytona), ("vercel", vercel)];

fn e2b(url: &str) -> Keys {
    vec![("url", format!("{url}/e2b").into()), ("sandbox_url", format!("{url}/e2b").into())]
}

fn daytona(url: &str) -> Keys {
    vec![("url", format!("{url}/daytona/api").into())]
}

fn vercel(url: &str) -> Keys {
    vec![("url", format!("{url}/vercel/api").into()), ("team", "team_1".into()), ("project", "prj_1".into())]
}

#[tokio::test(flavor = "multi_thread")]
async fn e2b_keeps_the_contract() {
    if let Some(place) = Place::far("e2b", e2b) {
        stories::tell_all(&place).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn daytona_keeps_the_contract() {
    if let Some(place) = Place::far("daytona", daytona) {
        stories::tell_all(&place).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vercel_keeps_the_contract() {
    if let Some(place) = Place::far("vercel", vercel) {
        stories::tell_all(&place).await;
    }
}

/// A server whose provider is itself would make sandboxes of its own for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_no_provider_of_itself() {
    for (kind, keys) in KINDS {
        let Some(place) = Place::far(kind, keys) else { return };
        assert!(place.open().answers().await.is_ok(), "{kind}: by the name of another server");
        place.call_it_the_far_one();
        let provider = place.open();
        for refused in [provider.answers().await.unwrap_err(), provider.launch(&place.order()).await.unwrap_err()] {
            assert!(matches!(&refused, ProviderError::Unfit(why) if why.contains("a provider of itself")), "{refused}");
        }
    }
}

/// With the service's own calls.
fn without_a_guest(keys: fn(&str) -> Keys) -> impl FnOnce(&str) -> Keys {
    move |url| keys(url).into_iter().chain([("guest", toml::Value::from(false))]).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn e2bs_own_calls_run_commands_and_move_files() {
    if let Some(place) = Place::far("e2b", without_a_guest(e2b)) {
        by_calls_alone(&place).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn daytonas_own_calls_run_commands_and_move_files() {
    if let Some(place) = Place::far("daytona", without_a_guest(daytona)) {
        by_calls_alone(&place).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn vercels_own_calls_run_commands_and_move_files() {
    if let Some(place) = Place::far("vercel", without_a_guest(vercel)) {
        by_calls_alone(&place).await;
    }
}

struct Calls {
    provider: Arc<dyn Provider>,
    handle: Handle,
}

impl Calls {
    async fn run(&self, spec: Spec) -> (String, String, i32) {
        let (_, mut operation) = self.provider.guest(&self.handle).open(&Request::Start(spec)).await.unwrap();
        let (mut out, mut err, mut code) = (Vec::new(), Vec::new(), None);
        while let Some(item) = operation.from.next().await.unwrap() {
            match item {
                Item::Stdout(bytes) => out.extend(bytes),
                Item::Stderr(bytes) => err.extend(bytes),
                Item::Event(Event::Exited { exit }) => code = Some(exit.status()),
                other => panic!("{other:?}"),
            }
        }
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (text(out), text(err), code.unwrap())
    }

    async fn said(&self, line: &str) -> String {
        let (out, err, code) = self.run(Spec::new(Command::Shell(line.into()))).await;
        assert_eq!(code, 0, "{line}: {out} {err}");
        out
    }

    async fn ask(&self, request: &Request) -> Result<Reply, GuestError> {
        self.provider.guest(&self.handle).call(request).await
    }

    async fn write(&self, path: &str, bytes: &[u8]) {
        let how = WriteMode::Replace;
        let request = Request::Write { path: path.into(), user: None, how, mode: Some(0o640), parents: true };
        let mut operation = self.provider.guest(&self.handle).send(&request).await.unwrap();
        operation.to.data(bytes).await.unwrap();
        operation.to.end().await.unwrap();
        operation.reply().await.unwrap();
    }

    async fn read(&self, path: &str) -> Vec<u8> {
        let request = Request::Read { path: path.into(), user: None, offset: 0, length: None };
        let (_, mut operation) = self.provider.guest(&self.handle).open(&request).await.unwrap();
        let mut bytes = Vec::new();
        while let Some(item) = operation.from.next().await.unwrap() {
            if let Item::Data(piece) = item {
                bytes.extend(piece);
            }
        }
        bytes
    }
}

async fn by_calls_alone(place: &Place) {
    let provider = place.open();
    let mut order = place.order();
    order.env.insert("GREETING".into(), "hello".into());
    let handle = provider.launch(&order).await.unwrap();
    let calls = Calls { provider: Arc::clone(&provider), handle: handle.clone() };

    let (out, err, code) = calls.run(Spec::new(Command::Shell("echo out; echo err >&2; exit 3".into()))).await;
    assert_eq!((out.as_str(), err.as_str(), code), ("out\n", "err\n", 3));
    assert_eq!(calls.said("echo $GREETING; id -un").await, "hello\nuser\n");

    let bytes: Vec<u8> = (0..300_000u32).map(|number| number as u8).collect();
    calls.write("/tmp/deep/a file", &bytes).await;
    assert!(calls.read("/tmp/deep/a file").await == bytes);
    let stat = Request::Stat { path: "/tmp/deep/a file".into(), user: None, follow: true };
    match calls.ask(&stat).await.unwrap() {
        Reply::Entry { entry } => assert_eq!((entry.size, entry.mode, entry.owner.as_str()), (300_000, 0o640, "user")),
        other => panic!("{other:?}"),
    }
    let rename = Request::Move { from: "/tmp/deep/a file".into(), to: "/tmp/deep/b".into(), user: None };
    assert!(matches!(calls.ask(&rename).await.unwrap(), Reply::Entry { entry } if entry.name == "b"));
    let missing = calls.ask(&stat).await.unwrap_err();
    assert!(matches!(&missing, GuestError::Failed(failure) if failure.kind == FailureKind::NotFound), "{missing}");
    let remove = Request::Remove { path: "/tmp/deep".into(), user: None, recursive: true };
    assert_eq!(calls.ask(&remove).await.unwrap(), Reply::Done);

    // What is missing is said.
    let size = TerminalSize { rows: 24, columns: 80 };
    let terminal = Spec { stdio: Stdio::Terminal(size), ..Spec::new(Command::Shell("true".into())) };
    let refused = provider.guest(&handle).open(&Request::Start(terminal)).await.err().expect("there are no terminals");
    assert!(matches!(&refused, GuestError::Failed(failure) if failure.kind == FailureKind::Unsupported), "{refused}");
    assert!(refused.to_string().contains("cannot open a terminal without our guest"), "{refused}");
    let refused = calls.ask(&Request::Dial { port: 80 }).await.unwrap_err();
    assert!(refused.to_string().contains("cannot lead to a port"), "{refused}");

    calls.write("/home/user/kept", b"kept").await;
    provider.stop(&handle, Duration::ZERO).await.unwrap();
    provider.launch(&Order { earlier: Some(handle.clone()), ..order.clone() }).await.unwrap();
    assert_eq!(calls.read("/home/user/kept").await, b"kept");
    provider.destroy(&handle).await.unwrap();
    assert_eq!(provider.sightings().await.unwrap(), []);
}
