//! `cove serve`: the control plane on this machine.

use std::path::PathBuf;

use clap::Args;
use cove_control::clock::Clock;
use cove_control::config::Config;
use cove_control::store::Store;
use cove_control::{App, provider, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::complaint::Complaint;
use crate::place::Place;
use crate::render::print;

/// Serve sandboxes over HTTP
///
/// Everything is kept in the data directory; sandboxes outlive the server, which finds them again when it comes back.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Where to listen; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070", env = "COVE_LISTEN")]
    listen: String,
    /// Where everything is kept [default: /var/lib/cove, or below your home]
    #[arg(long, value_name = "DIR", env = "COVE_DATA")]
    data: Option<PathBuf>,
    /// `postgres://…` to share the work with other servers; SQLite in the data directory otherwise
    #[arg(long, value_name = "URL", env = "DATABASE_URL", hide_env_values = true)]
    database_url: Option<String>,
    /// Where sandboxes run that name no provider
    #[arg(long, value_name = "NAME", env = "SANDBOX_PROVIDER", default_value = "local")]
    provider: String,
    /// How clients reach this server, where that is not the address it listens on
    #[arg(long, value_name = "URL", env = "COVE_PUBLIC_URL")]
    public_url: Option<String>,
    /// Previews are at PORT-ID.DOMAIN
    #[arg(long, value_name = "DOMAIN", env = "COVE_DOMAIN", default_value = "localhost")]
    domain: String,
    #[command(flatten)]
    secure: super::secure::Flags,
    /// Log as JSON
    #[arg(long)]
    log_json: bool,
}

pub fn run(arguments: &Arguments) -> Result<u8, Complaint> {
    start_logging(arguments);
    crate::client::prepare_tls();
    open_files_as_allowed();
    let config = config(arguments);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Complaint::failed(format!("start a runtime: {error}")))?;
    runtime.block_on(serve_until_told(config, &arguments.secure))?;
    Ok(0)
}

fn config(arguments: &Arguments) -> Config {
    Config {
        listen: arguments.listen.clone(),
        data: Place::new(arguments.data.clone()).data(),
        database_url: arguments.database_url.clone(),
        provider: arguments.provider.clone(),
        api_key: std::env::var("COVE_API_KEY").ok().filter(|key| !key.is_empty()),
        public_url: arguments.public_url.clone(),
        domain: arguments.domain.clone(),
        ..Config::default()
    }
}

async fn serve_until_told(config: Config, secure: &super::secure::Flags) -> Result<(), Complaint> {
    let listener = TcpListener::bind(&config.listen).await.map_err(|error| {
        let complaint = Complaint::failed(format!("listen on {}: {error}", config.listen));
        match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                complaint.hint("another server is there; choose a port with --listen 127.0.0.1:0")
            }
            _ => complaint.hint("write an address and a port, for example --listen 127.0.0.1:7070"),
        }
    })?;
    let address = listener.local_addr()?;
    std::fs::create_dir_all(&config.data)
        .map_err(|error| Complaint::failed(format!("make the data directory {}: {error}", config.data.display())))?;
    let store = match &config.database_url {
        Some(url) => Store::open(url).await,
        None => Store::sqlite(&config.data.join("cove.db")).await,
    };
    let store = store.map_err(control_complaint)?;
    let program = std::env::current_exe()?;
    let providers = provider::configured(&config, program).map_err(control_complaint)?;
    let app = App::open(config, store, providers, Clock::system()).await.map_err(control_complaint)?;
    greet(&app, &format!("http://{address}"))?;
    let secure = secure.open(&app.config().data, &app.config().domain).await?;
    serve::run(serve::Sockets { plain: listener, secure }, app, told_to_end()?).await.map_err(control_complaint)
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
        print(&format!("  key    {key}"))?;
        format!("$(cat {data}/api-key)")
    };
    print(&format!("  data   {data}"))?;
    print("\nTry next, in another terminal:")?;
    if url != crate::client::DEFAULT_URL {
        print(&format!("  export COVE_URL={url}"))?;
    }
    if app.config().data != Place::new(None).data() && app.config().api_key.is_none() {
        print(&format!("  export COVE_API_KEY={key}"))?;
    }
    print("  cove create --name box")?;
    print("  cove exec box -- python3 -c 'print(6*7)'")?;
    print("  cove shell box")?;
    print(&format!("  curl -H \"Authorization: Bearer {key}\" {url}/api/sandboxes"))
}

fn told_to_end() -> Result<impl Future<Output = ()> + Send + 'static, Complaint> {
    let (mut term, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!("told to end; sandboxes go on");
    })
}

/// Every sandbox with a network takes two descriptors, every connection more: the usual soft limit of 1024 would end at some
/// hundreds. The hard limit stays what the operator set.
pub fn open_files_as_allowed() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }) {
        tracing::warn!(%error, "raise the soft limit of open files");
    }
}

fn start_logging(arguments: &Arguments) {
    let filter = EnvFilter::try_from_env("COVE_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let log = log.with_ansi(crate::terminal::has_colour(&std::io::stderr()));
    if arguments.log_json { log.json().init() } else { log.init() }
}

fn control_complaint(error: cove_control::Error) -> Complaint {
    // At the start nobody reads a log yet: the detail is the message.
    Complaint::failed(error.detail().map_or_else(|| error.to_string(), str::to_owned))
}
