//! `cove serve`: the control plane on this machine.

use clap::Args;
use cove_control::clock::Clock;
use cove_control::config::Config;
use cove_control::store::Store;
use cove_control::{App, provider, serve};
use serde_json::json;
use tokio::net::TcpListener;

use super::settings::Flags;
use crate::complaint::{Complaint, doing};
use crate::ending::told_to_end;
use crate::place::{Place, note_server};
use crate::render::{enumerated, print};
use crate::telemetry;

/// Serve sandboxes over HTTP
///
/// It keeps everything in the data directory. Sandboxes outlive the server; it finds them again when it comes back.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cove serve
  cove serve --listen 127.0.0.1:8080 --data ./data
  cove serve --tls 127.0.0.1:7443")]
pub struct Arguments {
    #[command(flatten)]
    flags: Flags,
    /// Print the address as JSON, one object on one line
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    // A child inherits what its parent blocks, and a server that does not hear SIGTERM cannot end in good order.
    cove_sys::signal::unblock_all().map_err(doing("unblock signals"))?;
    let config = arguments.flags.load()?.config;
    cove_control::app::make_private_directory(&config.data)
        .map_err(|error| Complaint::failed(format!("make the data directory {}: {error}", config.data.display())))?;
    // Before the first thread.
    cove_engine::privilege::enter(Some(&config.data))
        .map_err(|error| Complaint::failed(error.to_string()).hint("`cove doctor` shows what this machine lacks"))?;
    crate::client::prepare_tls();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
    let served = runtime.block_on(async {
        let traces = telemetry::start(&config)?;
        open_files_as_allowed();
        let served = serve_until_told(config, arguments.json).await;
        traces.finish().await;
        served
    });
    // Does not wait for tasks that still run.
    runtime.shutdown_background();
    served?;
    Ok(0)
}

async fn serve_until_told(config: Config, as_json: bool) -> Result<(), Complaint> {
    // Before anything in the directory is opened, and before the address is printed.
    let held = serve::alone(&config.data).map_err(|error| match &error {
        cove_control::Error::Conflict(_) => control_complaint(error)
            .hint("end that server first, or choose another directory with --data, and another port with --listen"),
        _ => control_complaint(error),
    })?;
    let listener = TcpListener::bind(&config.listen).await.map_err(|error| {
        let complaint = Complaint::failed(format!("listen on {}: {error}", config.listen));
        match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                complaint.hint("another server is there; choose a port with --listen 127.0.0.1:0")
            }
            _ => complaint.hint("write an address and a port, for example --listen 127.0.0.1:7070"),
        }
    })?;
    let address = listener.local_addr().map_err(doing("find the address of the socket"))?;
    let store = match &config.database_url {
        Some(url) => Store::open(url).await,
        None => Store::sqlite(&config.data.join("cove.db")).await,
    };
    let store = store.map_err(control_complaint)?;
    let program = crate::place::program()?;
    let providers = provider::configured(&config, &program)
        .map_err(|error| control_complaint(error).hint("`cove doctor` shows what this machine lacks"))?;
    let app = App::open(config, store, providers, Clock::system()).await.map_err(control_complaint)?;
    note_server(&app.config().data, address).map_err(|error| {
        Complaint::failed(format!("write the server's address into {}: {error}", app.config().data.display()))
    })?;
    let url = format!("http://{address}");
    if as_json {
        let config = app.config();
        let (own, public) = (config.api_key.is_none(), config.public_url.as_deref().unwrap_or(&url));
        let key_file = own.then(|| config.data.join("api-key"));
        app.first_key().map_err(control_complaint)?;
        let told = json!({ "url": public, "data": config.data, "key_file": key_file, "pid": std::process::id() });
        print(&told.to_string())?;
    } else {
        greet(&app, &url)?;
    }
    let secure = super::secure::open(app.config(), as_json).await?;
    tell_what_is_weaker(&app);
    super::secure::warn_of_plain_text(app.config(), address);
    let sockets = serve::Sockets { plain: listener, secure, held: Some(held) };
    serve::run(sockets, app, told_to_end()?).await.map_err(control_complaint)
}

/// On stdout, so that a script can read the address; the log goes to stderr.
fn greet(app: &App, url: &str) -> Result<(), Complaint> {
    let url = app.config().public_url.as_deref().unwrap_or(url);
    let data = app.config().data.display();
    print(&format!("cove serves at {url}"))?;
    let key = if app.config().api_key.is_some() {
        "$COVE_API_KEY".to_owned()
    } else {
        let key = app.first_key().map_err(control_complaint)?;
        // Without a terminal the output is a log, and a key does not belong into a log.
        if std::io::IsTerminal::is_terminal(&std::io::stdout()) {
            print(&format!("  key    {key}"))?;
        } else {
            print(&format!("  key    in {data}/api-key"))?;
        }
        format!("$(cat {data}/api-key)")
    };
    print(&format!("  data   {data}"))?;
    print("\nTry next, in another terminal:")?;
    // The verbs read both from the usual data directory.
    if app.config().data != Place::new(None).data() {
        print(&format!("  export COVE_URL={url}"))?;
        if app.config().api_key.is_none() {
            print(&format!("  export COVE_API_KEY={key}"))?;
        }
    }
    print("  cove create --name box")?;
    print("  cove exec box -- python3 -c 'print(6*7)'")?;
    print("  cove shell box")?;
    print(&format!("  curl -H \"Authorization: Bearer {key}\" {url}/api/sandboxes"))
}

/// Warns once about limits that only root has.
fn tell_what_is_weaker(app: &App) {
    let unheld = app.unheld(&app.config().provider);
    if !unheld.is_empty() {
        let what = enumerated(&unheld);
        tracing::warn!("limits on {what} are not enforced here; `cove doctor` shows how to get them");
    }
}

/// Every sandbox with a network needs two descriptors, every connection more: the usual soft limit of 1024 would be
/// enough for some hundreds. The hard limit stays as the operator set it.
pub fn open_files_as_allowed() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "raise the soft limit of open files");
    }
}

fn control_complaint(error: cove_control::Error) -> Complaint {
    // At the start nobody reads the log yet, so the message has the detail.
    Complaint::failed(error.detail().map_or_else(|| error.to_string(), str::to_owned))
}
